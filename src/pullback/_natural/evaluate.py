r"""A problem at a point, before anything is factorised: \(z\), \(L\), \(c = \partial L/\partial
z\), and \(c\) lifted to \(r\), \(Sr = c\).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.tree import split
from .._base.types import Flat, OutputCovector, Params, Scalar
from .._problem.composite import Batch, Composite, check_batch, sample_count
from .._rows.linearise import Linearisation, linearise
from .._rows.pullback import PullbackMetric, at_point
from ..inverse._base import AbstractInverse
from ..metric._base import AbstractLikelihood
from ..solver._base import AbstractSolver
from .stats import ratio


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
    """Linearise, differentiate the loss, lift."""
    # Shapes are checked while tracing, so that a second call does not trace the model again.
    check_batch(problem, params, batch)
    if metric_batch is not None:
        check_batch(problem, params, metric_batch)
    metric = at_point(
        problem, params, batch if metric_batch is None else metric_batch, inverse, solver, memory
    )
    if metric_batch is None:
        linear, batch = metric.linear, metric.batch
    else:
        moving, carried = split(params)
        linear = linearise(
            lambda moving: problem.outputs(eqx.combine(moving, carried), batch.inputs),
            moving,
            metric.structure,
        )
    value, c = problem.value_and_differential(linear.outputs, batch)
    covector = linear.pull(c).astype(metric.dtype)
    if metric_batch is None:
        r, c_outside, share = lift(metric, c)
        g = None if c_outside is None else linear.pull(c_outside).astype(metric.dtype)
    else:
        r, g, share = None, covector, jnp.asarray(jnp.nan, metric.dtype)
    if penalty is not None:
        moving, carried = split(params)
        more, p = jax.value_and_grad(lambda moving: penalty(eqx.combine(moving, carried)))(moving)
        p = metric.structure.ravel(p).astype(metric.dtype)
        value, covector, g = (
            value + more.astype(value.dtype),
            covector + p,
            p if g is None else g + p,
        )
    return Assembled(metric, linear, batch, value, c, covector, r, g, share)


def lift(metric: PullbackMetric, c: OutputCovector) -> tuple[Array, OutputCovector | None, Scalar]:
    """r without its grading, the part of c outside the range of M (`None` if there cannot be any),
    and the share inside.
    """
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
    # Rounding of c itself (p - 1 at a saturated p, absolute 1e-16 of a loss of order one) is not a
    # part outside the range.
    noise = 64 * jnp.finfo(like.dtype).eps * (total + jnp.linalg.norm(weights).astype(like.dtype))
    outside = jax.tree.map(lambda x: jnp.where(size > noise, x, jnp.zeros_like(x)), outside)
    share = jnp.where(size > noise, ratio(jnp.linalg.norm(like.ravel(inside)), total), 1.0)
    return r, outside, share.astype(metric.dtype)
