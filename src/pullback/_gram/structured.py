r"""From the rows of \(A\) to factors of the layers.

Structure is used where the samples are independent, the metric has one root per sample, and the
gauge is Euclidean; otherwise, and where no leaf of the model is understood, the generic route forms
\(A\).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._base.tree import split
from .._rows.gauge import EuclideanGauge
from .._rows.linearise import sum_over_samples
from .._rows.rows import BlockRoot, Rows
from .factors import Factors, Layout, layout, sample_factors
from .metric import assemble, blocks
from .walk import Walk, walk

WORKSPACE = 2**25
"""Bytes for the blocks of G of one chunk of samples: about what stays in the cache."""


def analyse(rows: Rows) -> Rows:
    """Return the rows with an analysis of the model's program, which runs once."""
    if rows.analysis is not None:
        return rows
    return rows.analysed(_walk(rows) if _usable(rows) else None)


def find(rows: Rows, single: bool = False) -> Layout | None:
    """Return how the leaves are kept; `None` if none has factors or products that can be used.

    With `single` factors must have one position (for G).
    """
    walked = walk_of(rows)
    if walked is None:
        return None
    found = layout(walked, rows.structure.shapes, _rows_per_sample(rows), single)
    return found if found.factors or (found.products and not single) else None


def walk_of(rows: Rows) -> Walk | None:
    """Return the walk through the model's program; `None` if it cannot be used."""
    analysis = analyse(rows).analysis
    return None if analysis is None else analysis.found


def _usable(rows: Rows) -> bool:
    """Return whether each sample has a program and a root of its own, in the Euclidean gauge."""
    return (
        isinstance(rows.gauge, EuclideanGauge)
        and isinstance(rows.root, BlockRoot)
        and rows.objective.by_sample
    )


def _walk(rows: Rows) -> Walk:
    """Return the walk through the program of one sample."""
    like = rows.structure
    leaves = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in zip(like.shapes, like.dtypes, strict=True)
    ]
    inputs = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in _inputs(rows)]
    return walk(_one(rows), leaves, inputs)


def structured_factors(
    rows: Rows, plan: Layout, scale: Float[Array, " m"] | None = None
) -> Factors:
    """Return diag(scale) Â in factors; rows of absent samples are zero."""
    return _factors(rows, plan, _samples(rows, 1.0 if scale is None else scale))


def _samples(rows: Rows, scale: Array | float) -> PyTree:
    """Return inputs, roots and scales of the rows of each sample."""
    assert isinstance(rows.root, BlockRoot)
    scale = jnp.where(rows.active, scale, 0.0).astype(rows.dtype)
    return _inputs(rows), rows.root.roots, scale.reshape(rows.count, -1)


def _factors(rows: Rows, plan: Layout, samples: PyTree) -> Factors:
    """Return the factors of some samples."""
    leaves = jax.tree.leaves(split(rows.params)[0])
    q = _rows_per_sample(rows)

    def one(inputs, root, scale):
        def pull(w):
            # Scaled before it is pulled back: afterwards this would be a pass through all factors.
            return jax.tree.leaves(root.unit((scale * w).astype(rows.linear.like.dtype)))

        return sample_factors(plan, leaves, inputs, pull, q, rows.dtype)

    return jax.vmap(one)(*samples)


def structured_rows(rows: Rows, plan: Layout) -> Float[Array, "m P"]:
    """Return Â of a plan without factors, the parameters in the order of the plan."""
    return structured_factors(rows, plan).rows.reshape(rows.shape[0], -1)


def structured_metric(rows: Rows, plan: Layout) -> Float[Array, "P P"]:
    """Return the lower triangle of G, the parameters in the order of the plan."""
    sizes = [group.order.shape for group in plan.factors]
    sizes += [(1, plan.row_size)] if plan.row_size else []
    per_sample = sum(i * j + o * p for k, (i, o) in enumerate(sizes) for j, p in sizes[: k + 1])
    chunk = max(64, WORKSPACE // (per_sample * jnp.dtype(rows.dtype).itemsize))
    samples = _samples(rows, rows.scale)
    summed = sum_over_samples(
        lambda s: blocks(_factors(rows, plan, s)), samples, rows.count, min(chunk, rows.count)
    )
    return assemble(summed, sizes)


def _rows_per_sample(rows: Rows) -> int:
    """Return q."""
    return rows.shape[0] // rows.count


def _inputs(rows: Rows) -> list[Array]:
    """Return the arrays among the inputs."""
    return jax.tree.leaves(eqx.filter(rows.objective.batch.inputs, eqx.is_array))


def _one(rows: Rows) -> Callable[[list[Array], list[Array]], list[Array]]:
    """Return the outputs of one sample as a function of parameter leaves and input leaves."""
    treedef = rows.structure.treedef
    carried = split(rows.params)[1]
    arrays, static = eqx.partition(rows.objective.batch.inputs, eqx.is_array)
    input_tree = jax.tree.structure(arrays)

    def one(leaves, inputs):
        params = eqx.combine(jax.tree.unflatten(treedef, leaves), carried)
        sample = eqx.combine(jax.tree.unflatten(input_tree, inputs), static)
        return jax.tree.leaves(split(rows.objective.problem.one(params, sample))[0])

    return one
