r"""Proximal, implicit, linearised, damped Newton and output steps, each with the evidence that it
is what it says.

\[ u_\star = \arg\min_u\ J(u) + \lambda\,\rho(u, \theta), \qquad \rho(u, \theta) = \textstyle\sum_i
w_i\, \rho_z(f(u, x_i), f(\theta, x_i)). \]
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp

from .._base.results import RESULTS, failed, successful_if
from .._base.tree import split, structure
from .._base.types import Count, Params, Scalar
from .._geometry.distance import function_distance
from .._natural.natural_gradient import natural_gradient
from .._natural.outcome import is_traced, prepare
from .._problem.composite import Batch, Composite, check_batch, presented
from .._rows.pullback import MEMORY, at_point
from ..inverse._base import AbstractInverse, MoorePenrose
from ..solver import SVD
from ..solver._base import AbstractSolver
from .minimise import minimise


class ProximalStep(eqx.Module):
    """A step and its certificate. NaN where a number does not apply."""

    params: Params
    """The new point."""
    value: Scalar
    """The loss there."""
    residual: Scalar
    """The norm of what must vanish (the gradient of the inner problem), relative to the gradient of
    the loss at the old point.
    """
    least: Scalar
    """The least eigenvalue of the Hessian of the inner problem, relative to the largest: not
    negative at a minimum.
    """
    steps: Count
    """The number of inner steps."""
    result: RESULTS


def _open(problem: Composite, params: Params, batch: Any, **positive: Any):
    """Check the arguments; the loss on flat parameters."""
    for name, number in positive.items():
        if not isinstance(number, jax.core.Tracer) and not 0 < float(number) < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {number}.")
    problem, params, data, *_ = prepare(problem, params, batch, None, None, None, MEMORY)
    check_batch(problem, params, data)
    return problem, params, presented(problem, data)


def _loss(problem: Composite, params: Params, data: Batch):
    like, carried = structure(params), split(params)[1]
    whole = lambda flat: eqx.combine(like.unravel(flat), carried)
    return lambda flat: problem.value(problem.outputs(whole(flat), data.inputs), data), whole, like


def _close(step: ProximalStep, throw: bool) -> ProximalStep:
    if throw and not is_traced(step) and bool(failed(step.result)):
        raise RuntimeError(
            f"{RESULTS[step.result]} (residual {float(step.residual):.1e}; throw=False returns the state.)"
        )
    return step


def proximal_step(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    weight: Any,
    divergence: Callable[[Params, Params], Scalar] | None = None,
    rtol: float | None = None,
    max_steps: int = 100,
    throw: bool = True,
) -> ProximalStep:
    """argmin J(u) + weight · ρ(u, θ), minimised to the end. Dense in the Hessian: for problems of
    some hundred parameters.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, as for `natural_gradient`.
    - `weight`: λ > 0.
    - `divergence`: `divergence(u, params)` between parameters; if left out, that of the metric
        between the outputs, averaged by the measure.
    - `rtol`: the inner minimisation is done when its gradient has shrunk by this factor; eps^0.6 if
        left out.
    - `max_steps`: bound on the number of inner Newton steps.
    - `throw`: whether a failure raises; otherwise look at `result`.
    """
    problem, params, data = _open(problem, params, batch, weight=weight)
    return _close(
        _proximal(
            problem,
            params,
            data,
            jnp.asarray(weight, structure(params).dtype),
            divergence,
            rtol,
            max_steps,
        ),
        throw,
    )


@eqx.filter_jit
def _proximal(problem, params, data, weight, divergence, rtol, max_steps):
    loss, whole, like = _loss(problem, params, data)
    start = like.ravel(params)
    if divergence is None:
        proximity = lambda flat: function_distance(problem, whole(flat), params, data)
    else:
        proximity = lambda flat: jnp.asarray(divergence(whole(flat), params)).astype(start.dtype)
    rtol = float(jnp.finfo(start.dtype).eps) ** 0.6 if rtol is None else rtol
    scale = jnp.linalg.norm(jax.grad(loss)(start))
    found = minimise(
        lambda flat: loss(flat) + weight * proximity(flat), start, scale, rtol, max_steps
    )
    eps = jnp.sqrt(jnp.finfo(start.dtype).eps)
    value, slope = jax.value_and_grad(proximity)(start)
    curvature = jnp.linalg.eigvalsh(jax.hessian(proximity)(start))
    size = jnp.max(jnp.abs(curvature))
    diagonal = (
        (jnp.abs(value) <= eps * (1 + size))
        & jnp.all(jnp.abs(slope) <= eps * (1 + size))
        & (curvature[0] >= -eps * size)
    )
    result: Any = successful_if(found.converged & (found.least >= -eps), RESULTS.inner_unconverged)
    result = RESULTS.where(diagonal, result, RESULTS.not_a_divergence)
    relative = found.gradient / jnp.where(scale > 0, scale, 1.0)
    return ProximalStep(
        whole(found.point), loss(found.point), relative, found.least, found.steps, result
    )


def implicit_step(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    step: Any,
    rtol: float | None = None,
    max_steps: int = 100,
    throw: bool = True,
) -> ProximalStep:
    """Implicit gradient descent, u = θ - step · ∇J(u): the proximal step of half the squared
    Euclidean distance.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `step`: the step size, 1/λ.
    - `rtol`, `max_steps`, `throw`: as for `proximal_step`.
    """
    problem, params, data = _open(problem, params, batch, step=step)
    like = structure(params)
    weight = 1 / jnp.asarray(step, like.dtype)
    return _close(_proximal(problem, params, data, weight, _half_square, rtol, max_steps), throw)


def _half_square(u: Params, params: Params) -> Scalar:
    like = structure(params)
    return jnp.sum((like.ravel(u) - like.ravel(params)) ** 2) / 2


def linearised_proximal_step(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    weight: Any,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    throw: bool = True,
) -> ProximalStep:
    """θ - G⁺g/weight: the loss to first order, the divergence to second. This is natural gradient
    descent.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `weight`: λ > 0.
    - `inverse`, `solver`: as for `natural_gradient`.
    - `throw`: whether a failure raises; otherwise look at `result`.
    """
    _open(problem, params, batch, weight=weight)
    ng = natural_gradient(problem, params, batch, inverse=inverse, solver=solver, throw=throw)
    problem, params, data, *_ = prepare(problem, params, batch, inverse, solver, None, MEMORY)
    loss, whole, like = _loss(problem, params, presented(problem, data))
    flat = like.ravel(params) - like.ravel(ng.vector) / jnp.asarray(weight, like.dtype)
    nan = jnp.asarray(jnp.nan, like.dtype)
    return ProximalStep(
        whole(flat), loss(flat), ng.stats.residual, nan, jnp.asarray(1, jnp.int32), ng.result
    )


def damped_newton_step(
    problem: Composite, params: Params, batch: Any = None, *, weight: Any, throw: bool = True
) -> ProximalStep:
    """θ - (H + weight · G)⁺ g: loss and divergence to second order. Dense in H and G.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `weight`: λ > 0.
    - `throw`: whether a failure raises (a matrix that is not positive semi-definite has no
        minimum); otherwise look at `result`.
    """
    problem, params, data = _open(problem, params, batch, weight=weight)
    return _close(
        _damped_newton(problem, params, data, jnp.asarray(weight, structure(params).dtype)), throw
    )


@eqx.filter_jit
def _damped_newton(problem, params, data, weight):
    loss, whole, like = _loss(problem, params, data)
    start = like.ravel(params)
    g = jax.grad(loss)(start)
    matrix = jax.hessian(loss)(start) + weight * at_point(
        problem, params, data, MoorePenrose(), SVD()
    ).matrix().astype(start.dtype)
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    largest = jnp.max(jnp.abs(values))
    kept = jnp.abs(values) > start.size * jnp.finfo(start.dtype).eps * largest
    flat = start - vectors @ (
        jnp.where(kept, 1 / jnp.where(kept, values, 1.0), 0.0) * (vectors.T @ g)
    )
    least = values[0] / jnp.where(largest > 0, largest, 1.0)
    size = jnp.linalg.norm(g)
    residual = jnp.linalg.norm(matrix @ (start - flat) - g) / jnp.where(size > 0, size, 1.0)
    positive = least >= -jnp.sqrt(jnp.finfo(start.dtype).eps)
    result: Any = successful_if(positive, RESULTS.indefinite)
    result = RESULTS.where(jnp.all(jnp.isfinite(flat)), result, RESULTS.nonfinite_field)
    return ProximalStep(whole(flat), loss(flat), residual, least, jnp.asarray(1, jnp.int32), result)


def output_step(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    step: Any,
    max_steps: int = 50,
    throw: bool = True,
) -> ProximalStep:
    """Gradient descent on the outputs where the model is invertible: f(u) = z - step · M⁺c, solved
    for u by Newton's method.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point; as many outputs as parameters, all
        samples counted.
    - `step`: the step size.
    - `max_steps`: bound on the number of Newton steps.
    - `throw`: whether a failure raises; otherwise look at `result`.
    """
    problem, params, data = _open(problem, params, batch, step=step)
    out = eqx.filter_eval_shape(problem.outputs, params, data.inputs)
    outputs, size = structure(out).size, structure(params).size
    if outputs != size:
        raise ValueError(
            f"output_step needs an invertible model: {outputs} outputs for {size} parameters. linearised_proximal_step(...) does to first "
            "order what can be done."
        )
    return _close(
        _output(problem, params, data, jnp.asarray(step, structure(params).dtype), max_steps), throw
    )


@eqx.filter_jit
def _output(problem, params, data, step, max_steps):
    loss, whole, like = _loss(problem, params, data)
    z = problem.outputs(params, data.inputs)
    flat_z = structure(z)
    _, c = problem.value_and_differential(z, data)
    metric = problem.metric
    if data.inputs is None:
        ambient = metric.observe(None, jnp.asarray(0)).sharp(z, c)
    else:
        weights = problem.measure.weights(jax.tree.leaves(c)[0].shape[0], like.dtype)
        per_sample = jax.tree.map(lambda x: x / weights.reshape(-1, *[1] * (x.ndim - 1)), c)
        ambient = jax.vmap(lambda z, c: metric.sharp(z, c))(z, per_sample)
    goal = flat_z.ravel(z) - step * flat_z.ravel(ambient)
    residual = lambda flat: flat_z.ravel(problem.outputs(whole(flat), data.inputs)) - goal

    def body(carry):
        x, r, steps = carry
        x = x - jnp.linalg.solve(jax.jacfwd(residual)(x), r)
        return x, residual(x), steps + 1

    scale = 1 + jnp.linalg.norm(goal)
    tolerance = 100 * jnp.finfo(like.dtype).eps * scale
    start = like.ravel(params)
    unfinished = lambda carry: (jnp.linalg.norm(carry[1]) > tolerance) & (carry[2] < max_steps)
    x, r, steps = jax.lax.while_loop(
        unfinished, body, (start, residual(start), jnp.asarray(0, jnp.int32))
    )
    done = jnp.linalg.norm(r) <= 1e3 * tolerance
    result: Any = successful_if(done, RESULTS.not_invertible)
    return ProximalStep(
        whole(x),
        loss(x),
        jnp.linalg.norm(r) / scale,
        jnp.asarray(jnp.nan, like.dtype),
        steps,
        result,
    )
