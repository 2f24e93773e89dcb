"""One program on many devices that share the samples, with parameters that stay where they are.

The axes over which the samples are spread are manual, as in `devices.shared`; a parameter that is
sharded over one of them enters in blocks. All other axes are left to XLA's partitioner, also where
the user's mesh has `Explicit` ones: a model need not be written for these.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.core
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .devices import Layout, axes_of, ordered, sharding_of


def placement(tree: PyTree, mesh: Any = None) -> tuple[Any, tuple[PartitionSpec, ...]] | None:
    """Return the mesh on which arrays are sharded, and how each of them is.

    It is `None` if none is sharded, or if they are not all on one mesh (that one, if given).
    """
    specs = []
    arrays = [x for x in jax.tree.leaves(tree) if eqx.is_array(x)]
    for x in arrays:
        found = sharding_of(x)
        if found is not None:
            mesh = found.mesh if mesh is None else mesh
            if _abstract(found.mesh) != _abstract(mesh):
                return None
        specs.append(PartitionSpec() if found is None else found.spec)
    return (mesh, tuple(specs)) if any(map(axes_of, arrays)) else None


def _abstract(mesh: Any) -> Any:
    return getattr(mesh, "abstract_mesh", mesh)


def place(params: PyTree, layout: Layout) -> PyTree:
    """Return parameters on the mesh, each as `Layout.params` says."""
    arrays, static = eqx.partition(params, eqx.is_array)
    leaves, treedef = jax.tree.flatten(arrays)
    assert layout.params is not None

    def move(x, spec):
        if isinstance(x, jax.core.Tracer) or sharding_of(x) is not None:
            return x
        return jax.device_put(x, NamedSharding(layout.mesh, spec))

    moved = [move(x, spec) for x, spec in zip(leaves, layout.params, strict=True)]
    return eqx.combine(jax.tree.unflatten(treedef, moved), static)


def cut_of(spec: PartitionSpec, names: tuple[str, ...]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the dimensions that are sharded over some axes, and over which of them."""
    found = [(k, tuple(n for n in _names(e) if n in names)) for k, e in enumerate(spec)]
    return tuple((k, own) for k, own in found if own)


def _names(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, tuple):
        yield from entry


def _manual(spec: PartitionSpec, names: tuple[str, ...]) -> PartitionSpec:
    """Return what is left of a sharding on the axes that are manual."""
    cut = dict(cut_of(spec, names))
    return PartitionSpec(*(cut.get(k) for k in range(len(spec))))


def kept(
    layout: Layout,
    function: Callable[..., tuple[tuple[PyTree, ...], PyTree, PyTree]],
    common: PyTree,
    params: PyTree,
    samples: PyTree,
    vectors: PyTree,
) -> tuple[tuple[PyTree, ...], PyTree, PyTree]:
    """Map `function(common, params, samples)` over the shares of the samples.

    It returns two trees on the parameters, what is the same on all devices, and what has one entry
    per sample. `vectors` has the sharding of each leaf of a tree on the parameters.
    """
    names, everywhere = layout.names, PartitionSpec()
    arrays, static = eqx.partition((common, params, samples), eqx.is_array)
    kept = []

    def one(*arrays):
        made = function(*eqx.combine(arrays, static))
        found, rest = eqx.partition(made, eqx.is_array)
        # Only arrays leave the map; other leaves leave the trace here.
        kept[:] = [rest]
        return found

    leaves = jax.tree.structure(arrays[1])
    inside = leaves.unflatten([_manual(spec, names) for spec in layout.params or ()])
    outside = jax.tree.map(lambda spec: _manual(spec, names), vectors)
    explicit = AxisType.Explicit in layout.mesh.axis_types
    run = one
    if names:
        run = jax.shard_map(
            ordered(one, layout),
            mesh=None if explicit else layout.mesh,
            in_specs=(everywhere, inside, layout.samples),
            out_specs=((outside, outside), everywhere, layout.samples),
            axis_names=set(names),
            check_vma=False,  # see `devices.shared`
        )
    on = lambda spec: NamedSharding(layout.mesh, spec)
    placed = jax.tree.map(on, vectors)
    if explicit:
        axes = zip(layout.mesh.axis_names, layout.mesh.axis_types, strict=True)
        run = jax.sharding.auto_axes(
            run,
            axes=tuple(name for name, kind in axes if kind == AxisType.Explicit),
            out_sharding=((placed, placed), on(everywhere), on(layout.samples)),
        )
    found: Any = run(*arrays)
    if not explicit:
        stay = lambda tree: jax.tree.map(jax.lax.with_sharding_constraint, tree, placed)
        found = (tuple(map(stay, found[0])), *found[1:])
    return eqx.combine(found, kept[0])
