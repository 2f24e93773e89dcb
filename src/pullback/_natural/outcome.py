"""Turns what was computed into a `RESULTS` code.

The code is the first thing that went wrong, in the order in which things were computed. Whether the
solution is one is decided by its certificate (`Stats.residual`), whoever's solver it was.
"""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.axis import Axis, anywhere
from .._base.pairs import real_dtype, turned
from .._base.part import Part
from .._base.results import RESULTS, among
from .._base.tree import all_finite, split
from .._base.types import Flat, Outputs, Params, Scalar
from .._base.vector import norm, probe
from .._problem.composite import Objective
from .._problem.problem import AbstractObjective
from .._problem.validate import is_traced
from .._rows.rows import AbstractRows, Rows
from ..inverse._base import AbstractInverse, respond
from ..metric._base import AbstractLikelihood
from ..solver._base import Spectrum
from .blur import is_blurred
from .certificate import tolerance
from .evaluate import Evaluation
from .factorised import Factorised, SecondSolve
from .stats import Stats

RETRIED = (RESULTS.steep, RESULTS.blurred, RESULTS.nonfinite_vector, RESULTS.unconverged)
"""The results of a quick program that a careful one may better."""


class PrecisionWarning(UserWarning):
    """The floating-point type is too short for the condition number of the problem."""


def outcome(
    evaluation: Evaluation,
    factorised: Factorised,
    vector: Flat,
    stats: Stats,
    check_samples: bool | Array = False,
    others: Sequence[SecondSolve] = (),
) -> RESULTS:
    """Return the code of a solution; `check_samples` compares the batch with single samples.

    `others` are the other solutions of a step, whose certificates are in `stats`.

    A traced one does so wherever the residual is too large as well: an earlier step may have failed
    for another reason before it was checked.
    """
    no = jnp.asarray(False)
    rows, factors = factorised.rows, factorised.factors
    damped = factorised.damping is not None
    # Whatever is judged by singular values is judged where they were found.
    pieces = factorised.blocks or ((None, factorised),)
    plain, objective = evaluation.rows, evaluation.rows.objective
    top = jnp.max(jnp.abs(vector), initial=0.0)
    differential = (evaluation.value, evaluation.differential)
    finite_inputs, finite_outputs = finite_data(evaluation, plain)
    couples = no
    certified = stats.residual <= tolerance(rows.dtype)
    if check_samples is not False:
        mixes = lambda: mixes_samples(objective, plain.params, plain.outputs)
        doubtful = check_samples | ~certified
        couples = jax.lax.cond(doubtful, mixes, lambda: no)  # no sums over devices in there
    verdicts = [
        (~all_finite(plain.params), RESULTS.nonfinite_params),
        (~finite_inputs, RESULTS.nonfinite_batch),
        (~finite_outputs, RESULTS.nonfinite_outputs),
        (couples, RESULTS.coupled_samples),
        (not_holomorphic(plain), RESULTS.not_holomorphic),
        (~all_admitted(evaluation), RESULTS.bad_targets),
        (~all_finite(differential), RESULTS.nonfinite_loss),
        (~is_metric(plain), RESULTS.bad_metric),
        (~rows.gauge.valid, RESULTS.bad_gauge),
        (~all_finite(evaluation.covector), RESULTS.nonfinite_jacobian),
        (no if damped else saturated(evaluation), RESULTS.saturated),
        (
            no
            if damped
            else _any(dropped(plain, x.spectrum, x.inverse, x.rows.shape) for _, x in pieces),
            RESULTS.unresolved,
        ),
        (_any(_bad_filter(piece) for _, piece in pieces), RESULTS.bad_filter),
        (~factors.valid, RESULTS.bad_preconditioner),
        (evaluation.steep, RESULTS.steep),
        (
            _any(_blurred(evaluation, *piece, vector, certified) for piece in pieces),
            RESULTS.blurred,
        ),
        (~all_finite((vector, *(x.vector for x in others))), RESULTS.nonfinite_vector),
        (underflows(evaluation.underflow, factorised.damping, top), RESULTS.underflow),
        (no if damped else nothing_left(evaluation, top), RESULTS.underflow),
        (~certified, RESULTS.unconverged),
        (
            _any(_left_over(evaluation, *piece, vector, damped) for piece in pieces),
            RESULTS.vanished,
        ),
        ((stats.rank == 0) & (not damped), RESULTS.rank_zero),
    ]
    return first(verdicts, rows.axis)


def first(verdicts: Sequence[tuple[Array, Any]], axis: Axis | None) -> RESULTS:
    """Return the first code whose flag is set, on whichever device; success if none is."""
    flags = [bad for bad, _ in verdicts]
    if axis is not None:
        # What one device has found in its samples is so for all of them.
        flags = list(anywhere(jnp.stack(flags), axis))
    result: Any = RESULTS.successful
    for bad, (_, code) in reversed(list(zip(flags, verdicts, strict=True))):
        result = RESULTS.where(bad, code, result)
    return result


def retried(result: RESULTS) -> bool:
    """Return whether a careful program is to be run after a quick one.

    So it is if the result is traced, because the model closes over something that is.
    """
    return is_traced(result) or bool(among(result, RETRIED))


def finite_data(evaluation: Evaluation, rows: AbstractRows) -> tuple[Array, Array]:
    """Return whether inputs and targets, and outputs, are finite, of the terms that are present."""
    mine, other = rows.objective, evaluation.objective
    batches = zip(mine.batch.parts, other.batch.parts, strict=True)
    outputs = zip(mine.parts(rows.outputs), other.parts(evaluation.linear.outputs), strict=True)
    return present_finite(mine, batches), present_finite(mine, outputs)


def present_finite(objective: AbstractObjective, parts: Iterable[Any]) -> Array:
    """Return whether what each term has is finite; that of an absent term does not matter."""
    return _all_present(objective, [all_finite(part) for part in parts])


def _all_present(objective: AbstractObjective, fine: Sequence[Array]) -> Array:
    """Return whether something holds for every term that is present."""
    pairs = zip(fine, objective.weights, strict=True)
    held = [found if weight is None else found | (weight == 0) for found, weight in pairs]
    return held[0] if len(held) == 1 else jnp.all(jnp.stack(held))


def all_admitted(evaluation: Evaluation) -> Array:
    """Return whether the targets of all samples are admitted."""
    return admitted_all(evaluation.objective, evaluation.linear.outputs)


def admitted_all(objective: AbstractObjective, outputs: Outputs) -> Array:
    """Return whether the targets of all samples are admitted at some outputs."""
    parts = zip(objective.terms, objective.parts(outputs), strict=True)
    return _all_present(objective, [jnp.all(admitted(term, z)) for term, z in parts])


def unusable(
    objective: AbstractObjective, params: Params, outputs: Outputs
) -> list[tuple[Array, Any]]:
    """Return the verdicts on a problem at a point, of which nothing is solved for yet."""
    targets = (~admitted_all(objective, outputs), RESULTS.bad_targets)
    return [*nonfinite(objective, params, outputs, objective.batch.parts), targets]


def nonfinite(
    objective: AbstractObjective, params: Params, outputs: Outputs, parts: Iterable[Any]
) -> list[tuple[Array, Any]]:
    """Return the verdicts on the numbers of a point, `parts` those of the batches."""
    return [
        (~all_finite(params), RESULTS.nonfinite_params),
        (~present_finite(objective, parts), RESULTS.nonfinite_batch),
        (~present_finite(objective, objective.parts(outputs)), RESULTS.nonfinite_outputs),
    ]


def admitted(objective: Objective, outputs: Outputs) -> Array:
    """Return which samples have targets that the likelihood admits, if that is the loss."""
    metric = objective.problem.metric
    if objective.problem.loss is not None or not isinstance(metric, AbstractLikelihood):
        return jnp.ones(objective.count, bool)
    admits = jax.vmap(metric.admits) if objective.has_data else metric.admits
    return jnp.atleast_1d(admits(outputs, objective.batch.targets))


def _any(found: Iterable[Array]) -> Array:
    return jnp.any(jnp.stack(list(found)))


def _left_over(
    evaluation: Evaluation, part: Part | None, piece: Factorised, vector: Flat, damped: bool
) -> Array:
    """Return whether a gradient is lost with a metric that is zero; a damped inverse keeps it."""
    if damped:
        return jnp.asarray(False)
    spectrum, covector = piece.spectrum, evaluation.covector
    if part is not None:
        vector, covector = part.take(vector), part.take(covector)
    # A rank of zero may be asked for (`TruncatedRank(0)`); a solver may compute none.
    zero = jnp.where(spectrum.rank < 0, jnp.all(vector == 0), spectrum.largest == 0)
    lost = zero & jnp.any(covector != 0)
    # A covariance of equal scores is zero, not lost: its rows were found to be rounding.
    return lost & jnp.any(piece.given.active) if evaluation.rows.centred else lost


def underflows(size: Scalar, damping: Scalar | None, top: Scalar) -> Array:
    """Return whether a parameter covector is lost whose part of the solution is not negligible.

    `size` is `Evaluation.underflow`, `top` the largest entry of the solution.
    """
    if damping is None:
        return size > -jnp.inf
    info = jnp.finfo(top.dtype)
    seen = jnp.maximum(info.eps * top, info.tiny)
    # (G + λ)⁻¹g is at most g/λ.
    return size - jnp.log(damping) > jnp.log(seen)


def nothing_left(evaluation: Evaluation, top: Scalar) -> Array:
    """Return whether a solution is zero, and the product Jᵀc of a differential may underflow.

    Below the root of the smallest number it does even where J is as small as a metric allows.
    `top` is the largest entry of the solution.
    """
    sizes = [jnp.max(jnp.abs(x), initial=0.0) for x in jax.tree.leaves(evaluation.differential)]
    normal = [x >= float(jnp.finfo(x.dtype).tiny) ** 0.5 for x in sizes]
    some, safe = (jnp.any(jnp.stack(x)) for x in ([x > 0 for x in sizes], normal))
    axis = evaluation.rows.axis
    return (top == 0) & anywhere(some, axis) & ~anywhere(safe, axis)


def _blurred(
    evaluation: Evaluation, part: Part | None, piece: Factorised, vector: Flat, certified: Array
) -> Array:
    """Return whether the rounding of a mean that was taken off the rows decides the solution."""
    own = vector if part is None else part.take(vector)
    return is_blurred(piece, own, evaluation.lifted, certified)


def is_metric(rows: AbstractRows) -> Array:
    """Return whether root and weights are finite; a logarithm of -inf is an absent row."""

    def fine(term):
        scale = term.log_scale
        return term.root.is_finite & jnp.all(~jnp.isnan(scale) & (scale != jnp.inf))

    return _all_present(rows.objective, [fine(term) for term in rows.terms])


def _bad_filter(piece: Factorised) -> Array:
    """Return whether a filter is negative or not finite on the spectrum that was found."""
    inverse, decomposition, rows = piece.inverse, piece.factors.decomposition, piece.rows
    if piece.damping is not None:
        # One that is traced was not checked when the inverse was built, nor is that of a step rule.
        return ~(jnp.isfinite(piece.damping) & (piece.damping >= 0))
    if inverse.pseudo_inverse or decomposition is None:
        return jnp.asarray(False)
    h = respond(inverse, decomposition.s, rows.shape, decomposition.resolution).h
    return jnp.any(~(jnp.isfinite(h) & (h >= 0)))


def mixes_samples(objective: AbstractObjective, params: Params, outputs: Outputs) -> Array:
    """Return whether the model of a term that is present mixes samples that are not declared."""
    parts = zip(objective.terms, objective.parts(outputs), strict=True)
    found = [_mixes(term, params, z) for term, z in parts]
    return found[0] if len(found) == 1 else ~_all_present(objective, [~x for x in found])


def _mixes(objective: Objective, params: Params, outputs: Outputs) -> Array:
    """Return whether a sample alone has other outputs than the same sample in its batch.

    Outputs that are all zero, as those of a last layer that starts at zero, are the same in any
    company: they are compared at other parameters nearby.
    """
    if not objective.by_sample:
        return jnp.asarray(False)
    here = jax.tree.leaves(split(outputs)[0])
    empty = jnp.any(jnp.stack([jnp.all(z == 0) for z in here]))
    point = _nudged(params, empty)
    whole = split(objective.outputs(point))[0]
    arrays, rest = eqx.partition(objective.batch.inputs, eqx.is_array)
    one = lambda x: objective.problem.one(point, eqx.combine(x, rest))
    alone = jax.vmap(lambda x: split(one(x))[0])(arrays)

    def differs(a, b):
        scale = jnp.max(jnp.abs(b), initial=0.0)
        # Written so that a NaN differs: one sample alone has no deviation to be divided by.
        return jnp.any(~(jnp.abs(a - b) <= 10 * jnp.sqrt(jnp.finfo(b.dtype).eps) * scale))

    compared = jax.tree.map(differs, alone, whole)
    # Nearby, the model may be undefined.
    return jnp.any(jnp.stack(jax.tree.leaves(compared))) & all_finite(whole)


def not_holomorphic(rows: AbstractRows) -> Array:
    """Return whether J(iδ) is not iJ(δ) in a term that is declared holomorphic."""
    declared = [term for term in rows.terms if term.objective.problem.holomorphic]
    return _any(map(_not_linear, declared)) if declared else jnp.asarray(False)


def _not_linear(rows: Rows) -> Array:
    """Return whether J(iδ) is not iJ(δ) for a random direction δ."""
    linear = rows.linear
    v = probe(rows.shape[1], linear.params.dtype)
    push = lambda v: linear.like.ravel(linear.pushforward(v))
    a, b = push(turned(v)), turned(push(v))
    small = 10 * jnp.sqrt(jnp.finfo(rows.dtype).eps) * (norm(a) + norm(b))
    # Written so that a NaN is not: it has a verdict of its own.
    return norm(a - b) > small


def _nudged(params: Params, moved: Array) -> Params:
    """Return the parameters, each of them a little larger by another amount if `moved`."""
    moving, carried = split(params)

    def nudge(leaf):
        numbers = jnp.arange(leaf.size, dtype=real_dtype(leaf.dtype))
        pattern = 1 + jnp.cos(numbers).reshape(leaf.shape) / 2
        change = 0.01 * pattern * (1 + jnp.abs(leaf))
        return jnp.where(moved, leaf + change.astype(leaf.dtype), leaf)

    return eqx.combine(jax.tree.map(nudge, moving), carried)


def saturated(evaluation: Evaluation) -> Array:
    """Return whether a differential has underflowed, and no metric lifts it in closed form."""
    found = [jnp.asarray(False)]
    for term in evaluation.rows.terms:
        if (
            evaluation.lifted is not None
            and term.graded
            and term.objective.problem.loss is not None
        ):
            tiny = jnp.log(jnp.finfo(term.root.log_scale.dtype).tiny)
            found.append(jnp.any(term.active & (2 * term.root.log_scale < tiny)))
    return found[-1] if len(found) < 3 else _any(found)


def dropped(
    rows: AbstractRows, spectrum: Spectrum, inverse: AbstractInverse, shape: tuple[int, int]
) -> Array:
    """Return whether the numerical zero of a solver hides rows of a saturated model."""
    if not (rows.graded and inverse.cancels_weights):
        return jnp.asarray(False)
    # A solver without a cut-off (matrix-free) resolves half of the digits.
    half = rows.largest_log_scale + jnp.log(jnp.finfo(rows.dtype).eps) / 2
    resolution = jnp.where(spectrum.cutoff > 0, jnp.log(spectrum.cutoff), half)
    light = jnp.any(rows.active & (rows.log_scale < resolution))
    hidden = light & (spectrum.rank < min(shape)) | spectrum.hides
    return hidden & ~spectrum.graded


def warn_of_precision(stats: Stats, stacklevel: int) -> None:
    """Warn if single precision is too short for the condition number, or for the damping."""
    dtype = stats.largest.dtype
    if jnp.finfo(dtype).bits >= 64:
        return
    limit = 1 / float(np.sqrt(jnp.finfo(dtype).eps))
    wide = 'jax.config.update("jax_enable_x64", True) before any array is made'
    words = None
    if float(stats.condition) > limit:
        words = (
            f"the condition number of A is {float(stats.condition):.1e}, beyond 1/sqrt(eps) = "
            f"{limit:.1e} of {dtype}: rank and direction are uncertain. Work in double precision: "
            f"{wide}."
        )
    elif bool(stats.fallback):
        words = (
            f"the damping is below the rounding of what {stats.solver} factorises in {dtype}: "
            f"singular values below about 1/{limit:.0e} of the largest are lost. Damp more, use "
            f"solver=pullback.solver.SVD(), or solver=pullback.solver.Mixed() with {wide}."
        )
    if words is not None:
        warnings.warn(words, PrecisionWarning, stacklevel=stacklevel)
