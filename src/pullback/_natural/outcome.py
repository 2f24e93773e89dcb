"""Turns what was computed into a `RESULTS` code; on failure, locates the offending leaf or sample.

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

from .._base.axis import anywhere
from .._base.part import Part
from .._base.results import RESULTS, among, failed
from .._base.tree import all_finite, split
from .._base.types import Flat, Outputs, Params
from .._problem.batch import AnyBatch, Batch
from .._problem.composite import Composite, Objective
from .._problem.problem import AbstractObjective, AbstractProblem
from .._problem.validate import is_traced
from .._rows.block_root import BlockRoot
from .._rows.rows import AbstractRows, rows_at
from ..inverse._base import respond
from ..metric._base import AbstractLikelihood
from .certificate import tolerance
from .evaluate import Evaluation
from .factorised import Factorised
from .stats import Stats

RETRIED = (RESULTS.steep, RESULTS.nonfinite_vector, RESULTS.unconverged)
"""The results of a quick program that a careful one may better."""


class PrecisionWarning(UserWarning):
    """The arithmetic is too short for the condition of the problem."""


def outcome(
    evaluation: Evaluation,
    factorised: Factorised,
    vector: Flat,
    stats: Stats,
    check_samples: bool | Array = False,
) -> RESULTS:
    """Return the code of a solution; `check_samples` compares the batch with single samples."""
    no = jnp.asarray(False)
    rows, factors = factorised.rows, factorised.factors
    damped = factorised.damping is not None
    # Whatever is judged by singular values is judged where they were found.
    pieces = factorised.blocks or ((None, factorised),)
    plain, objective = evaluation.rows, evaluation.rows.objective
    differential = (evaluation.value, evaluation.differential)
    finite_inputs, finite_outputs = _finite_data(evaluation, plain)
    couples = no
    if check_samples is not False:
        mixes = lambda: mixes_samples(objective, plain.params, plain.outputs)
        couples = jax.lax.cond(check_samples, mixes, lambda: no)  # no sums over devices in there
    verdicts = [
        (~all_finite(plain.params), RESULTS.nonfinite_params),
        (~finite_inputs, RESULTS.nonfinite_batch),
        (~finite_outputs, RESULTS.nonfinite_outputs),
        (couples, RESULTS.coupled_samples),
        (~_all_admitted(evaluation), RESULTS.bad_targets),
        (~all_finite(differential), RESULTS.nonfinite_loss),
        (~is_metric(plain), RESULTS.bad_metric),
        (~rows.gauge.valid, RESULTS.bad_gauge),
        (~all_finite(evaluation.covector), RESULTS.nonfinite_jacobian),
        (no if damped else _saturated(evaluation), RESULTS.saturated),
        (no if damped else _any(_dropped(plain, piece) for _, piece in pieces), RESULTS.unresolved),
        (_any(_bad_filter(piece) for _, piece in pieces), RESULTS.bad_filter),
        (~factors.valid, RESULTS.bad_preconditioner),
        (evaluation.steep, RESULTS.steep),
        (~all_finite(vector), RESULTS.nonfinite_vector),
        (~(stats.residual <= tolerance(rows.dtype)), RESULTS.unconverged),
        (
            _any(_left_over(evaluation, *piece, vector, damped) for piece in pieces),
            RESULTS.vanished,
        ),
        ((stats.rank == 0) & (not damped), RESULTS.rank_zero),
    ]
    flags = [bad for bad, _ in verdicts]
    if rows.axis is not None:
        # What one device has found in its samples is so for all of them.
        flags = list(anywhere(jnp.stack(flags), rows.axis))
    result: Any = RESULTS.successful
    for bad, (_, code) in reversed(list(zip(flags, verdicts, strict=True))):
        result = RESULTS.where(bad, code, result)
    return result


def retried(result: RESULTS) -> bool:
    """Return whether a careful program is to be run after a quick one.

    So it is if the result is traced, because the model closes over something that is.
    """
    return is_traced(result) or bool(among(result, RETRIED))


def _finite_data(evaluation: Evaluation, rows: AbstractRows) -> tuple[Array, Array]:
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


def _all_admitted(evaluation: Evaluation) -> Array:
    """Return whether the targets of all samples are admitted."""
    objective = evaluation.objective
    parts = zip(objective.terms, objective.parts(evaluation.linear.outputs), strict=True)
    return _all_present(objective, [jnp.all(admitted(term, z)) for term, z in parts])


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
    # A covariance of equal scores is zero, not lost.
    if damped or evaluation.rows.centred:
        return jnp.asarray(False)
    spectrum, covector = piece.spectrum, evaluation.covector
    if part is not None:
        vector, covector = part.take(vector), part.take(covector)
    # A rank of zero may be asked for (`TruncatedRank(0)`); a solver may compute none.
    zero = jnp.where(spectrum.rank < 0, jnp.all(vector == 0), spectrum.largest == 0)
    return zero & jnp.any(covector != 0)


def is_metric(rows: AbstractRows) -> Array:
    """Return whether root and weights are finite; a logarithm of -inf is an absent row."""

    def fine(term):
        scale = term.log_scale
        return term.root.is_finite & jnp.all(~jnp.isnan(scale) & (scale != jnp.inf))

    return _all_present(rows.objective, [fine(term) for term in rows.terms])


def _bad_filter(piece: Factorised) -> Array:
    """Return whether a filter is negative or not finite on the spectrum that was found."""
    inverse, decomposition, rows = piece.inverse, piece.factors.decomposition, piece.rows
    if inverse.pseudo_inverse or inverse.damping is not None or decomposition is None:
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


def _nudged(params: Params, moved: Array) -> Params:
    """Return the parameters, each of them a little larger by another amount if `moved`."""
    moving, carried = split(params)

    def nudge(leaf):
        pattern = 1 + jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape) / 2
        return jnp.where(moved, leaf + 0.01 * pattern * (1 + jnp.abs(leaf)), leaf)

    return eqx.combine(jax.tree.map(nudge, moving), carried)


def _saturated(evaluation: Evaluation) -> Array:
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


def _dropped(rows: AbstractRows, piece: Factorised) -> Array:
    """Return whether the numerical zero of a solver hides rows of a saturated model."""
    spectrum = piece.spectrum
    if not (rows.graded and piece.inverse.cancels_weights):
        return jnp.asarray(False)
    # A solver without a cut-off (matrix-free) resolves half of the digits.
    half = rows.largest_log_scale + jnp.log(jnp.finfo(rows.dtype).eps) / 2
    resolution = jnp.where(spectrum.cutoff > 0, jnp.log(spectrum.cutoff), half)
    light = jnp.any(rows.active & (rows.log_scale < resolution))
    return light & ~spectrum.graded & (spectrum.rank < min(piece.rows.shape))


def raise_failure(
    result: RESULTS,
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    metric_batch: AnyBatch | None = None,
) -> None:
    """Raise a `RuntimeError` if a concrete result is a failure, with the place where it arose."""
    if bool(failed(result)):
        place = place_of(result, problem, params, batch, metric_batch)
        raise RuntimeError(f"{RESULTS[result]}{place}")


def place_of(
    result: RESULTS,
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    metric_batch: AnyBatch | None = None,
) -> str:
    """Return in words the leaf or the sample where a failure arose, as far as it has one."""
    if bool(result == RESULTS.nonfinite_params):
        return _bad_leaves(params, "params")
    labels = problem.at(batch).labels or ("",)
    others = [None] * len(labels) if metric_batch is None else metric_batch.parts
    for label, term, part, other in zip(labels, problem.terms, batch.parts, others, strict=True):
        found = _place(result, term, params, part, other)
        if found:
            return f" Term {label!r}:{found}" if label else found
    return ""


def _place(
    result: RESULTS, problem: Composite, params: Params, batch: Batch, metric_batch: Batch | None
) -> str:
    """Return the place of a failure in one term; empty if it is not there."""
    if bool(result == RESULTS.nonfinite_batch):
        return _bad_leaves(batch, "batch") or _bad_leaves(metric_batch, "metric_batch")
    if bool(result == RESULTS.nonfinite_outputs):
        return _bad_leaves(problem.outputs(params, batch.inputs), "outputs")
    if any(not x.is_fully_addressable for x in jax.tree.leaves(batch) if isinstance(x, jax.Array)):
        return ""  # no process sees all samples
    if bool(result == RESULTS.bad_targets):
        return _inadmissible(problem, params, batch)
    if bool(result == RESULTS.bad_metric):
        return _complaint(problem, params, batch if metric_batch is None else metric_batch)
    return ""


def _bad_leaves(tree, name: str) -> str:
    places = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if eqx.is_inexact_array(leaf) and not bool(jnp.all(jnp.isfinite(leaf))):
            places.append(f"{name}{jax.tree_util.keystr(path)} ({_first(leaf)})")
    return f" Found in {', '.join(places)}." if places else ""


def _first(leaf: Array) -> str:
    """Return in words where the first entry is that is not finite."""
    if leaf.is_fully_addressable or leaf.is_fully_replicated:
        return f"first at index {_index(np.asarray(leaf))}"
    mine = jax.process_index()
    for shard in leaf.addressable_shards:
        data = np.asarray(shard.data)
        if not np.all(np.isfinite(data)):
            starts = [cut.start or 0 for cut in shard.index]
            place = tuple(a + b for a, b in zip(starts, _index(data), strict=True))
            return f"at index {place}, process {mine}"
    return f"on another process than {mine}"


def _index(x: np.ndarray) -> tuple[int, ...]:
    """Return the index of the first entry that is not finite."""
    return tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])


def _inadmissible(problem: Composite, params: Params, batch: Batch) -> str:
    objective, metric = problem.at(batch), problem.metric
    bad = np.flatnonzero(~np.asarray(admitted(objective, objective.outputs(params))))
    if not bad.size or not isinstance(metric, AbstractLikelihood):
        return ""
    name = type(metric).__name__
    if not objective.has_data:
        targets = jax.tree.map(lambda y: np.asarray(y).tolist(), objective.batch.targets)
        return f" Targets {targets!r}; {name} admits {metric.support}."
    target = jax.tree.map(lambda y: np.asarray(y)[bad[0]].tolist(), objective.batch.targets)
    return f" Sample {bad[0]}: {target!r}; {name} admits {metric.support}. {bad.size} in all."


def _complaint(problem: Composite, params: Params, batch: Batch) -> str:
    objective = problem.at(batch)
    outputs = objective.outputs(params)
    (rows,) = rows_at(objective, params).terms
    if bool(rows.root.is_finite):
        return ""
    if not objective.has_data:
        return f" {objective.observed.complaint(outputs)}"
    if problem.metric.couples_samples:
        return f" {problem.metric.complaint(outputs)}"
    root = rows.root
    assert isinstance(root, BlockRoot)
    bad = np.flatnonzero(~np.asarray(jax.vmap(lambda root: root.is_finite)(root.roots)))
    if not bad.size:
        return ""
    take = lambda x: x[bad[0]] if eqx.is_array(x) else x
    targets = jax.tree.map(take, objective.batch.targets)
    words = problem.metric.observe(targets, jnp.asarray(bad[0])).complaint(
        jax.tree.map(take, outputs)
    )
    more = f" {bad.size} of {objective.count} samples in all." if bad.size > 1 else ""
    return f" Sample {bad[0]}: {words}{more}"


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
