"""Finds out how the samples of a batch are spread over devices: the arrays tell, or the user."""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.core
from jax.sharding import PartitionSpec

from .._base.types import Params
from .._compat.devices import (
    Layout,
    axes_of,
    context,
    copied,
    gathered,
    is_marked,
    manual_axes,
    put,
    sharding_of,
)
from .._compat.kept import place, placement
from .._compat.processes import check_alike, described
from .batch import AnyBatch
from .padding import filled_up, trimmed
from .problem import AbstractProblem


def find_layout(
    problem: AbstractProblem,
    params: Params,
    batches: tuple[AnyBatch | None, ...],
    common: Any,
    separable: bool = True,
    obstacle: str | None = "",
) -> tuple[Layout | None, tuple[Any, Any]]:
    """Return where the samples are, and the arrays where a program for it wants them.

    It is `None` if all samples are on one device. Samples that are not separable are given to each
    device; `common`, which all devices need, too. Samples that do not divide are padded. Without an
    `obstacle`, which is named in an error, sharded parameters stay where they are.
    """
    separable = separable and is_separable(problem, batches)
    layout = _layout(problem, params, batches, separable, obstacle)
    if layout is not None and layout.inside:
        return layout, (common, batches)
    if layout is None:
        return None, (common, tuple(map(trimmed, batches)))
    if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(batches)):
        given = [batch for batch in batches if batch is not None]
        check_alike(layout.mesh, described(given if len(given) > 1 else given[0]), common)
    if layout.params is None:
        common = put(common, layout, PartitionSpec())
    else:
        problem, _, *rest = common
        problem, rest = put((problem, rest), layout, PartitionSpec())
        common = (problem, place(params, layout), *rest)
    if not layout.names:
        return layout, (common, tuple(map(trimmed, put(batches, layout, layout.samples))))
    batches = tuple(filled_up(batch, layout.size) for batch in batches)
    return layout, (common, put(batches, layout, layout.samples))


def _layout(
    problem: AbstractProblem,
    params: Params,
    batches: tuple[AnyBatch | None, ...],
    separable: bool,
    obstacle: str | None,
) -> Layout | None:
    """Return where the samples are, and the parameters if they stay there."""
    leaves = [x for x in jax.tree.leaves(batches) if eqx.is_array(x)]
    if manual_axes():
        return _inside(problem, leaves, separable)
    declared = problem.declared
    found = layout_of(leaves)
    if isinstance(declared, Layout):
        # What `fit` has found before the arrays were traced.
        found = declared if found is None else found
    elif declared is not None:
        found = _declared(declared, found, leaves)
    if obstacle is None and separable and _has_samples(batches):
        placed = placement(params, None if found is None else found.mesh)
        if placed is not None:
            return Layout(placed[0], () if found is None else found.names, params=placed[1])
    if found is None:
        return None
    _check_params(params, found.names, obstacle or "")
    return found if separable and _has_samples(batches) else found._replace(names=())


def _has_samples(batches: tuple[AnyBatch | None, ...]) -> bool:
    """Return whether the arrays of each term have one leading axis; if not, an error follows."""
    parts = [part for batch in batches if batch is not None for part in batch.parts]
    arrays = [[x for x in jax.tree.leaves(part) if eqx.is_array(x)] for part in parts]
    return all(len({x.shape[:1] for x in part}) == 1 and part[0].ndim for part in arrays)


def layout_of(tree: Any) -> Layout | None:
    """Return where samples are, from the first array that is spread; `None` if none is."""
    # What makes batches one by one has none of them yet.
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Iterator))
    found = next((x for x in leaves if axes_of(x)), None)
    sharding = sharding_of(found)
    return None if sharding is None else Layout(sharding.mesh, axes_of(found, 0))


def _declared(names: tuple[str, ...], found: Layout | None, leaves: list[Any]) -> Layout | None:
    """Return the layout on the axes that the user has named, on the mesh that there is."""
    if not names:
        return found
    placed = (sharding_of(x) for x in leaves)
    mesh = next((sharding.mesh for sharding in placed if sharding is not None), None)
    mesh = context() if mesh is None else mesh
    if mesh is None or not set(names) <= set(mesh.axis_names):
        there = "there is no mesh" if mesh is None else f"the mesh has {mesh.axis_names}"
        raise ValueError(
            f"Composite(over={names}): {there}. Name an axis of the mesh on which the batch is, "
            'or call it with one: with jax.set_mesh(jax.make_mesh((4,), ("data",))): ...'
        )
    return Layout(mesh, names)


def _inside(problem: AbstractProblem, leaves: list[Any], separable: bool) -> Layout | None:
    """Return the layout inside of the user's own `jax.shard_map`."""
    declared, axes = problem.declared, manual_axes()
    names = declared.names if isinstance(declared, Layout) else declared
    if names is None or not set(names) <= set(axes):
        missing = "" if names is None else f" {names} is not one of them."
        raise ValueError(
            f"this is called inside of a jax.shard_map over {axes}, where a batch is the share of "
            f"one device.{missing} Name the axis over which the samples are spread, "
            f'Composite(..., over="{axes[0]}"); or, if every device has a problem of its own, '
            "Composite(..., over=())."
        )
    if not names:
        return None
    if any(is_marked(x) for x in leaves):
        raise ValueError(
            f"Composite(over={names}): pass check_vma=False to the jax.shard_map around: loops and "
            "LAPACK calls do not carry the marks that it would check."
        )
    if not separable:
        raise ValueError(
            "Composite(over=...): inside of a jax.shard_map each device has some of the samples. A "
            "model that is coupled or stateful, one without data and metric_memory= need all of "
            "them: call it outside."
        )
    mesh = context()
    assert mesh is not None
    return Layout(mesh, tuple(names), inside=True)


def here(problem: AbstractProblem, point: Any) -> Any:
    """Return parameters and batch with all samples on each device, for what does not share them."""
    if manual_axes() and problem.declared != ():
        raise ValueError(
            f"this is called inside of a jax.shard_map over {manual_axes()}, where a batch is the "
            "share of one device. natural_gradient and NaturalGradientDescent.step work there with "
            "Composite(..., over=...); call everything else outside, or declare that every device "
            "has a problem of its own: Composite(..., over=())."
        )
    params, batch = point
    layout = layout_of(point)
    if layout is not None:
        params, batch = copied(point, layout.mesh)
    elif isinstance(problem.declared, Layout):
        # In the loop of `fit`, where a batch would be left to XLA's partitioner.
        params, batch = gathered(point, problem.declared.mesh)
    return params, trimmed(batch)


def is_separable(problem: AbstractProblem, batches: tuple[AnyBatch | None, ...]) -> bool:
    """Return whether each device can do its samples: all have some, and none needs the others."""
    parts = [part for batch in batches if batch is not None for part in batch.parts]
    mixed = any(term.coupled or term.stateful for term in problem.terms)
    return not mixed and all(part.inputs is not None for part in parts)


def _check_params(params: Params, names: tuple[str, ...], obstacle: str) -> None:
    """Raise a `ValueError` if a parameter is spread over the devices that share the samples."""
    other = f"; {obstacle} cannot" if obstacle else ""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        both = [name for name in axes_of(leaf) if name in names]
        if both:
            raise ValueError(
                f"params{jax.tree_util.keystr(path)} is sharded over the mesh axis {both[0]!r}, "
                "over which the samples of the batch are: each device needs all parameters. "
                "Copy them to every device, jax.device_put(params, NamedSharding(mesh, P())), or "
                "shard them over another axis. natural_gradient(..., solver=pullback.solver."
                f"Krylov()) keeps them sharded{other}."
            )
