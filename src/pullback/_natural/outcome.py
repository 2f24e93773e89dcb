"""What goes in and what comes out is looked at here: arguments before, results after, with the
place where a failure arose.
"""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.results import RESULTS, failed
from .._base.tree import all_finite, is_coordinate, split
from .._base.types import Flat, Params
from .._problem.composite import Batch, Composite, as_batch, check_params
from .._rows.pullback import PullbackMetric
from ..inverse._base import AbstractInverse, MoorePenrose, Tikhonov
from ..solver._auto import Auto
from ..solver._base import AbstractSolver, Factorised
from ..solver._krylov import Krylov
from .evaluate import Assembled
from .stats import Stats, largest_log_scale


class PrecisionWarning(UserWarning):
    """The arithmetic is too short for the condition of the problem."""


def prepare(
    problem: Composite,
    params: Params,
    batch: Any,
    inverse: AbstractInverse | None,
    solver: AbstractSolver | None,
    metric_batch: Any,
    memory: int,
) -> tuple[Composite, Params, Batch, Batch | None, AbstractInverse, AbstractSolver]:
    """Fill in the defaults and refuse what cannot work, before anything is compiled."""
    if not isinstance(problem, Composite):
        raise ValueError(
            f"problem must be a pullback.Composite(model=..., loss=..., metric=...), got {type(problem).__name__}."
        )
    inverse = MoorePenrose() if inverse is None else inverse
    solver = Auto() if solver is None else solver
    if not isinstance(inverse, AbstractInverse):
        raise ValueError(
            f"inverse must be MoorePenrose(), Tikhonov(damping) or TruncatedRank(k), got {inverse!r}."
        )
    if not isinstance(solver, AbstractSolver):
        raise ValueError(
            f"solver must be one of pullback.solver, e.g. solver=pullback.solver.SVD(), got {solver!r}."
        )
    solver.check(inverse)
    # Numbers become arrays: another damping is another input, not another program.
    arrays: Any = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, inverse)
    if memory < 1:
        raise ValueError(f"memory must be a positive number of bytes, got {memory}.")
    params, data = _arrays(params), _arrays(as_batch(batch))
    check_params(params)
    other = None
    if metric_batch is not None:
        other = _arrays(as_batch(metric_batch))
        if data.inputs is None:
            raise ValueError(
                "metric_batch is for models with data; this problem was called without a batch."
            )
    return problem, params, data, other, arrays, solver


def _arrays(tree):
    return jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x, tree
    )


def is_traced(tree) -> bool:
    """Whether we are inside a transformation, where nothing can be raised or compared."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))


def judge(
    assembled: Assembled, vector: Flat, factorised: Factorised, stats: Stats, check: bool
) -> RESULTS:
    """The result of a natural gradient: the first thing that went wrong, in the order in which
    things were computed.
    """
    metric, problem = assembled.metric, assembled.metric.problem
    krylov = factorised.solver == Krylov().name
    verdicts = [
        (~all_finite(metric.params), RESULTS.nonfinite_params),
        (~(all_finite(metric.batch) & all_finite(assembled.batch)), RESULTS.nonfinite_batch),
        (
            ~(all_finite(metric.outputs) & all_finite(assembled.linear.outputs)),
            RESULTS.nonfinite_outputs,
        ),
        (_couples(metric) if check else jnp.asarray(False), RESULTS.coupled_samples),
        (
            ~(jnp.isfinite(assembled.value) & all_finite(assembled.differential)),
            RESULTS.nonfinite_loss,
        ),
        (~_is_metric(metric), RESULTS.bad_metric),
        (~factorised.operator.gauge.valid, RESULTS.bad_gauge),
        (~all_finite(assembled.covector), RESULTS.nonfinite_jacobian),
        (
            _saturated(assembled)
            if _underflow_matters(problem, factorised.inverse)
            else jnp.asarray(False),
            RESULTS.saturated,
        ),
        (_dropped(metric, factorised.inverse, stats), RESULTS.unresolved),
        (~all_finite(vector), RESULTS.nonfinite_vector),
        (krylov & ~(stats.residual <= jnp.sqrt(jnp.finfo(metric.dtype).eps)), RESULTS.unconverged),
        (stats.rank == 0, RESULTS.rank_zero),
    ]
    result: Any = RESULTS.successful
    for bad, code in reversed(verdicts):
        result = RESULTS.where(bad, code, result)
    return result


def _is_metric(metric: PullbackMetric) -> Array:
    """Whether the root is finite; a logarithm of -inf is an absent row, and fine."""
    leaves = [x for x in jax.tree.leaves((metric.root, metric.log_scale)) if is_coordinate(x)]
    return jnp.all(jnp.stack([jnp.all(~jnp.isnan(x) & (x != jnp.inf)) for x in leaves]))


def _couples(metric: PullbackMetric) -> Array:
    """Whether a sample alone has other outputs than the same sample in its batch."""
    inputs = metric.batch.inputs
    if inputs is None or metric.problem.coupled:
        return jnp.asarray(False)
    arrays, rest = eqx.partition(inputs, eqx.is_array)
    alone = jax.vmap(lambda x: split(metric.problem.one(metric.params, eqx.combine(x, rest)))[0])(
        arrays
    )

    def differs(a, b):
        scale = jnp.max(jnp.abs(b), initial=0.0)
        return jnp.any(jnp.abs(a - b) > 10 * jnp.sqrt(jnp.finfo(b.dtype).eps) * scale)

    return jnp.any(
        jnp.stack(jax.tree.leaves(jax.tree.map(differs, alone, split(metric.outputs)[0])))
    )


def _underflow_matters(problem: Composite, inverse: AbstractInverse) -> bool:
    """A differential that underflows is lost if nothing damps it and the metric cannot lift it in
    closed form.
    """
    return problem.metric.graded and problem.loss is not None and not isinstance(inverse, Tikhonov)


def _saturated(assembled: Assembled) -> Array:
    if assembled.lifted is None:
        return jnp.asarray(False)
    log_scale = assembled.metric.root.log_scale
    return jnp.any(
        assembled.metric.active & (2 * log_scale < jnp.log(jnp.finfo(log_scale.dtype).tiny))
    )


def _dropped(metric: PullbackMetric, inverse: AbstractInverse, stats: Stats) -> Array:
    """Whether the numerical zero of a solver that works on A as a whole hides rows of a saturated
    model.
    """
    if not (
        metric.problem.metric.graded and isinstance(inverse, MoorePenrose) and inverse.rtol is None
    ):
        return jnp.asarray(False)
    top = largest_log_scale(metric)
    # A solver that knows no cut-off (matrix-free) resolves half of the digits.
    resolution = jnp.where(
        stats.cutoff > 0, jnp.log(stats.cutoff), top + jnp.log(jnp.finfo(metric.dtype).eps) / 2
    )
    light = jnp.any(metric.active & (metric.log_scale < resolution))
    return light & ~stats.graded & (stats.rank < min(metric.rows, metric.size))


def raise_failure(
    result: RESULTS, problem: Composite, params: Params, batch: Batch, metric_batch: Batch | None
) -> None:
    """Raise if a result is a failure, saying where it arose."""
    if not bool(failed(result)):
        return
    where = ""
    if bool(result == RESULTS.nonfinite_params):
        where = _bad_leaves(params, "params")
    elif bool(result == RESULTS.nonfinite_batch):
        where = _bad_leaves(batch, "batch") or _bad_leaves(metric_batch, "metric_batch")
    elif bool(result == RESULTS.nonfinite_outputs):
        where = _bad_leaves(problem.outputs(params, batch.inputs), "outputs")
    elif bool(result == RESULTS.bad_metric):
        where = _complaint(problem, params, batch if metric_batch is None else metric_batch)
    raise RuntimeError(f"{RESULTS[result]}{where}")


def _bad_leaves(tree, name: str) -> str:
    places = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if is_coordinate(leaf) and not bool(jnp.all(jnp.isfinite(leaf))):
            first = tuple(int(i) for i in np.argwhere(~np.isfinite(np.asarray(leaf)))[0])
            places.append(f"{name}{jax.tree_util.keystr(path)} (first at index {first})")
    return f" Found in {', '.join(places)}." if places else ""


def _complaint(problem: Composite, params: Params, batch: Batch) -> str:
    outputs = problem.outputs(params, batch.inputs)
    if batch.inputs is None or problem.metric.couples_samples:
        return f" {problem.metric.complaint(outputs)}"
    count = jax.tree.leaves(split(outputs)[0])[0].shape[0]
    for i in range(count):
        take = lambda x, i=i: x[i] if eqx.is_array(x) else x
        metric = problem.metric.observe(jax.tree.map(take, batch.targets), jnp.asarray(i))
        z = jax.tree.map(take, outputs)
        leaves = [x for x in jax.tree.leaves(metric.root(z)) if is_coordinate(x)]
        if any(bool(jnp.any(jnp.isnan(x) | (x == jnp.inf))) for x in leaves):
            return f" Sample {i}: {metric.complaint(z)}"
    return ""


def warn_of_precision(stats: Stats, stacklevel: int) -> None:
    """Warn if single precision is too short for the condition number."""
    dtype = stats.largest.dtype
    limit = 1 / float(np.sqrt(jnp.finfo(dtype).eps))
    if jnp.finfo(dtype).bits < 64 and float(stats.condition) > limit:
        warnings.warn(
            f"the condition number of A is {float(stats.condition):.1e}, beyond 1/sqrt(eps) = {limit:.1e} of {dtype}: rank and direction are "
            'uncertain. Work in double precision: jax.config.update("jax_enable_x64", True) before any array is made.',
            PrecisionWarning,
            stacklevel=stacklevel,
        )
