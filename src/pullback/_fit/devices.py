"""The devices of a run: where its samples are, for a loop in which arrays no longer tell.

Inside of the compiled loop the arrays of a mesh with `Auto` axes do not say where they are, and
those of a mesh with `Explicit` axes allow few operations on the samples (drawing a minibatch is
none of them). So the loop runs on the same devices under `Auto` axes, and is told the layout.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._compat.devices import Layout, automatic, sharding_of
from .._problem.layout import layout_of
from .._problem.problem import AbstractProblem
from .._problem.spread import declare
from .checkpoint import Snapshot
from .processes import Processes


class Devices:
    """Where the samples of a run are; does nothing if they are on one device."""

    def __init__(self, opt: Any, batches: Any):
        """Look at the arrays of the batches."""
        # An iterator is not looked into: that would use it up.
        found = None if isinstance(batches, Iterator) else layout_of(batches)
        self.processes = Processes(found)
        self.layout: Layout | None = None
        self.given: Mesh | None = None
        problem = getattr(opt, "problem", None)
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

    def leave(self, tree: Any) -> Any:
        """Return arrays where the user has them."""
        return tree if self.given is None else _moved(tree, self.given)

    def around(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the loop is called."""
        if self.given is None or self.layout is None:
            return contextlib.nullcontext()
        return jax.set_mesh(self.layout.mesh)  # pyright: ignore[reportArgumentType]


def _moved(tree: Any, mesh: Any) -> Any:
    """Return a tree with its arrays on a mesh of the same devices, those of no mesh copied."""

    def move(x):
        if not eqx.is_array(x):
            return x
        found = sharding_of(x)
        spec = PartitionSpec() if found is None else found.spec
        return jax.device_put(x, NamedSharding(mesh, spec))

    return jax.tree.map(move, tree)


def placed(saved: Snapshot, fresh: Snapshot) -> Snapshot:
    """Return a snapshot with its arrays where those of another one are, if that is a mesh."""

    def move(x, y):
        found = sharding_of(y)
        return x if found is None or not eqx.is_array(x) else jax.device_put(x, found)

    names = ("params", "state", "sampler")
    moved = {name: jax.tree.map(move, getattr(saved, name), getattr(fresh, name)) for name in names}
    return replace(saved, **moved)
