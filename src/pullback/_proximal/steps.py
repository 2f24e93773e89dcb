r"""Proximal, implicit, linearised, damped Newton and output steps, each with its certificate.

\[ u_\star = \arg\min_u\ J(u) + \lambda\,\rho(u, \theta), \qquad \rho(u, \theta) = \textstyle\sum_i
w_i\, \rho_z(f(u, x_i), f(\theta, x_i)). \]
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike

from .._base.checks import integer, positive
from .._base.pairs import Pairs
from .._base.results import RESULTS, successful_if
from .._base.tree import structure
from .._base.types import Flat, OutputVector, Params, Scalar
from .._compat.xla import jit
from .._natural.natural_gradient import natural_gradient
from .._natural.outcome import mixes_samples
from .._problem.batch import AnyBatch
from .._problem.composite import Objective
from .._problem.paired import paired
from .._problem.problem import AbstractProblem
from .._problem.validate import check_present, validate
from .._rows.rows import rows_at
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractSolver
from .minimise import Minimum, minimise, shortest, units
from .point import Point, ProximalStep, raised

Divergence = Callable[[Params, Params], Scalar]


def proximal_step(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    weight: ArrayLike,
    divergence: Divergence | None = None,
    rtol: float | None = None,
    max_steps: int = 100,
    throw: bool = True,
) -> ProximalStep:
    """Return argmin J(u) + weight · ρ(u, θ), minimised to the end.

    The Hessian is dense: for problems of some hundred parameters.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, as for `natural_gradient`.
    - `weight`: λ > 0.
    - `divergence`: `divergence(u, params)` between parameters; defaults to that of the metric
        between the outputs, averaged by the measure.
    - `rtol`: the inner minimisation ends when its gradient has shrunk by this factor; defaults to
        eps^0.6.
    - `max_steps`: bound on the number of inner Newton steps.
    - `throw`: whether a failure raises; with `False`, check `result`.
    """
    positive("proximal_step", "weight", weight)
    integer("proximal_step", "max_steps", max_steps, least=0)
    params, data = validate(problem, params, batch)
    if divergence is None and not problem.at(data).has_divergence:
        names = problem.at(data).without_divergence
        raise ValueError(
            f"proximal_step: {names} is a metric without a divergence. "
            "Pass one between parameters, proximal_step(..., divergence=lambda u, params: ...)."
        )
    weight = jnp.asarray(weight, structure(params).dtype)
    return raised(_proximal(problem, params, data, weight, divergence, rtol, max_steps), throw)


def implicit_step(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    step: ArrayLike,
    rtol: float | None = None,
    max_steps: int = 100,
    throw: bool = True,
) -> ProximalStep:
    """Return the implicit gradient step, u = θ - step · ∇J(u).

    It is the proximal step of half the squared Euclidean distance.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `step`: the step size, 1/λ.
    - `rtol`, `max_steps`, `throw`: as for `proximal_step`.
    """
    positive("implicit_step", "step", step)
    integer("implicit_step", "max_steps", max_steps, least=0)
    params, data = validate(problem, params, batch)
    weight = 1 / jnp.asarray(step, structure(params).dtype)
    return raised(_proximal(problem, params, data, weight, half_square, rtol, max_steps), throw)


def half_square(u: Params, params: Params) -> Scalar:
    """Return half the squared Euclidean distance."""
    like = structure(params)
    return jnp.sum((like.ravel(u) - like.ravel(params)) ** 2) / 2


@jit
def _proximal(
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    weight: Scalar,
    divergence: Divergence | None,
    rtol: float | None,
    max_steps: int,
) -> ProximalStep:
    point = Point(problem, params, batch)
    start = point.flat
    outputs = point.objective.outputs
    here = outputs(params)

    def proximity(flat):
        u = point.whole(flat)
        if divergence is None:
            return point.objective.divergence(outputs(u), here)
        return jnp.asarray(divergence(u, params)).astype(start.dtype)

    tolerance = float(jnp.finfo(start.dtype).eps) ** 0.6 if rtol is None else rtol
    slope = jax.grad(point.value)(start)
    inner = lambda flat: point.value(flat) + weight * proximity(flat)
    found = minimise(inner, start, slope, tolerance, max_steps)
    result = _judge(found, proximity, start)
    return point.step(found.point, found.gradient, found.least, found.steps, result)


def _judge(found: Minimum, proximity: Callable[[Flat], Scalar], start: Flat) -> Any:
    """Return whether a minimum was found, and of a divergence: zero to first order at the start."""
    eps = jnp.sqrt(jnp.finfo(start.dtype).eps)
    value, slope = jax.value_and_grad(proximity)(start)
    curvature = jnp.linalg.eigvalsh(jax.hessian(proximity)(start))
    size = jnp.max(jnp.abs(curvature))
    vanishes = (jnp.abs(value) <= eps * (1 + size)) & jnp.all(jnp.abs(slope) <= eps * (1 + size))
    minimum = found.converged & (found.least >= -eps)
    result = successful_if(minimum, RESULTS.inner_unconverged)
    convex = curvature[0] >= -eps * size
    return RESULTS.where(vanishes & convex, result, RESULTS.not_a_divergence)


def linearised_proximal_step(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    weight: ArrayLike,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    throw: bool = True,
) -> ProximalStep:
    """Return θ - G⁺g/weight: the loss to first order, the divergence to second.

    This is natural gradient descent.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `weight`: λ > 0.
    - `inverse`, `solver`: as for `natural_gradient`.
    - `throw`: whether a failure raises; with `False`, check `result`.
    """
    positive("linearised_proximal_step", "weight", weight)
    params, data = validate(problem, params, batch)
    ng = natural_gradient(problem, params, data, inverse=inverse, solver=solver, throw=throw)
    like = structure(params)
    step = like.ravel(ng.vector) / jnp.asarray(weight, like.dtype)
    return _along(problem, params, data, step, ng.stats.residual, ng.result)


@jit
def _along(
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    step: Flat,
    residual: Scalar,
    result: RESULTS,
) -> ProximalStep:
    """Return the record of a step against a known direction."""
    point = Point(problem, params, batch)
    return point.step(point.flat - step, residual, point.nan, 1, result)


def damped_newton_step(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    weight: ArrayLike,
    throw: bool = True,
) -> ProximalStep:
    """Return θ - (H + weight · G)⁺ g: loss and divergence to second order. H and G are dense.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `weight`: λ > 0.
    - `throw`: whether a failure raises (a matrix that is not positive semi-definite has no
        minimum); with `False`, check `result`.
    """
    positive("damped_newton_step", "weight", weight)
    params, data = validate(problem, params, batch)
    weight = jnp.asarray(weight, structure(params).dtype)
    return raised(_damped_newton(problem, params, data, weight), throw)


@jit
def _damped_newton(
    problem: AbstractProblem, params: Params, batch: AnyBatch, weight: Scalar
) -> ProximalStep:
    point = Point(problem, params, batch)
    start = point.flat
    eps = jnp.finfo(start.dtype).eps
    g = jax.grad(point.value)(start)
    metric = rows_at(point.objective, params).gram().astype(start.dtype)
    matrix = jax.hessian(point.value)(start) + weight * metric
    # Beside a parameter in nanometres, one in metres would count as flat.
    unit = units(jnp.diagonal(matrix))
    matrix, g = unit[:, None] * (matrix + matrix.T) / 2 * unit[None], unit * g
    values, vectors = jnp.linalg.eigh(matrix)
    largest = jnp.max(jnp.abs(values))
    kept = jnp.abs(values) > start.size * eps * largest
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1.0), 0.0)
    delta = vectors @ (inverse * (vectors.T @ g))
    least = values[0] / jnp.where(largest > 0, largest, 1.0)
    size = jnp.linalg.norm(g)
    residual = jnp.linalg.norm(matrix @ delta - g) / jnp.where(size > 0, size, 1.0)
    flat = start - shortest(unit * delta, unit[:, None] * vectors, kept)
    # A negative eigenvalue that counts, however small beside the largest, leads uphill.
    result = successful_if(~jnp.any(kept & (values < 0)), RESULTS.indefinite)
    result = RESULTS.where(jnp.all(jnp.isfinite(flat)), result, RESULTS.nonfinite_field)
    # G is formed sample by sample.
    mixed = mixes_samples(point.objective, params, point.objective.outputs(params))
    result = RESULTS.where(mixed, RESULTS.coupled_samples, result)
    return point.step(flat, residual, least, 1, result)


def output_step(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    step: ArrayLike,
    max_steps: int = 50,
    throw: bool = True,
) -> ProximalStep:
    """Return the gradient step on the outputs of an invertible model: f(u) = z - step · M⁺c.

    Newton's method solves for u.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point; as many outputs as parameters, all
        samples counted.
    - `step`: the step size.
    - `max_steps`: bound on the number of Newton steps.
    - `throw`: whether a failure raises; with `False`, check `result`.
    """
    positive("output_step", "step", step)
    integer("output_step", "max_steps", max_steps, least=0)
    params, data = validate(problem, params, batch)
    like = structure(params)
    outputs = structure(eqx.filter_eval_shape(problem.outputs, params, data.inputs))
    if outputs.size != like.size:
        raise ValueError(
            f"output_step needs an invertible model: {outputs.size} outputs for {like.size} "
            "parameters. linearised_proximal_step(...) does to first order what can be done."
        )
    check_present(problem.at(data), "step on the outputs")
    found = _output(problem, params, data, jnp.asarray(step, like.dtype), max_steps)
    return raised(found, throw)


@jit
def _output(
    problem: AbstractProblem, params: Params, batch: AnyBatch, step: Scalar, max_steps: int
) -> ProximalStep:
    point = Point(problem, params, batch)
    z = point.objective.outputs(params)
    like = structure(z)
    asked = step * like.ravel(_ambient(point, z))
    goal = like.ravel(z) - asked
    residual = lambda flat: like.ravel(point.objective.outputs(point.whole(flat))) - goal

    def body(carry):
        x, r, steps = carry
        x = x - jnp.linalg.solve(jax.jacfwd(residual)(x), r)
        return x, residual(x), steps + 1

    # Each output by its own size: beside one of 1e15 the others would be rounding.
    terms = jnp.abs(jax.jacfwd(residual)(point.flat)) @ jnp.abs(point.flat)
    size = jnp.abs(goal) + jnp.abs(asked) + terms
    eps = jnp.finfo(point.like.dtype).eps
    rounding = 100 * eps * size
    unfinished = lambda carry: jnp.any(jnp.abs(carry[1]) > rounding) & (carry[2] < max_steps)
    first = (point.flat, residual(point.flat), jnp.asarray(0, jnp.int32))
    x, r, steps = jax.lax.while_loop(unfinished, body, first)
    enough = jnp.maximum(1e3 * rounding, jnp.sqrt(eps) * jnp.abs(asked))
    result = successful_if(jnp.all(jnp.abs(r) <= enough), RESULTS.not_invertible)
    left = jnp.max(jnp.abs(r) / jnp.where(size > 0, size, 1.0))
    return point.step(x, left, point.nan, steps, result)


def _ambient(point: Point, z: Any) -> OutputVector:
    """Return M⁺c, the ambient gradient of the loss at the outputs; the weight of a term cancels."""
    objective = point.objective
    parts = zip(objective.terms, objective.parts(z), strict=True)
    return objective.pack(tuple(_ambient_of(term, z, point.like.dtype) for term, z in parts))


def _ambient_of(objective: Objective, z: Any, dtype: Any) -> OutputVector:
    """Return the ambient gradient of one term."""
    pairs = Pairs.of(z)
    if pairs is not None:
        found = _ambient_of(paired(objective, (pairs,)), pairs.real(z), dtype)
        return pairs.whole(found)
    problem, metric = objective.problem, objective.problem.metric
    _, c = problem.value_and_differential(z, objective.batch)
    if not objective.has_data:
        return objective.observed.sharp(z, c)
    weights = problem.measure.weights(objective.count, dtype)
    if metric.couples_samples:
        return metric.weigh(weights).sharp(z, c)
    arrays, rest = eqx.partition((z, c, objective.batch.targets), eqx.is_array)

    def one(sample, weight, index):
        z, c, y = eqx.combine(sample, rest)
        # c is of the weighted loss, and M of one sample is not weighted.
        per_sample = jax.tree.map(lambda x: x / weight.astype(x.dtype), c)
        return metric.observe(y, index).sharp(z, per_sample)

    return jax.vmap(one)(arrays, weights, jnp.arange(objective.count))
