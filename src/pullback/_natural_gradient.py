r"""The formula: \(\delta = A^+ r + G^+ g_x\), the natural parameter gradient of a composite problem.

\(c = \partial L/\partial z\) is lifted to \(r\), \(Sr = c\). If part of \(c\) is outside the range of \(M\), what that part pulls back to, \(g_x = J^\top(c - Sr)\), is solved
as a parameter covector, so that \(\delta = G^+ J^\top c\) always; the share is reported. So is a gradient whose metric is averaged over another
batch (`metric_batch`): there \(g_x = J^\top c\) and there is no \(r\).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._composite import Batch, Composite, check_batch, sample_count
from ._derivative import attach, stop
from ._diagnostics import Stats, largest_log_scale, measure, ratio
from ._inverse import AbstractInverse, Tikhonov
from ._judge import Evidence, is_traced, judge, prepare, raise_failure, warn_of_precision
from ._linearise import Linearisation, linearise
from ._pullback import MEMORY, PullbackMetric, at_point
from ._results import RESULTS, failed
from ._types import Covector, Flat, OutputCovector, OutputVector, Params, Scalar, Vector
from .metric._base import AbstractLikelihood
from .solver._base import AbstractSolver, Factorised, Whitened, whiten


class NaturalGradient(eqx.Module):
    """A natural gradient and what is known of it. Steepest *ascent*: step along `-vector`."""

    vector: Vector
    """δ, a vector on the parameters; `None` where the parameters carry a leaf that is not a floating array."""
    value: Scalar
    """L, the loss."""
    covector: Covector
    """g = Jᵀc, the ordinary gradient."""
    pushforward: OutputVector
    """J δ, how the outputs move: the projection of the ambient gradient on what the model can do."""
    result: RESULTS
    stats: Stats


class Assembled(eqx.Module):
    """A problem at a point, before anything is factorised."""

    metric: PullbackMetric
    linear: Linearisation
    """The model on the batch of the loss."""
    batch: Batch
    value: Scalar
    differential: OutputCovector
    covector: Flat
    """g = Jᵀc + ∂R, R the penalty if there is one."""
    lifted: Array | None
    """r, its grading divided out; `None` if the metric is averaged over another batch."""
    outside: Flat | None
    """What enters as a parameter covector; `None` if there is nothing."""
    share: Scalar
    """The share of the output covector in the range of the metric."""


def assemble(
    problem: Composite,
    params: Params,
    batch: Batch,
    metric_batch: Batch | None,
    inverse: AbstractInverse,
    solver: AbstractSolver,
    memory: int,
    penalty: Callable[[Params], Scalar] | None = None,
) -> Assembled:
    """Linearise, differentiate the loss, lift.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `metric_batch`: what the metric is averaged over, if not over `batch`.
    - `inverse`, `solver`: which inverse, and how.
    - `memory`: bound in bytes on the working storage of Jacobian blocks.
    - `penalty`: R(θ), added to the loss.
    """
    # Shapes are checked while tracing, so that a second call does not trace the model again.
    check_batch(problem, params, batch)
    if metric_batch is not None:
        check_batch(problem, params, metric_batch)
    metric = at_point(problem, params, batch if metric_batch is None else metric_batch, inverse, solver, memory)
    if metric_batch is None:
        linear, batch = metric.linear, metric.batch
    else:
        linear = linearise(lambda flat: problem.outputs(metric._params(flat), batch.inputs), metric.point, metric.structure)
    value, c = problem.value_and_differential(linear.outputs, batch)
    covector = linear.pull(c).astype(metric.dtype)
    if metric_batch is None:
        r, c_outside, share = _lift(metric, c)
        g = None if c_outside is None else linear.pull(c_outside).astype(metric.dtype)
    else:
        r, g, share = None, covector, jnp.asarray(jnp.nan, metric.dtype)
    if penalty is not None:
        more, p = jax.value_and_grad(lambda flat: penalty(metric._params(flat)))(metric.point)
        p = p.astype(metric.dtype)
        value, covector, g = value + more.astype(value.dtype), covector + p, p if g is None else g + p
    return Assembled(metric, linear, batch, value, c, covector, r, g, share)


def compute(
    problem: Composite,
    params: Params,
    batch: Batch,
    metric_batch: Batch | None,
    inverse: AbstractInverse,
    solver: AbstractSolver,
    memory: int,
    check: bool,
) -> NaturalGradient:
    """The natural gradient, as a pure function of arrays.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point.
    - `metric_batch`: what the metric is averaged over, if not over `batch`.
    - `inverse`, `solver`: which inverse, and how.
    - `memory`: bound in bytes on the working storage of Jacobian blocks.
    - `check`: whether to compare the batched outputs with those of single samples.
    """
    a = assemble(problem, params, batch, metric_batch, inverse, solver, memory)
    metric, r, g = a.metric, a.lifted, a.outside
    solver = solver.resolve(whiten(metric, inverse), inverse)

    # Undamped, a common factor of A cancels: divide it out, or a batch that is saturated as a whole would underflow.
    shift = jnp.zeros((), metric.dtype) if isinstance(inverse, Tikhonov) else stop(largest_log_scale(metric))
    scaled = eqx.tree_at(lambda m: m.log_scale, metric, metric.log_scale - shift)
    g = None if g is None else jnp.exp(-2 * shift) * g
    factorised = stop(scaled).factorise(stop(inverse), solver)
    operator = whiten(scaled, inverse)
    eta = _solve(factorised, operator, inverse, r, g)
    vector = operator.gauge.lower(eta)
    pulled = None if g is None else factorised.operator.gauge.pull(stop(g))
    stats = stop(measure(factorised, stop(eta), None if r is None else stop(r), pulled, a.share, shift))
    result = judge(Evidence(metric, a.linear, a.batch, a.value, a.differential, a.covector, vector, r), factorised, stats, check)
    pushforward = a.linear.pushforward(vector.astype(metric.structure.dtype))
    tree = metric.structure.unravel
    return NaturalGradient(tree(vector), a.value, tree(a.covector), pushforward, result, stats)


def _lift(metric: PullbackMetric, c: OutputCovector) -> tuple[Array, OutputCovector | None, Scalar]:
    """r without its grading, the part of c outside the range of M (`None` if there cannot be any), and the share inside."""
    problem, batch = metric.problem, metric.batch
    one = jnp.ones((), metric.dtype)
    if problem.loss is None:
        assert isinstance(problem.metric, AbstractLikelihood)
        r = jax.vmap(problem.metric.likelihood_lift)(metric.outputs, batch.targets).ravel()
        return jnp.where(metric.active, r.astype(metric.dtype), 0.0), None, one
    r = metric.root.unit_lift(c).astype(metric.dtype)
    weights = jnp.ones((), metric.dtype)
    if batch.inputs is not None and not problem.metric.couples_samples:
        weights = problem.measure.weights(sample_count(metric.outputs), metric.dtype)
        rows = jnp.repeat(weights, metric.rows // weights.shape[0], total_repeat_length=metric.rows)
        r = r / jnp.where(rows > 0, rows, 1.0)
    r = jnp.where(metric.active, r, 0.0)
    if problem.metric.nonsingular and problem.measure.positive:
        return r, None, one
    graded = jnp.where(metric.active, jnp.exp(2 * metric.log_scale) * r, 0.0)
    inside = metric.root.unit(graded.astype(metric.linear.like.dtype))
    outside = jax.tree.map(jnp.subtract, c, inside)
    like = metric.linear.like
    size, total = jnp.linalg.norm(like.ravel(outside)), jnp.linalg.norm(like.ravel(c))
    # Rounding of c itself (p - 1 at a saturated p, absolute 1e-16 of a loss of order one) is not a part outside the range.
    noise = 64 * jnp.finfo(like.dtype).eps * (total + jnp.linalg.norm(weights).astype(like.dtype))
    outside = jax.tree.map(lambda x: jnp.where(size > noise, x, jnp.zeros_like(x)), outside)
    share = jnp.where(size > noise, ratio(jnp.linalg.norm(like.ravel(inside)), total), 1.0)
    return r, outside, share.astype(metric.dtype)


def _solve(factorised: Factorised, operator: Whitened, inverse: AbstractInverse, r: Array | None, g: Flat | None) -> Flat:
    """The solution in orthonormal coordinates of the gauge, with its derivative."""
    rows, size = operator.shape
    r = jnp.zeros(rows, operator.metric.dtype) if r is None else r
    pulled = jnp.zeros(size, operator.metric.dtype) if g is None else operator.gauge.pull(g)
    eta = factorised.factors.lifted(stop(r))
    if g is not None:
        eta = eta + factorised.factors.covector(stop(pulled))
    return attach(stop(eta), operator, inverse, r, pulled, factorised=factorised)


def natural_gradient(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    metric_batch: Any = None,
    memory: int = MEMORY,
    throw: bool = True,
) -> NaturalGradient:
    """The exact natural gradient of a composite problem.

    **Arguments:**

    - `problem`: model, loss, metric and measure.
    - `params`: the point, any pytree; floating arrays move, everything else is carried.
    - `batch`: `(inputs, targets)`, `(inputs,)`, or `None` for a model without data.
    - `inverse`: which generalised inverse; `MoorePenrose()` if left out. Nothing is damped unless asked for.
    - `solver`: how it is computed; `solver.Auto()` if left out.
    - `metric_batch`: `(inputs,)` or `(inputs, targets)` to average the metric over, if not over `batch`.
    - `memory`: bound in bytes on the working storage of Jacobian blocks; the result does not depend on it.
    - `throw`: whether a failure raises; otherwise look at `result`. Inside `jit` it raises through a host callback: pass `False` there
        if the arrays are sharded over devices.
    """
    args = prepare(problem, params, batch, inverse, solver, metric_batch, memory)
    traced = is_traced(args)
    ng = _jitted(*args, memory=memory, check=not traced)
    if traced:
        return eqx.tree_at(lambda n: n.value, ng, ng.result.error_if(ng.value, failed(ng.result))) if throw else ng
    if throw:
        raise_failure(ng.result, problem, *args[1:4])
    warn_of_precision(ng.stats, stacklevel=3)
    return ng


_jitted = eqx.filter_jit(compute)


def pullback(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    memory: int = MEMORY,
) -> PullbackMetric:
    """The pullback metric of a problem at a point: a linear operator, nothing dense until asked.

    **Arguments:**

    - `problem`: model, metric and measure; the loss is not looked at.
    - `params`: the point.
    - `batch`: `(inputs,)` or `(inputs, targets)`, or `None` for a model without data.
    - `inverse`: the default inverse of `sharp`, `project` and `rank`; `MoorePenrose()` if left out.
    - `solver`: the default solver; `solver.Auto()` if left out.
    - `memory`: bound in bytes on the working storage of Jacobian blocks.
    """
    problem, params, data, _, inverse, solver = prepare(problem, params, batch, inverse, solver, None, memory)
    check_batch(problem, params, data)
    return at_point(problem, params, data, inverse, solver, memory)
