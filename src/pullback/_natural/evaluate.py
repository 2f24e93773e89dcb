r"""A problem at a point, before anything is factorised.

\(z\), \(L\), \(c = \partial L/\partial z\), and \(c\) lifted to \(r\), \(Sr = c\).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.axis import anywhere, largest, smallest
from .._base.show import number
from .._base.tree import split
from .._base.types import Flat, OutputCovector, Params, Scalar
from .._base.vector import norm, probe
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractObjective, AbstractProblem
from .._problem.validate import check_inputs, check_state
from .._rows.linearise import Linearisation
from .._rows.rows import AbstractRows, Rows, linearise_at, rows_at
from .._rows.shared import SharedLinearisation
from .._rows.stacked import StackedLinearisation
from ..inverse._base import AbstractInverse
from ..metric._base import AbstractLikelihood
from ..solver._strategy import Strategy

CANCELS = 100
"""From which ‖S‖‖S⁺c‖/‖c‖ on a sample is not lifted where the inverse is damped."""


class Lifted(eqx.Module):
    """An output covector in the whitened space."""

    r: Array
    """r with S r = c, its grading divided out."""
    outside: OutputCovector | None
    """The part of c that enters as a parameter covector; `None` if there cannot be any.

    It is what lies outside the range of M, and samples that are too steep to be lifted."""
    share: Scalar
    """The fraction of c inside."""
    steep: Array
    """Whether a sample is too steep to be lifted, and was lifted all the same."""


class Evaluation(eqx.Module):
    """A problem at a point, before anything is factorised."""

    objective: AbstractObjective
    """The problem on the batch of the loss."""
    rows: AbstractRows
    """A, on the batch of the metric; Euclidean gauge."""
    linear: Linearisation | StackedLinearisation | SharedLinearisation
    """The model on the batch of the loss."""
    value: Scalar
    losses: PyTree
    """The loss of each term, without its weight; `None` for a problem of one term."""
    differential: OutputCovector
    covector: Flat
    """g = Jᵀc + ∂R, R the penalty if there is one."""
    lifted: Array | None
    """r, its grading divided out; `None` if the metric is averaged over another batch."""
    outside: Flat | None
    """What enters as a parameter covector; `None` if there is nothing."""
    share: Scalar
    """The fraction of the output covector in the range of the metric."""
    steep: Array
    """Whether a sample is too steep to be lifted, and was lifted all the same."""
    underflow: Scalar
    """log|Jᵀ of what is outside|, where that is not zero and underflows; -inf elsewhere."""

    def __repr__(self) -> str:
        return f"Evaluation(loss {number(self.value, '.6g')}, {self.rows._text()})"


def evaluate(
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    strategy: Strategy,
    metric_batch: AnyBatch | None = None,
    penalty: Callable[[Params], Scalar] | None = None,
    *,
    careful: bool = True,
) -> Evaluation:
    """Linearise, differentiate the loss, lift; R(θ) = `penalty` is added to the loss."""
    no = jnp.asarray(False)
    check_inputs(batch)
    objective = problem.at(batch)
    if metric_batch is None:
        rows = rows_at(objective, params, strategy.memory)
        linear, objective = rows.linear, rows.objective
    else:
        check_inputs(metric_batch)
        rows = rows_at(problem.at(metric_batch), params, strategy.memory)
        objective, linear = linearise_at(objective, params)
    check_state(params, linear.state)
    value, c = objective.problem.value_and_differential(linear.outputs, objective.batch)
    if metric_batch is None:
        covector = linear.pull(c).astype(rows.dtype)
        lifted = lift(rows, c, strategy.inverse, own=True, careful=careful)
        r, share, steep = lifted.r, lifted.share, lifted.steep
        outside, underflow = _pull_outside(rows, lifted.outside)
    else:
        covector, underflow = _pull(linear.pull, c, rows)
        r, outside, share, steep = None, covector, jnp.asarray(jnp.nan, rows.dtype), no
    if penalty is not None:
        moving, carried = split(params)
        added = lambda p: _one_number(penalty(eqx.combine(p, carried)))
        more, p = jax.value_and_grad(added)(moving)
        p = rows.structure.ravel_covector(p).astype(rows.dtype)
        value = value + more.astype(value.dtype)
        covector = covector + p
        outside = p if outside is None else outside + p
    losses = objective.problem.losses(linear.outputs, objective.batch)
    return Evaluation(
        objective, rows, linear, value, losses, c, covector, r, outside, share, steep, underflow
    )


def _one_number(found: Any) -> Array:
    """Return what a penalty returned; raise a `ValueError` unless it is one real number."""
    number = jnp.asarray(found) if eqx.is_array_like(found) else None
    if number is None or number.shape != () or not jnp.issubdtype(number.dtype, jnp.floating):
        got = type(found).__name__ if number is None else f"{number.dtype}{list(number.shape)}"
        raise ValueError(
            f"penalty(params) must return one real number, a floating array of shape (), got {got}."
            " A sum does: penalty=lambda params: jnp.sum(params**2)."
        )
    return number


def absorb(evaluation: Evaluation, active: Array) -> Evaluation:
    """Return the same problem with g as a parameter covector where no row of A is active.

    Rows that are differences, and no more than rounding, are absent: nothing of c is in the range
    of such a metric. A damped inverse has g/λ.
    """
    if not evaluation.rows.centred or evaluation.lifted is None:
        return evaluation
    absent = ~jnp.any(active)
    r = jnp.where(absent, 0.0, evaluation.lifted)
    outside = 0.0 if evaluation.outside is None else evaluation.outside
    outside = jnp.where(absent, evaluation.covector, outside)
    where = lambda x: (x.lifted, x.outside)
    return eqx.tree_at(where, evaluation, (r, outside), is_leaf=lambda x: x is None)


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
    noise = jnp.sqrt(jnp.finfo(own.dtype).eps) * norm(g)
    e = jnp.where(norm(e) > noise, e, 0.0)
    lifted = None if evaluation.lifted is None else alpha * evaluation.lifted
    outside = e if evaluation.outside is None else alpha * evaluation.outside + e
    where = lambda x: (x.covector, x.lifted, x.outside)
    return eqx.tree_at(where, evaluation, (g, lifted, outside), is_leaf=lambda x: x is None)


def lift(
    rows: AbstractRows,
    c: OutputCovector,
    inverse: AbstractInverse,
    own: bool = False,
    careful: bool = True,
) -> Lifted:
    """Return r, what of c enters as a parameter covector, and the fraction of c inside the range.

    `own` says that c is the differential of the loss. Where that is the likelihood of the metric,
    c is lifted in closed form. To split off steep samples is much to compile, and rarely needed:
    without `careful` they are lifted, and it is said.
    """
    parts = rows.objective.parts(c)
    found = [
        _lift(term, part, inverse, own and term.objective.problem.loss is None, careful)
        for term, part in zip(rows.terms, parts, strict=True)
    ]
    lifted = _stacked(rows, parts, found) if rows.objective.labels else found[0]
    if rows.axis is None:
        return lifted
    steep = anywhere(lifted.steep, rows.axis)
    return Lifted(rows.gathered(lifted.r), lifted.outside, lifted.share, steep)


def _stacked(
    rows: AbstractRows, parts: Sequence[OutputCovector], found: Sequence[Lifted]
) -> Lifted:
    """Return the lifted covectors of several terms as one."""
    outside = None
    if any(lifted.outside is not None for lifted in found):
        zero = lambda part: jax.tree.map(jnp.zeros_like, part)
        filled = [
            zero(part) if lifted.outside is None else lifted.outside
            for part, lifted in zip(parts, found, strict=True)
        ]
        outside = rows.objective.pack(tuple(filled))
    sizes = [
        norm(term.linear.like.ravel(part), rows.axis).astype(rows.dtype)
        for term, part in zip(rows.terms, parts, strict=True)
    ]
    inside = [size * lifted.share for size, lifted in zip(sizes, found, strict=True)]
    return Lifted(
        r=jnp.concatenate([lifted.r for lifted in found]),
        outside=outside,
        share=fraction(norm(jnp.stack(inside)), norm(jnp.stack(sizes))),
        steep=jnp.any(jnp.stack([lifted.steep for lifted in found])),
    )


def _lift(
    rows: Rows, c: OutputCovector, inverse: AbstractInverse, own: bool, careful: bool
) -> Lifted:
    """Return the lifted covector of one term, `own` if the metric lifts it in closed form."""
    objective, problem, dtype = rows.objective, rows.objective.problem, rows.dtype
    metric, one, axis = problem.metric, jnp.ones((), dtype), objective.axis
    by_sample = objective.has_data and not metric.couples_samples
    weights = problem.measure.weights(objective.count, dtype) if by_sample else None
    if rows.weight is not None:
        weights = rows.weight.astype(dtype) * (one if weights is None else weights)
    if own:
        assert isinstance(metric, AbstractLikelihood)
        lifted = jax.vmap(metric.likelihood_lift) if objective.has_data else metric.likelihood_lift
        r = lifted(rows.outputs, objective.batch.targets).ravel().astype(dtype)
        everything = metric.nonsingular or metric.score_in_range
    else:
        r = rows.root.unit_lift(_unweighted(c, weights)).astype(dtype)
        everything = metric.nonsingular and problem.measure.positive
    r = jnp.where(rows.active, r, 0.0)
    steep, unsplit = None, jnp.asarray(False)
    # Weights cancel only where the metric keeps them apart from its rows.
    if not ((inverse.cancels_weights and rows.graded) or metric.constant):
        damped = inverse.damping is not None or inverse.awaits_damping
        steep = _steep(rows, r, _unweighted(c, weights), damped and not rows.graded)
        if not careful:
            steep, unsplit = None, jnp.any(steep)
    if everything and steep is None:
        return Lifted(r, None, one, unsplit)
    like = rows.linear.like

    def inside_of(r):
        graded = jnp.where(rows.active, jnp.exp(2 * rows.log_scale) * r, 0.0)
        return rows.root.unit(graded.astype(like.dtype))

    if steep is not None:
        if own and everything:
            # In closed form c is exact; that of a derivative is so to the rounding of p - 1 only.
            exact = lambda x, y: jnp.where(jnp.isfinite(x), x, y)
            c = jax.tree.map(exact, inside_of(r), c)
        # Steep is a sample, or, where a metric couples them, a row.
        r = jnp.where(steep[:, None], 0.0, r.reshape(steep.shape[0], -1)).ravel()
    inside = inside_of(r)
    certain = rows.root.unreached(c)
    if steep is not None and by_sample:
        whole = lambda x, y: jnp.where(steep.reshape(-1, *(1,) * (x.ndim - 1)), x, y)
        certain = jax.tree.map(whole, c, certain)
    outside = jax.tree.map(jnp.subtract, c, inside)
    rest, total = (
        norm(like.ravel(jax.tree.map(jnp.subtract, outside, certain)), axis),
        norm(like.ravel(c), axis),
    )
    # Rounding of c itself is not a part outside the range; that of p - 1 at a saturated p is
    # absolute, 1e-16 of a loss of order one.
    light = one if weights is None else weights
    terms = norm(light, axis if by_sample else None).astype(like.dtype) if rows.graded else 0.0
    noise = 64 * jnp.finfo(like.dtype).eps * (total + terms)
    outside = jax.tree.map(lambda x, y: jnp.where(rest > noise, x, y), outside, certain)
    outside = rows.masked(outside)
    some = norm(like.ravel(outside), axis) > 0
    share = jnp.where(some, fraction(norm(like.ravel(inside), axis), total), 1.0)
    return Lifted(r, outside, one if everything else share.astype(dtype), unsplit)


def _unweighted(c: OutputCovector, weights: Array | None) -> OutputCovector:
    """Return the differential of the loss of each sample.

    The root of M_i w_i is S_i √w_i, and c is of the weighted loss: one √w_i is in the grading, the
    other one comes off here.
    """
    if weights is None:
        return c
    safe = jnp.where(weights > 0, weights, 1.0)
    if weights.ndim == 0:
        return jax.tree.map(lambda x: x / safe.astype(x.dtype), c)
    divide = lambda x: x / safe.astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
    return jax.tree.map(divide, c)


def _steep(rows: Rows, r: Array, c: OutputCovector, cancels: bool) -> Array:
    """Return the samples whose r is so large that it is not lifted; c is not weighted.

    A misclassified sample of a saturated model has r = c/√p, up to infinity, on a row √p Â that
    rounds to zero beside the others. Where the weights do not cancel, a solution keeps the absolute
    rounding eps |r|; the covector Jᵀc of the sample is of order one. `cancels` asks for samples
    whose M is nearly singular, too.
    """
    r = jnp.where(rows.active, jnp.exp(rows.root.log_scale.astype(r.dtype)) * r, 0.0)
    alone = not rows.objective.has_data
    if rows.objective.problem.metric.couples_samples or (alone and not cancels):
        return ~jnp.isfinite(r)
    # Without data all rows are those of one sample.
    count, dtype, steepest = (
        1 if alone else rows.count,
        rows.linear.like.dtype,
        float(jnp.finfo(r.dtype).eps) ** -0.25,
    )
    norms = lambda x: jnp.max(jnp.abs(x).reshape(count, -1), axis=1, initial=0.0).astype(r.dtype)
    lifted = norms(r)
    given = functools.reduce(jnp.maximum, [norms(x) for x in jax.tree.leaves(c)])
    some = jnp.isfinite(lifted) & (lifted > 0) & (given > 0)
    factor = lifted / jnp.where(some, given, 1.0)
    # The heaviest sample is the one that is lifted least.
    axis = rows.objective.axis
    least = smallest(jnp.min(jnp.where(some, factor, jnp.inf), initial=jnp.inf), axis)
    light = factor > steepest * least
    usual = largest(jnp.max(jnp.where(some & ~light, lifted, 0.0), initial=0.0), axis)
    steep = ~jnp.isfinite(lifted) | (some & light & (lifted > steepest * usual))
    if not cancels:
        return steep
    # Along an eigenvector of M whose eigenvalue is nearly zero, a root that is not graded gives c
    # back as a small difference of large numbers.
    size = functools.reduce(
        jnp.maximum, [norms(x) for x in jax.tree.leaves(rows.root.unit(probe(r.size, dtype)))]
    )
    return steep | (some & (factor * size > CANCELS))


def pull_outside(rows: AbstractRows, outside: OutputCovector | None) -> Flat | None:
    """Return Jᵀ of what is outside; the model is not passed where that is zero."""
    return _pull_outside(rows, outside)[0]


def _pull_outside(rows: AbstractRows, outside: OutputCovector | None) -> tuple[Flat | None, Scalar]:
    """Return Jᵀ of what is outside, and `Evaluation.underflow`."""
    none = jnp.asarray(-jnp.inf, rows.dtype)
    if outside is None:
        return None, none
    something = jnp.any(jnp.stack([jnp.any(x != 0) for x in jax.tree.leaves(outside)]))
    something = anywhere(something, rows.axis)
    pull = lambda c: _pull(rows.pull_output, c, rows)
    nothing = lambda c: (jnp.zeros(rows.shape[1], rows.dtype), none)
    return jax.lax.cond(something, pull, nothing, outside)


def _pull(
    pull: Callable[[OutputCovector], Flat], c: OutputCovector, rows: AbstractRows
) -> tuple[Flat, Scalar]:
    """Return Jᵀc, and the logarithm of its size where it underflows."""
    return scaled_pull(pull, c, rows, lambda g: jnp.max(jnp.abs(g), initial=0.0))


def scaled_pull(
    pull: Callable[[OutputCovector], Any],
    c: OutputCovector,
    rows: AbstractRows,
    size_of: Callable[[Any], Scalar],
) -> tuple[Any, Scalar]:
    """Return Jᵀc, flat or in leaves, and the logarithm of its largest entry where it underflows.

    c is divided by a power of two, which is exact, so that nothing underflows on the way.
    """
    top = functools.reduce(
        jnp.maximum, [jnp.max(jnp.abs(x), initial=0.0) for x in jax.tree.leaves(c)]
    )
    top = jax.lax.stop_gradient(largest(top, rows.axis))
    info = jnp.finfo(top.dtype)
    power = jax.lax.reduce_precision(top, exponent_bits=info.nexp, mantissa_bits=0)
    # Of what is not finite nothing can be said here; it has verdicts of its own.
    power = jnp.where(jnp.isfinite(power), jnp.clip(power, info.tiny, 0.25 / info.tiny), 1.0)
    unit = pull(jax.tree.map(lambda x: x / power.astype(x.dtype), c))
    unit = jax.tree.map(lambda x: x.astype(rows.dtype), unit)
    power = power.astype(rows.dtype)
    size = size_of(jax.lax.stop_gradient(unit))
    lost = (size > 0) & (size * power < jnp.finfo(rows.dtype).tiny)
    log_size = jnp.log(jnp.where(lost, size, 1.0)) + jnp.log(power)
    scaled = jax.tree.map(lambda x: x * power, unit)
    return scaled, jnp.where(lost, log_size, -jnp.inf)


def fraction(a: Scalar, b: Scalar) -> Scalar:
    """Return a/b of two norms, and 1 for 0/0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 1.0)
