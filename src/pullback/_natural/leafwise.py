r"""A natural gradient whose parameters stay sharded: \(\delta = A^+ r + G^+ g_x\) leaf by leaf.

The formula, the certificate and the verdicts are those of `subproblem.py`, `certificate.py` and
`outcome.py`, for inverses that a solver without a decomposition can compute; vectors on the
parameters are tuples of leaves (`_base/leaves.py`).
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.axis import anywhere
from .._base.leaves import Leaves, Vector, gather
from .._base.tree import split, structure
from .._base.types import OutputCovector, Params, Scalar
from .._compat.devices import Layout
from .._compat.kept import cut_of, kept
from .._problem.batch import AnyBatch
from .._problem.padding import of_samples
from .._problem.problem import AbstractProblem
from .._problem.spread import spread
from .._problem.validate import check_inputs
from .._rows.leafwise import LeafwiseRows
from .._rows.rows import rows_at
from ..solver._leafwise import LeafwiseFactors
from ..solver._strategy import Strategy
from .derivative import stop
from .evaluate import Evaluation, lift, scaled_pull
from .leafwise_judge import Solved, judge
from .reported import reported
from .stats import Where


def compute_leafwise(
    layout: Layout,
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    strategy: Strategy,
    check_samples: bool = False,
    careful: bool = True,
) -> dict[str, Any]:
    """Return the fields of the natural gradient of parameters that stay where they are."""
    problem, params, strategy, batch = _undifferentiated((problem, params, strategy, batch))
    specs = jax.tree.structure(eqx.filter(params, eqx.is_array)).unflatten(layout.params or ())
    cuts = jax.tree.map(lambda spec: _Cut(cut_of(spec, layout.names)), specs)

    def one(common, params, batch):
        problem, strategy = common
        found = _solved(spread(problem, layout), params, cuts, batch, strategy, careful)
        stats, result = judge(stop(found), check_samples)
        stats = replace(stats, where=_where(layout))
        evaluation, leaves = found.evaluation, found.given.leaves
        own = reported(spread(problem, layout), found.given.rows.params, batch)
        linear = own or evaluation.linear
        pushforward = linear.push(leaves.tree(leaves.whole(found.vector)))
        covector: Any = evaluation.covector
        vectors = leaves.tree(found.vector), leaves.covector_tree(covector)
        same = (evaluation.value, evaluation.losses, result, stats, problem.reported_weights)
        return vectors, same, linear.own(pushforward)

    (vector, covector), same, pushforward = kept(
        layout, one, (problem, strategy), params, batch, _of_coordinates(specs, params)
    )
    value, losses, result, stats, weights = same
    return {
        "vector": _undifferentiated(vector),
        "value": value,
        "covector": covector,
        "pushforward": _undifferentiated(of_samples(batch, pushforward, layout)),
        "result": result,
        "stats": stats,
        "losses": losses,
        "weights": weights,
    }


def _where(layout: Layout) -> Where:
    """Return where samples and parameters are."""
    parts = ("samples", "parameters") if layout.names else ("parameters",)
    whole = () if layout.names else ("samples",)
    return Where(layout.mesh.size, tuple(layout.mesh.axis_names), whole, parts)


class _Cut(eqx.Module):
    """How a leaf is cut; a leaf of a tree."""

    cut: Any = eqx.field(static=True)


def _of_coordinates(tree: PyTree, params: Params) -> PyTree:
    """Return what belongs to leaves of the parameters that are coordinates."""
    absent = lambda x: x is None
    take = lambda x, y: None if x is None else y
    return jax.tree.map(take, split(params)[0], tree, is_leaf=absent)


def _solved(
    problem: AbstractProblem,
    params: Params,
    cuts: PyTree,
    batch: AnyBatch,
    strategy: Strategy,
    careful: bool,
) -> Solved:
    """Evaluate, factorise and solve on the samples of this device and its blocks of the leaves."""
    is_cut = lambda x: isinstance(x, _Cut)
    arrays, static = eqx.partition(params, eqx.is_array)
    whole = jax.tree.map(lambda cut, x: gather(x, cut.cut), cuts, arrays, is_leaf=is_cut)
    whole = eqx.combine(whole, static)
    own = jax.tree.leaves(_of_coordinates(cuts, params), is_leaf=is_cut)
    leaves = Leaves(structure(whole), tuple(cut.cut for cut in own))
    check_inputs(batch)
    rows = rows_at(problem.at(batch), whole, strategy.memory)
    plain = LeafwiseRows(rows, leaves, leaves.vector(params, rows.dtype))
    objective, linear, inverse = rows.objective, rows.linear, strategy.inverse
    value, c = objective.problem.value_and_differential(linear.outputs, objective.batch)
    lifted = lift(rows, c, inverse, own=True, careful=careful)
    outside, underflow = _pull_outside(plain, lifted.outside)
    on_params: Any = (plain.pull_output(c), outside)
    losses = objective.problem.losses(linear.outputs, objective.batch)
    r = rows.own(lifted.r)
    evaluation = Evaluation(
        objective, rows, linear, value, losses, c, on_params[0], r, on_params[1], lifted.share,
        lifted.steep, underflow,
    )  # fmt: skip
    # A common factor of A cancels in a homogeneous inverse, as in `factorised.factorise`.
    shift = rows.largest_log_scale if inverse.homogeneous else jnp.zeros((), rows.dtype)
    given = plain.divided_by(shift)
    factors = strategy.solver.factorise_leafwise(given, inverse)
    g = None if outside is None else tuple(jnp.exp(-2 * shift) * x for x in outside)
    vector = _solve(factors, given, r, g)
    return Solved(evaluation, given, inverse, factors, g, vector, strategy.solver.name)


def _solve(factors: LeafwiseFactors, rows: LeafwiseRows, r: Array, g: Vector | None) -> Vector:
    """Return A⁺(e^ℓ r) + G⁺ g."""
    vector = factors.solve_lifted(jnp.where(rows.active, r, 0.0))
    if g is None:
        return vector
    nothing = lambda g: jax.tree.map(jnp.zeros_like, g)
    more = jax.lax.cond(
        rows.leaves.largest(g) != 0, lambda g: factors.solve_covector(g), nothing, g
    )
    return jax.tree.map(jnp.add, vector, more)


def _pull_outside(
    rows: LeafwiseRows, outside: OutputCovector | None
) -> tuple[Vector | None, Scalar]:
    """Return Jᵀ of what is outside the range of the metric, and `Evaluation.underflow`."""
    none = jnp.asarray(-jnp.inf, rows.dtype)
    if outside is None:
        return None, none
    something = jnp.any(jnp.stack([jnp.any(x != 0) for x in jax.tree.leaves(outside)]))
    pull = lambda c: scaled_pull(rows.pull_output, c, rows.rows, rows.leaves.largest)
    nothing = lambda c: (jax.tree.map(jnp.zeros_like, rows.here), none)
    return jax.lax.cond(anywhere(something, rows.rows.axis), pull, nothing, outside)


@jax.custom_jvp
def _constant(arrays: list[Array]) -> list[Array]:
    return arrays


@_constant.defjvp
def _refuse(primals, tangents):
    raise NotImplementedError(
        "the natural gradient of parameters that are sharded is not differentiated. Copy them to "
        "every device, jax.device_put(params, NamedSharding(mesh, P())), or take "
        "jax.lax.stop_gradient(params)."
    )


def _undifferentiated(tree: PyTree) -> PyTree:
    """Return a tree; to differentiate it raises."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    leaves, treedef = jax.tree.flatten(arrays)
    return eqx.combine(jax.tree.unflatten(treedef, _constant(leaves)), rest)
