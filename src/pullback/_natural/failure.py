"""Raises for a `RESULTS` code that is a failure, and locates the offending leaf or sample."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.pairs import Pairs
from .._base.results import RESULTS, failed
from .._base.types import Params
from .._compat.processes import everywhere
from .._problem.batch import AnyBatch, Batch
from .._problem.composite import Composite, Objective
from .._problem.layout import here
from .._problem.padding import bare
from .._problem.paired import paired
from .._problem.problem import AbstractProblem
from .._rows.block_root import BlockRoot
from .._rows.rows import rows_at
from ..metric._base import AbstractLikelihood
from .outcome import admitted


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
        # A declaration that is wrong is an argument that is.
        kind = ValueError if bool(result == RESULTS.not_holomorphic) else RuntimeError
        raise kind(f"{RESULTS[result]}{place}")


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
    labels = problem.labels or ("",)
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
        other = None if metric_batch is None else bare(metric_batch)
        return _bad_leaves(bare(batch), "batch") or _bad_leaves(other, "metric_batch")
    if bool(result == RESULTS.nonfinite_outputs):
        return _bad_leaves(problem.outputs(params, bare(batch).inputs), "outputs")
    if any(not x.is_fully_addressable for x in jax.tree.leaves(batch) if isinstance(x, jax.Array)):
        return ""  # no process sees all samples
    params, batch = here(problem, (params, batch))
    if metric_batch is not None:
        _, metric_batch = here(problem, (params, metric_batch))
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
    """Return in words where the first entry is that is not finite; every process is told."""
    if leaf.is_fully_addressable or leaf.is_fully_replicated:
        return f"first at index {_index(np.asarray(leaf))}"
    mine = [0] * (1 + leaf.ndim)
    for shard in leaf.addressable_shards:
        data = np.asarray(shard.data)
        if not np.all(np.isfinite(data)):
            starts = [cut.start or 0 for cut in shard.index]
            mine = [1, *(a + b for a, b in zip(starts, _index(data), strict=True))]
            break
    told = everywhere(mine)
    place = int(np.argmax(told[:, 0]))
    return f"first at index {tuple(told[place, 1:].tolist())}, process {place}"


def _index(x: np.ndarray) -> tuple[int, ...]:
    """Return the index of the first entry that is not finite."""
    return tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])


def _inadmissible(problem: Composite, params: Params, batch: Batch) -> str:
    objective, metric = _real(problem, params, batch), problem.metric
    bad = np.flatnonzero(~np.asarray(admitted(objective, objective.outputs(params))))
    if not bad.size or not isinstance(metric, AbstractLikelihood):
        return ""
    name = type(metric).__name__
    if not objective.has_data:
        targets = jax.tree.map(lambda y: np.asarray(y).tolist(), objective.batch.targets)
        return f" Targets {targets!r}; {name} admits {metric.support}."
    target = jax.tree.map(lambda y: np.asarray(y)[bad[0]].tolist(), objective.batch.targets)
    return f" Sample {bad[0]}: {target!r}; {name} admits {metric.support}. {bad.size} in all."


def _real(problem: Composite, params: Params, batch: Batch) -> Objective:
    """Return the problem on a batch, with pairs in the place of complex outputs."""
    objective = problem.at(batch)
    return paired(objective, (Pairs.of(objective.outputs(params)),))


def _complaint(problem: Composite, params: Params, batch: Batch) -> str:
    objective = _real(problem, params, batch)
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
