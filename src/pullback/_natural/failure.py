"""Raises for a `RESULTS` code that is a failure, and locates the offending leaf or sample."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.pairs import Pairs
from .._base.results import RESULTS, failed
from .._base.types import Params
from .._compat.processes import everywhere, whole
from .._problem.batch import AnyBatch, Batch
from .._problem.composite import Composite, Objective
from .._problem.layout import here
from .._problem.padding import bare, sample_places
from .._problem.paired import paired
from .._problem.problem import AbstractProblem
from .._rows.block_root import BlockRoot
from .._rows.rows import rows_at
from ..metric._base import AbstractLikelihood
from .outcome import admitted

GATHERED = 2**28
"""The largest batch, in bytes, that every process gathers to look for one of its samples."""


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
        return bad_leaves(params, "params")
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
        found = bad_leaves(bare(batch), "batch", batch)
        return found or bad_leaves(other, "metric_batch", metric_batch)
    if bool(result == RESULTS.nonfinite_outputs):
        return bad_leaves(problem.outputs(params, bare(batch).inputs), "outputs", batch)
    if not (result == RESULTS.bad_targets or result == RESULTS.bad_metric):
        return ""
    given = batch if metric_batch is None or bool(result == RESULTS.bad_targets) else metric_batch
    found = _on_this_process((problem, params, batch, metric_batch))
    if found is None:
        return ""
    problem, params, batch, metric_batch = found
    params, batch = here(problem, (params, batch))
    if metric_batch is not None:
        _, metric_batch = here(problem, (params, metric_batch))
    if bool(result == RESULTS.bad_targets):
        return _inadmissible(problem, params, batch, given)
    return _complaint(problem, params, batch if metric_batch is None else metric_batch, given)


def _on_this_process(tree: Any) -> Any:
    """Return a tree with all samples on this process; `None` if these are too large, or keys."""
    here = lambda x: not isinstance(x, jax.Array) or x.is_fully_addressable
    away = [x for x in jax.tree.leaves(tree) if not here(x)]
    keys = any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in away)
    if keys or sum(x.nbytes for x in away if not x.is_fully_replicated) > GATHERED:
        return None
    bring = lambda x: x if here(x) else jnp.asarray(np.asarray(whole(x)))
    return jax.tree.map(bring, tree)


def bad_leaves(tree, name: str, batch: Batch | None = None) -> str:
    """Return in words where leaves are not finite; `batch` has the entries that are samples."""
    places = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if eqx.is_inexact_array(leaf) and not bool(jnp.all(jnp.isfinite(leaf))):
            if found := _first(leaf, batch):
                places.append(f"{name}{jax.tree_util.keystr(path)} ({found})")
    return f" Found in {', '.join(places)}." if places else ""


def _first(leaf: Array, batch: Batch | None) -> str:
    """Return in words where the first entry is that is not finite; every process is told.

    Of entries that fill up a share nobody is told, and samples have the numbers of the user.
    """
    samples = None if batch is None else sample_places(batch)
    if leaf.is_fully_addressable or leaf.is_fully_replicated:
        found = _index(np.asarray(leaf), samples)
        return "" if found is None else f"first at index {_numbered(found, samples)}"
    mine = [0] * (1 + leaf.ndim)
    for shard in leaf.addressable_shards:
        starts = [cut.start or 0 for cut in shard.index]
        found = _index(np.asarray(shard.data), None if samples is None else samples - starts[0])
        if found is not None:
            mine = [1, *(a + b for a, b in zip(starts, found, strict=True))]
            break
    told = everywhere(mine)
    if not told[:, 0].any():
        return ""
    place = int(np.argmax(told[:, 0]))
    index = _numbered(tuple(told[place, 1:].tolist()), samples)
    own = f"process {place}" if batch is None or samples is None else _whose(batch, index[0])
    return f"first at index {index}, {own}"


def _index(x: np.ndarray, entries: np.ndarray | None = None) -> tuple[int, ...] | None:
    """Return the index of the first entry that is not finite, of some along the first axis."""
    bad = np.argwhere(~np.isfinite(x))
    bad = bad if entries is None else bad[np.isin(bad[:, 0], entries)]
    return tuple(int(i) for i in bad[0]) if len(bad) else None


def _numbered(index: tuple[int, ...], samples: np.ndarray | None) -> tuple[int, ...]:
    """Return an index with the number of the sample in the place of that of its entry."""
    return index if samples is None else (int(np.searchsorted(samples, index[0])), *index[1:])


def _whose(batch: Batch, sample: int) -> str:
    """Return in words which of several processes has a sample; empty if there is only one."""
    leaves = [x for x in jax.tree.leaves(batch.inputs) if isinstance(x, jax.Array)]
    leaf = next((x for x in leaves if not x.is_fully_addressable), None)
    if leaf is None or leaf.is_fully_replicated:
        return ""
    owner = np.zeros(leaf.shape[0], int)
    for device, cut in leaf.sharding.devices_indices_map(leaf.shape).items():
        owner[cut[0]] = device.process_index
    samples = sample_places(batch)
    owner = owner if samples is None else owner[samples]
    own = np.count_nonzero(owner[:sample] == owner[sample])
    return f"process {owner[sample]}, where it is sample {own}"


def _sample(batch: Batch, sample: int) -> str:
    """Return the number of a sample, and which process has it."""
    own = _whose(batch, sample)
    return f"Sample {sample} ({own})" if own else f"Sample {sample}"


def _inadmissible(problem: Composite, params: Params, batch: Batch, given: Batch) -> str:
    objective, metric = _real(problem, params, batch), problem.metric
    bad = np.flatnonzero(~np.asarray(admitted(objective, objective.outputs(params))))
    if not bad.size or not isinstance(metric, AbstractLikelihood):
        return ""
    name = type(metric).__name__
    if not objective.has_data:
        targets = jax.tree.map(lambda y: np.asarray(y).tolist(), objective.batch.targets)
        return f" Targets {targets!r}; {name} admits {metric.support}."
    target = jax.tree.map(lambda y: np.asarray(y)[bad[0]].tolist(), objective.batch.targets)
    place = _sample(given, int(bad[0]))
    return f" {place}: {target!r}; {name} admits {metric.support}. {bad.size} in all."


def _real(problem: Composite, params: Params, batch: Batch) -> Objective:
    """Return the problem on a batch, with pairs in the place of complex outputs."""
    objective = problem.at(batch)
    return paired(objective, (Pairs.of(objective.outputs(params)),))


def _complaint(problem: Composite, params: Params, batch: Batch, given: Batch) -> str:
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
    return f" {_sample(given, int(bad[0]))}: {words}{more}"
