"""Where arrays are, and one program on many devices that each have some of the samples.

`jax.shard_map` maps a function over the shards of a batch. What all devices need (parameters,
weights, dampings) is copied to each of them. Meshes with `Auto` and with `Explicit` axes are used
alike: inside, all axes are manual.

GSPMD, which would split the same program by itself, gathers the batch on every device, and returns
wrong per-sample gradients of convolutions (`tests/compat/test_devices.py`).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
from jax._src import core  # noqa: TID251  (see `xla.py`)
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .in_order import in_order


class Layout(NamedTuple):
    """Devices that share the samples of a batch."""

    mesh: Mesh | AbstractMesh
    names: tuple[str, ...]
    """The axes of the mesh along which the samples are spread; none if each has all of them."""
    inside: bool = False
    """Whether a `jax.shard_map` of the user is around: arrays are those of one device."""
    params: tuple[PartitionSpec, ...] | None = None
    """How each array of the parameters lies on the mesh, where they stay there (`kept.py`)."""

    @property
    def size(self) -> int:
        """The number of shares."""
        size = 1
        for name in self.names:
            size *= self.mesh.shape[name]
        return size

    @property
    def samples(self) -> PartitionSpec:
        """How an array with one entry per sample lies on the mesh."""
        return PartitionSpec(self.names) if self.names else PartitionSpec()


def context() -> Mesh | AbstractMesh | None:
    """Return the mesh of `jax.set_mesh`, or of the map around; `None` if there is none."""
    found = jax.sharding.get_abstract_mesh()
    if found.empty:
        return None
    # Inside of a `jit` there is a mesh without devices only.
    return jax.sharding.get_mesh() if core.trace_ctx.is_top_level() else found


def manual_axes() -> tuple[str, ...]:
    """Return the axes of the `jax.shard_map` around, on which arrays are those of one device."""
    found = jax.sharding.get_abstract_mesh()
    return () if found.empty else tuple(found.manual_axes)


def is_marked(x: Any) -> bool:
    """Return whether an array inside of a `jax.shard_map` is marked as another on each device."""
    kind = jax.typeof(x)
    marks = getattr(kind, "manual_axis_type", None)
    return bool(getattr(kind, "vma", ()) if marks is None else marks.varying)


def sharding_of(x: Any) -> NamedSharding | None:
    """Return how an array lies on a mesh of several devices; `None` if it does not, or is hidden.

    Inside of a `jit` the type of an array tells it, for meshes with `Explicit` axes only.
    """
    if not isinstance(x, jax.Array):
        return None
    if isinstance(x, jax.core.Tracer):
        found = jax.typeof(x).sharding
        return None if found.mesh.empty else found
    found = x.sharding
    if not isinstance(found, NamedSharding):
        return None
    several = found.mesh.size > 1 or AxisType.Explicit in found.mesh.axis_types
    return found if several else None


def axes_of(x: Any, dimension: int | None = None) -> tuple[str, ...]:
    """Return the axes of a mesh over which an array is spread, in one dimension or in any."""
    found = sharding_of(x)
    if found is None:
        return ()
    spec = tuple(found.spec)
    spec = spec if dimension is None else spec[dimension : dimension + 1]
    return tuple(_names(spec))


def axes_of_spec(spec: PartitionSpec) -> tuple[str, ...]:
    """Return the axes of a mesh that a sharding names."""
    return tuple(_names(tuple(spec)))


def _names(spec: tuple[Any, ...]) -> Iterator[str]:
    for entry in spec:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, tuple):
            yield from entry


def automatic(mesh: Mesh) -> Mesh:
    """Return the mesh of the same devices with `Auto` axes."""
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def copied(tree: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Return a tree whose arrays are on every device of a mesh as a whole."""

    def copy(x):
        if not eqx.is_array(x):
            return x
        if isinstance(x, jax.core.Tracer) or isinstance(mesh, AbstractMesh):
            whole = NamedSharding(mesh, PartitionSpec())
            return jax.sharding.reshard(x, whole) if axes_of(x) else x
        return jax.device_put(x, NamedSharding(around, PartitionSpec()))

    # Under `jax.set_mesh` of `Explicit` axes the mesh is part of the type of everything.
    explicit = AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types
    around = mesh if explicit or isinstance(mesh, AbstractMesh) else automatic(mesh)
    return jax.tree.map(copy, tree)


def gathered(tree: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Return a tree whose arrays XLA's partitioner leaves on every device as a whole."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    copy = lambda x: jax.lax.with_sharding_constraint(x, everywhere) if eqx.is_array(x) else x
    return jax.tree.map(copy, tree)


def put(tree: PyTree, layout: Layout, spec: PartitionSpec) -> PyTree:
    """Return a tree with its arrays on the mesh, where JAX would not put them there by itself."""
    explicit = AxisType.Explicit in layout.mesh.axis_types
    target = NamedSharding(layout.mesh, spec)

    def move(x):
        if not eqx.is_array(x):
            return x
        # Where the sharding is part of the type, it must be the one that the map declares.
        first = [name for entry in spec for name in entry]
        other = explicit and (axes_of(x), axes_of(x, 0)) != (tuple(first), tuple(first))
        # Inside of a `jit` a mesh has no devices.
        if isinstance(x, jax.core.Tracer) or isinstance(layout.mesh, AbstractMesh):
            return jax.sharding.reshard(x, target) if other else x
        found = sharding_of(x)
        committed = isinstance(x, jax.Array) and x.committed
        elsewhere = committed if found is None else found.mesh != layout.mesh
        return jax.device_put(x, target) if other or elsewhere else x

    return jax.tree.map(move, tree)


def ordered(function: Callable, layout: Layout) -> Callable:
    """Return the function, with collectives in one order where XLA does not see to it."""
    mesh = layout.mesh
    platform = mesh.devices.flat[0].platform if isinstance(mesh, Mesh) else jax.default_backend()
    return in_order(function) if platform == "cpu" and layout.size > 1 else function


def shared(
    layout: Layout, function: Callable[..., tuple[PyTree, PyTree]], common: PyTree, samples: PyTree
) -> tuple[PyTree, PyTree]:
    """Map `function(common, samples)` over the shares of the samples.

    It returns what is the same on all devices, and what has one entry per sample.
    """
    (common_arrays, sample_arrays), static = eqx.partition((common, samples), eqx.is_array)
    kept = []

    def one(common_arrays, sample_arrays):
        made = function(*eqx.combine((common_arrays, sample_arrays), static))
        arrays, rest = eqx.partition(made, eqx.is_array)
        # Only arrays leave the map; other leaves leave the trace here.
        kept[:] = [rest]
        return arrays

    if layout.inside:
        return eqx.combine(ordered(one, layout)(common_arrays, sample_arrays), kept[0])
    everywhere = PartitionSpec()
    mapped = jax.shard_map(
        ordered(one, layout),
        mesh=layout.mesh,
        in_specs=(everywhere, layout.samples),
        out_specs=(everywhere, layout.samples),
        # What is returned as common is so by construction: every sum over samples is one over
        # devices. lax.while_loop and LAPACK calls would need marks that they do not have.
        check_vma=False,
    )
    arrays = mapped(common_arrays, sample_arrays)
    return eqx.combine(arrays, kept[0])
