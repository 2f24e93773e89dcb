r"""From a pullback metric to its factors (`_gram`).

Structure is used where the samples are independent, the metric has one root a sample, and the gauge
is Euclidean; otherwise, and where no leaf of the model is understood, the generic route forms A.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.tree import split
from .._gram import Factors, Layout, Walk, assemble, blocks, flops, layout, sample_factors, walk
from .._rows.gauge import EuclideanGauge
from .._rows.linearise import sum_over_samples
from .._rows.pullback import BlockRoot, PullbackMetric
from ._base import Whitened
from ._cost import Setting

WORKSPACE = 2**25
"""The bytes that the blocks of G of one chunk of samples may take: about what stays in the cache.
"""


def find(operator: Whitened, single: bool = False) -> Layout | None:
    """What of the model is understood; `None` if nothing is, or if the structure cannot be used."""
    return _laid_out(operator.metric, _walk(operator.metric), single) if _usable(operator) else None


def setting(operator: Whitened) -> Setting:
    """The shapes that decide what a solver costs."""
    metric = operator.metric
    if not _usable(operator):
        # What a product with A costs is not known; that of a dense one.
        return Setting(
            metric.rows, metric.size, metric.count, metric.dtype, 2.0 * metric.size * metric.count
        )
    walked = _walk(metric)
    dual, primal = (_laid_out(metric, walked, single) for single in (False, True))
    return Setting(
        metric.rows,
        metric.size,
        metric.count,
        metric.dtype,
        float(flops(walked.program)) * metric.count,
        dual,
        primal,
    )


def _laid_out(metric: PullbackMetric, walked: Walk, single: bool) -> Layout | None:
    found = layout(walked, metric.structure.shapes, _rows_a_sample(metric), single)
    return found if found.factors or (found.products and not single) else None


def _usable(operator: Whitened) -> bool:
    metric = operator.metric
    return (
        isinstance(operator.gauge, EuclideanGauge)
        and isinstance(metric.root, BlockRoot)
        and metric.by_sample
    )


def _walk(metric: PullbackMetric) -> Walk:
    leaves = [
        jax.ShapeDtypeStruct(s, t)
        for s, t in zip(metric.structure.shapes, metric.structure.dtypes, strict=True)
    ]
    inputs = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in _inputs(metric)]
    return walk(_one(metric), leaves, inputs)


def structured_factors(
    metric: PullbackMetric, plan: Layout, scale: Float[Array, " m"] | None = None
) -> Factors:
    """diag(scale) Â in factors."""
    return _factors(metric, plan, _samples(metric, 1.0 if scale is None else scale))


def _samples(metric: PullbackMetric, scale: Any) -> Any:
    """Inputs, roots and scales of the rows of each sample."""
    assert isinstance(metric.root, BlockRoot)
    scale = jnp.where(metric.active, scale, 0.0).astype(metric.dtype)
    return _inputs(metric), metric.root.roots, scale.reshape(metric.count, -1)


def _factors(metric: PullbackMetric, plan: Layout, samples: Any) -> Factors:
    leaves, q = jax.tree.leaves(split(metric.params)[0]), _rows_a_sample(metric)

    def one(inputs, root, scale):
        def pull(w):
            # Scaled before it is pulled back: afterwards it would be a pass through all factors.
            return jax.tree.leaves(root.unit((scale * w).astype(metric.linear.like.dtype)))

        return sample_factors(plan, leaves, inputs, pull, q, metric.dtype)

    return jax.vmap(one)(*samples)


def structured_rows(metric: PullbackMetric, plan: Layout) -> Float[Array, "m P"]:
    """Â of a model none of whose leaves is kept as factors, the parameters in the order of the
    plan.
    """
    return structured_factors(metric, plan).rows.reshape(metric.rows, -1)


def structured_metric(metric: PullbackMetric, plan: Layout) -> Float[Array, "P P"]:
    """G, lower triangle, in the order of the factors."""
    sizes = [group.order.shape for group in plan.factors]
    sizes += [(1, plan.row_size)] if plan.row_size else []
    per_sample = sum(i * j + o * p for k, (i, o) in enumerate(sizes) for j, p in sizes[: k + 1])
    chunk = max(64, WORKSPACE // (per_sample * jnp.dtype(metric.dtype).itemsize))
    samples = _samples(metric, jnp.exp(metric.log_scale))
    return assemble(
        sum_over_samples(
            lambda s: blocks(_factors(metric, plan, s)),
            samples,
            metric.count,
            min(chunk, metric.count),
        ),
        sizes,
    )


def _rows_a_sample(metric: PullbackMetric) -> int:
    return metric.rows // metric.count


def _inputs(metric: PullbackMetric) -> list[Array]:
    return jax.tree.leaves(eqx.filter(metric.batch.inputs, eqx.is_array))


def _one(metric: PullbackMetric):
    """The coordinates of the outputs of one sample, as a function of parameter leaves and input
    leaves.
    """
    treedef, carried = metric.structure.treedef, split(metric.params)[1]
    arrays, static = eqx.partition(metric.batch.inputs, eqx.is_array)
    input_tree = jax.tree.structure(arrays)

    def one(leaves, inputs):
        params = eqx.combine(jax.tree.unflatten(treedef, leaves), carried)
        outputs = metric.problem.one(
            params, eqx.combine(jax.tree.unflatten(input_tree, inputs), static)
        )
        return jax.tree.leaves(split(outputs)[0])

    return one
