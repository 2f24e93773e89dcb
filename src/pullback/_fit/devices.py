"""The devices of a run: where its samples are, for a loop in which arrays no longer tell.

Inside of the compiled loop the arrays of a mesh with `Auto` axes do not say where they are, and
those of a mesh with `Explicit` axes allow few operations on the samples (drawing a minibatch is
none of them). So the loop runs on the same devices under `Auto` axes, and is told the layout.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._compat.devices import Layout, automatic, context, sharding_of
from .._compat.processes import spans
from .._problem.batch import Batches
from .._problem.layout import layout_of
from .._problem.problem import AbstractProblem
from .._problem.spread import declare
from .batches import Sampler
from .checkpoint import Snapshot
from .processes import Processes


def peeked(batches: Any) -> tuple[Any, Any]:
    """Return batches, and those of them that tell where samples are: of an iterator, the first."""
    known = batches is None or callable(batches) or isinstance(batches, Sampler)
    if (
        known
        or isinstance(batches, tuple | list | dict | Batches)
        or not isinstance(batches, Iterable)
    ):
        return batches, batches
    # An iterator is used up: what was taken is put back.
    iterator = iter(batches)
    first = list(itertools.islice(iterator, 1))
    return itertools.chain(first, iterator), first


class Devices:
    """Where the samples of a run are; does nothing if they are on one device."""

    def __init__(self, opt: Any, params: Any, batches: Any):
        """Look at the arrays of the batches, or of the first one."""
        found = layout_of(batches)
        problem = getattr(opt, "problem", None)
        self.processes = Processes(_meshes(problem, params, batches))
        self.layout: Layout | None = None
        self.given: Mesh | None = None
        if found is None or not isinstance(problem, AbstractProblem):
            return
        assert isinstance(found.mesh, Mesh)
        self.layout = found
        if AxisType.Explicit in found.mesh.axis_types:
            self.given = found.mesh
            self.layout = found._replace(mesh=automatic(found.mesh))

    def informed(self, opt: Any) -> Any:
        """Return the optimiser, whose problem knows where the samples are."""
        if self.layout is None:
            return opt
        return eqx.tree_at(lambda o: o.problem, opt, declare(opt.problem, self.layout))

    def enter(self, tree: Any) -> Any:
        """Return arrays of an `Explicit` mesh on the same devices under `Auto` axes."""
        if self.given is None or self.layout is None:
            return tree
        return _moved(tree, self.layout.mesh)

    def untyped(self, tree: Any) -> Any:
        """Return arrays without the mesh of `jax.set_mesh` in their type; others as they are."""
        if self.given is None or self.layout is None:
            return tree
        return _moved(tree, self.layout.mesh, others=False)

    def leave(self, tree: Any) -> Any:
        """Return arrays where the user has them."""
        return tree if self.given is None else _moved(tree, self.given)

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the loop is called."""
        if self.given is None or self.layout is None:
            return contextlib.nullcontext()
        return jax.set_mesh(self.layout.mesh)  # pyright: ignore[reportArgumentType]


def _meshes(problem: Any, params: Any, batches: Any) -> list[Any]:
    """Return the meshes on which a run is: those of its arrays, and that of the axis named."""
    leaves = jax.tree.leaves((params, batches), is_leaf=lambda x: isinstance(x, Iterator))
    found = [sharding.mesh for x in leaves if (sharding := sharding_of(x)) is not None]
    around = context() if getattr(problem, "declared", None) else None
    return found if around is None else [*found, around]


def _moved(tree: Any, mesh: Any, others: bool = True) -> Any:
    """Return a tree with its arrays on a mesh of the same devices; `others` of no mesh, copied."""

    def move(x):
        found = sharding_of(x)
        if not eqx.is_array(x) or (found is None and not others):
            return x
        there = NamedSharding(mesh, PartitionSpec() if found is None else found.spec)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            # JAX moves keys to the devices of this process only.
            moved = jax.device_put(jax.random.key_data(x), there)
            return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(x))
        return jax.device_put(x, there)

    return jax.tree.map(move, tree)


def placed(saved: Snapshot, fresh: Snapshot) -> Snapshot:
    """Return a snapshot with its arrays where those of another one are, if that is a mesh."""

    def move(x, y):
        found = sharding_of(y)
        if found is None or not eqx.is_array(x):
            return x
        if not spans(found.mesh) or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.device_put(x, found)
        # Each process has read all of it, and puts its own part on its devices.
        data = np.asarray(x)
        return jax.make_array_from_callback(x.shape, found, lambda index: data[index])

    names = ("params", "state", "sampler")
    moved = {name: jax.tree.map(move, getattr(saved, name), getattr(fresh, name)) for name in names}
    return replace(saved, **moved)
