r"""From the rows of \(A\) to factors of the layers.

Structure is used where the samples are independent, or become so given a few statistics of the
batch (`_rows/cut.py`), the metric has one root per sample, perhaps with a mean over samples taken
off afterwards (`centred.py`), and the gauge is Euclidean; otherwise, and where no leaf of the model
is understood, the generic route forms \(A\).

Statistics \(s\) are further parameters of the program of one sample. With \(B = ds/d\theta\) the
rows of the leaves on which they depend are \(A_\theta + A_s B\).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._base.tree import Structure, split, structure
from .._compat.jaxpr import Program, trace
from .._rows.centred import centre
from .._rows.cut import Cut, Uncut
from .._rows.gauge import EuclideanGauge
from .._rows.linearise import sum_over_samples
from .._rows.rows import Rows
from .centred import Gram
from .centred_metric import centred_blocks, centred_metric, centres
from .factors import Factors, Layout, layout, sample_factors
from .kernel import tile_count
from .metric import assemble, blocks
from .walk import Walk, walk

WORKSPACE = 2**25
"""Bytes for the blocks of G of one chunk of samples: about what stays in the cache."""


def analyse(rows: Rows) -> Rows:
    """Return the rows with an analysis of the model's program, which runs once."""
    if rows.analysis is not None:
        return rows
    return rows.analysed(_walk(rows) if unusable(rows) is None else None)


def find(rows: Rows, single: bool = False) -> Layout | None:
    """Return how the leaves are kept; `None` if none has factors or products that can be used.

    With `single` factors must have one position (for G).
    """
    walked = walk_of(rows)
    found = None if walked is None else layout_of(rows, walked, single)
    return found if found and (found.factors or (found.products and not single)) else None


def layout_of(rows: Rows, walked: Walk, single: bool, kept: frozenset[int] = frozenset()) -> Layout:
    """Return how the leaves are kept; those in `kept` as rows."""
    q, shapes = _rows_per_sample(rows), rows.structure.shapes
    tiles = lambda positions: tile_count(rows.count, rows.shape[0], rows.dtype, positions)
    extra, influencing = (), frozenset()
    if isinstance(rows.cut, Cut):
        extra, influencing = rows.cut.structure.shapes, rows.cut.found.influencing
    found = layout(
        walked, (*shapes, *extra), q, single, len(extra), influencing | kept,
        count=rows.count, tiles=tiles,
    )  # fmt: skip
    return found._replace(influencing=influencing)


def walk_of(rows: Rows) -> Walk | None:
    """Return the walk through the model's program; `None` if it cannot be used."""
    analysis = analyse(rows).analysis
    return None if analysis is None else analysis.found


def unusable(rows: Rows) -> str | None:
    """Return why the layers of the model cannot be used at all; `None` if they can.

    Each sample must have a program and a root of its own, in the Euclidean gauge; a mean over
    samples may be taken off.
    """
    if not rows.objective.has_data:
        return "the model has no data, so no samples"
    if not isinstance(rows.gauge, EuclideanGauge):
        return "the inverse has a gauge"
    if rows.root.samples is None:
        return "the metric couples samples"
    if isinstance(rows.cut, Uncut):
        return rows.cut.reason
    return None if rows.by_sample else "the model mixes samples"


def _walk(rows: Rows) -> Walk:
    """Return the walk through the program of one sample."""
    leaves = _shapes(rows.structure)
    inputs = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in _inputs(rows)]
    if not isinstance(rows.cut, Cut):
        return walk(_one(rows), leaves, inputs)
    fixed = rows.cut.statistics(rows.cut.found.fixed, _leaves(rows), _inputs(rows))
    one = lambda leaves, inputs: _separated(rows, fixed)(leaves, inputs[:-1], inputs[-1])
    index = jax.ShapeDtypeStruct((), jnp.arange(1).dtype)
    return walk(one, [*leaves, *_shapes(rows.cut.structure)], [*inputs, index])


def program_of(rows: Rows) -> Program:
    """Return the program of the model on the batch."""
    moving, carried = split(rows.params)
    outputs = lambda p: split(rows.objective.outputs(eqx.combine(p, carried)))[0]
    return trace(outputs, moving)


def structured_factors(
    rows: Rows, plan: Layout, scale: Float[Array, " m"] | None = None, half: bool = False
) -> Factors:
    """Return diag(scale) Â in factors, before a mean is taken off; rows of absent samples are 0.

    With `half` every other row only.
    """
    return _factors(rows, plan, _samples(rows, 1.0 if scale is None else scale), half)


def _samples(rows: Rows, scale: Array | float) -> PyTree:
    """Return inputs, roots and scales of the rows of each sample."""
    scale = jnp.where(rows.active, scale, 0.0).astype(rows.dtype)
    inputs = _inputs(rows)
    if isinstance(rows.cut, Cut):
        inputs = [*inputs, jnp.arange(rows.count)]
    return inputs, rows.root.samples, scale.reshape(rows.count, -1)


def _factors(rows: Rows, plan: Layout, samples: PyTree, half: bool = False) -> Factors:
    """Return the factors of some samples."""
    leaves = _leaves(rows)
    q = _rows_per_sample(rows) // (2 if half else 1)
    if isinstance(rows.cut, Cut):
        leaves += rows.cut.statistics(rows.cut.found.moving, leaves, _inputs(rows))

    def one(inputs, root, scale):
        def pull(w):
            w = jnp.stack([w, jnp.zeros_like(w)], axis=-1).ravel() if half else w
            # Scaled before it is pulled back: afterwards this would be a pass through all factors.
            return jax.tree.leaves(root.unit((scale * w).astype(rows.linear.like.dtype)))

        return sample_factors(plan, leaves, inputs, pull, q, rows.dtype)

    found = jax.vmap(one)(*samples)
    if rows.root.mean is not None:
        # Small differences of the factors follow: XLA must not compute a factor anew, in another
        # order, for each use.
        found = jax.lax.optimization_barrier(found)
    if not plan.statistics:
        return found
    influence = _influence(rows)[:, plan.order[plan.order.size - plan.row_size :]]
    own, shared = jnp.split(found.rows, [plan.row_size], axis=2)
    return eqx.tree_at(lambda f: f.rows, found, own + shared @ influence)


def _influence(rows: Rows) -> Float[Array, "S P"]:
    """Return B = ds/dθ, the leaves in products by their factors in the whole batch."""
    assert isinstance(rows.cut, Cut)
    cut, leaves, inputs = rows.cut, _leaves(rows), _inputs(rows)
    every = frozenset(range(len(leaves)))
    blocks = []
    for group in cut.found.groups:
        function = lambda leaves, inputs, group=group: cut.statistics(group, leaves, inputs)
        like = structure(jax.eval_shape(function, leaves, inputs))
        plan = layout(
            walk(function, leaves, inputs), rows.structure.shapes, like.size, influencing=every
        )
        pull = lambda w, like=like: jax.tree.leaves(like.unravel(w.astype(like.dtype)))
        found = sample_factors(plan, leaves, inputs, pull, like.size, rows.dtype).rows
        blocks.append(jnp.zeros_like(found).at[:, plan.order].set(found, unique_indices=True))
    return jnp.concatenate(blocks)


def structured_rows(rows: Rows, plan: Layout) -> Float[Array, "m P"]:
    """Return Â of a plan without factors, the parameters in the order of the plan."""
    found = structured_factors(rows, plan).rows
    if rows.root.mean is not None:
        found = centre(found, rows.root.mean)[0]
    return jnp.where(rows.active[:, None], found.reshape(rows.shape[0], -1), 0.0)


def structured_metric(rows: Rows, plan: Layout) -> Float[Array, "P P"]:
    """Return the lower triangle of G, the parameters in the order of the plan."""
    return metric_gram(rows, plan).matrix


def metric_gram(rows: Rows, plan: Layout) -> Gram:
    """Return the same, and what was taken off it."""
    sizes = _sizes(plan)
    chunk = max(64, WORKSPACE // (block_size(plan) * jnp.dtype(rows.dtype).itemsize))
    total = lambda function, samples: sum_over_samples(
        function, samples, rows.count, min(chunk, rows.count)
    )
    if rows.root.mean is None:
        summed = total(lambda s: blocks(_factors(rows, plan, s)), _samples(rows, rows.scale))
        return Gram(assemble(summed, sizes), jnp.zeros((), rows.dtype))
    mean, scale = rows.root.mean.astype(rows.dtype), jnp.where(rows.active, rows.scale, 0.0)
    scale = scale.reshape(rows.count, -1)
    samples = (_samples(rows, 1.0), mean, scale)
    # The means first: factors are made twice, which costs less than to sum what cancels.
    at = total(lambda s: centres(_factors(rows, plan, s[0]), s[1]), samples)
    sums = total(lambda s: centred_blocks(_factors(rows, plan, s[0]), at, s[1], s[2]), samples)
    return Gram(*centred_metric(sums, sizes, jnp.sum(scale**2, axis=0)))


def _sizes(plan: Layout) -> list[tuple[int, int]]:
    """Return the inputs and outputs of each leaf of G; of leaves kept as rows, together."""
    sizes = [group.order.shape for group in plan.factors]
    return sizes + ([(1, plan.row_size)] if plan.row_size else [])


def block_size(plan: Layout) -> int:
    """Return how many numbers the blocks of G take that one sample makes."""
    sizes = _sizes(plan)
    return sum(i * j + o * p for k, (i, o) in enumerate(sizes) for j, p in sizes[: k + 1])


def _rows_per_sample(rows: Rows) -> int:
    """Return q."""
    return rows.shape[0] // rows.count


def _leaves(rows: Rows) -> list[Array]:
    """Return the parameter leaves."""
    return jax.tree.leaves(split(rows.params)[0])


def _shapes(like: Structure) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of the leaves of a tree."""
    return [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in zip(like.shapes, like.dtypes, strict=True)
    ]


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


def _separated(rows: Rows, fixed: list[Array]) -> Callable:
    """Return the outputs of one sample as a function of leaves and statistics, inputs, number."""
    assert isinstance(rows.cut, Cut)
    cut, count = rows.cut, len(rows.structure.shapes)

    def one(leaves, inputs, index):
        return cut.one(leaves[:count], leaves[count:], fixed, inputs, index)

    return one
