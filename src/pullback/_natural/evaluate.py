r"""A problem at a point, before anything is factorised.

\(z\), \(L\), \(c = \partial L/\partial z\), and \(c\) lifted to \(r\), \(Sr = c\).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.tree import split
from .._base.types import Flat, OutputCovector, Params, Scalar
from .._problem.batch import Batch
from .._problem.composite import Composite, Objective
from .._problem.validate import check_inputs, check_outputs
from .._rows.linearise import Linearisation, linearise
from .._rows.rows import Rows, rows_at
from ..metric._base import AbstractLikelihood


class Lifted(eqx.Module):
    """An output covector in the whitened space."""

    r: Array
    """r with S r = c, its grading divided out."""
    outside: OutputCovector | None
    """The part of c outside the range of M; `None` if there cannot be any."""
    share: Scalar
    """The fraction of c inside."""


class Evaluation(eqx.Module):
    """A problem at a point, before anything is factorised."""

    objective: Objective
    """The problem on the batch of the loss."""
    rows: Rows
    """A, on the batch of the metric; Euclidean gauge."""
    linear: Linearisation
    """The model on the batch of the loss."""
    value: Scalar
    differential: OutputCovector
    covector: Flat
    """g = Jᵀc + ∂R, R the penalty if there is one."""
    lifted: Array | None
    """r, its grading divided out; `None` if the metric is averaged over another batch."""
    outside: Flat | None
    """What enters as a parameter covector; `None` if there is nothing."""
    share: Scalar
    """The fraction of the output covector in the range of the metric."""


def evaluate(
    problem: Composite,
    params: Params,
    batch: Batch,
    metric_batch: Batch | None = None,
    memory: int | None = None,
    penalty: Callable[[Params], Scalar] | None = None,
) -> Evaluation:
    """Linearise, differentiate the loss, lift; R(θ) = `penalty` is added to the loss."""
    check_inputs(batch)
    objective = problem.at(batch)
    if metric_batch is None:
        rows = _rows(objective, params, memory)
        linear = rows.linear
    else:
        check_inputs(metric_batch)
        rows = _rows(problem.at(metric_batch), params, memory)
        moving, carried = split(params)
        outputs = lambda p: objective.outputs(eqx.combine(p, carried))
        linear = linearise(outputs, moving, rows.structure)
        check_outputs(objective, linear.outputs)
    value, c = problem.value_and_differential(linear.outputs, objective.batch)
    covector = linear.pull(c).astype(rows.dtype)
    if metric_batch is None:
        lifted = lift(rows, c)
        r, share = lifted.r, lifted.share
        outside = None if lifted.outside is None else rows.pull_output(lifted.outside)
    else:
        r, outside, share = None, covector, jnp.asarray(jnp.nan, rows.dtype)
    if penalty is not None:
        moving, carried = split(params)
        more, p = jax.value_and_grad(lambda p: penalty(eqx.combine(p, carried)))(moving)
        p = rows.structure.ravel(p).astype(rows.dtype)
        value = value + more.astype(value.dtype)
        covector = covector + p
        outside = p if outside is None else outside + p
    return Evaluation(objective, rows, linear, value, c, covector, r, outside, share)


def _rows(objective: Objective, params: Params, memory: int | None) -> Rows:
    return rows_at(objective, params) if memory is None else rows_at(objective, params, memory)


def follow(evaluation: Evaluation, g: Flat) -> Evaluation:
    """Return the same problem with another gradient, g = α (the own one) + e.

    What is along the own one keeps its lift, which squares no condition number; e is a parameter
    covector, and none if it is no more than the rounding of two ways to differentiate one loss.
    """
    own = evaluation.covector
    g = g.astype(own.dtype)
    square = jnp.vdot(own, own)
    alpha = jnp.where(square > 0, jnp.vdot(g, own) / jnp.where(square > 0, square, 1.0), 1.0)
    e = g - alpha * own
    noise = jnp.sqrt(jnp.finfo(own.dtype).eps) * jnp.linalg.norm(g)
    e = jnp.where(jnp.linalg.norm(e) > noise, e, 0.0)
    lifted = None if evaluation.lifted is None else alpha * evaluation.lifted
    outside = e if evaluation.outside is None else alpha * evaluation.outside + e
    where = lambda x: (x.covector, x.lifted, x.outside)
    return eqx.tree_at(where, evaluation, (g, lifted, outside), is_leaf=lambda x: x is None)


def lift(rows: Rows, c: OutputCovector) -> Lifted:
    """Return r, what of c is outside the range of M, and the fraction inside.

    c is not used where the metric lifts its own likelihood in closed form.
    """
    objective, problem, dtype = rows.objective, rows.objective.problem, rows.dtype
    one = jnp.ones((), dtype)
    if problem.loss is None:
        assert isinstance(problem.metric, AbstractLikelihood)
        r = jax.vmap(problem.metric.likelihood_lift)(rows.outputs, objective.batch.targets).ravel()
        return Lifted(jnp.where(rows.active, r.astype(dtype), 0.0), None, one)
    r = rows.root.unit_lift(c).astype(dtype)
    weights = one
    if objective.has_data and not problem.metric.couples_samples:
        # The root of M_i w_i is S_i √w_i, and c is of the weighted loss: one √w_i is in the
        # grading, the other one comes off here.
        weights = problem.measure.weights(objective.count, dtype)
        m = rows.shape[0]
        repeated = jnp.repeat(weights, m // weights.shape[0], total_repeat_length=m)
        r = r / jnp.where(repeated > 0, repeated, 1.0)
    r = jnp.where(rows.active, r, 0.0)
    if problem.metric.nonsingular and problem.measure.positive:
        return Lifted(r, None, one)
    like = rows.linear.like
    graded = jnp.where(rows.active, jnp.exp(2 * rows.log_scale) * r, 0.0)
    inside = rows.root.unit(graded.astype(like.dtype))
    outside = jax.tree.map(jnp.subtract, c, inside)
    size, total = jnp.linalg.norm(like.ravel(outside)), jnp.linalg.norm(like.ravel(c))
    # Rounding of c itself (p - 1 at a saturated p, absolute 1e-16 of a loss of order one) is not a
    # part outside the range.
    noise = 64 * jnp.finfo(like.dtype).eps * (total + jnp.linalg.norm(weights).astype(like.dtype))
    outside = jax.tree.map(lambda x: jnp.where(size > noise, x, jnp.zeros_like(x)), outside)
    share = jnp.where(size > noise, fraction(jnp.linalg.norm(like.ravel(inside)), total), 1.0)
    return Lifted(r, outside, share.astype(dtype))


def fraction(a: Scalar, b: Scalar) -> Scalar:
    """Return a/b of two norms, and 1 for 0/0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 1.0)
