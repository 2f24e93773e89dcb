"""Some leaves of a tree of coordinates, in the flat vector of all and in one of their own."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .tree import Structure
from .types import Flat


class Part(eqx.Module):
    """Some leaves of the parameters, and how they lie in the flat vector of all."""

    whole: Structure = eqx.field(static=True)
    leaves: tuple[int, ...] = eqx.field(static=True)
    """Their numbers, ascending."""

    @property
    def structure(self) -> Structure:
        """How these leaves lie in a flat vector of their own."""
        treedef = jax.tree.structure(self.select(self.whole.treedef.unflatten(self._numbers)))
        shapes, dtypes = self.whole.shapes, self.whole.dtypes
        return Structure(
            treedef, tuple(shapes[i] for i in self.leaves), tuple(dtypes[i] for i in self.leaves)
        )

    @property
    def names(self) -> list[str]:
        """Their paths in words."""
        names = self.whole.names
        return [names[i] for i in self.leaves]

    @property
    def _numbers(self) -> range:
        return range(len(self.whole.shapes))

    def select(self, tree: PyTree) -> PyTree:
        """Return a tree of coordinates with `None` for every other leaf."""
        leaves = jax.tree.leaves(tree)
        kept = [leaves[i] if i in self.leaves else None for i in self._numbers]
        return self.whole.treedef.unflatten(kept)

    def take(self, flat: Flat) -> Flat:
        """Return the entries of these leaves."""
        pieces = _pieces(flat, self.whole.sizes)
        return _joined([pieces[i] for i in self.leaves], flat.dtype)

    def completed(self, tree: PyTree) -> PyTree:
        """Return a tree of all coordinates, zero on the other leaves."""
        described = zip(self.whole.shapes, self.whole.dtypes, strict=True)
        zeros = [jnp.zeros(shape, dtype) for shape, dtype in described]
        return eqx.combine(tree, self.whole.treedef.unflatten(zeros))

    @property
    def others(self) -> "Part":
        """The leaves that are not among these."""
        return Part(self.whole, tuple(i for i in self._numbers if i not in self.leaves))


def join(parts: Sequence[Part], vectors: Sequence[Flat]) -> Flat:
    """Return the flat vector of all leaves from those of the parts of a partition."""
    whole, pieces = parts[0].whole, {}
    for part, vector in zip(parts, vectors, strict=True):
        sizes = [whole.sizes[i] for i in part.leaves]
        pieces |= dict(zip(part.leaves, _pieces(vector, sizes), strict=True))
    # One concatenation: a sum of padded vectors is what XLA may miscompile (`_compat/xla.py`).
    return _joined([pieces[i] for i in range(len(whole.sizes))], vectors[0].dtype)


def _pieces(flat: Flat, sizes: Sequence[int]) -> list[Flat]:
    """Return a vector in pieces; empty ones stay out of the program (`Structure.unravel`)."""
    found = iter(jax.lax.split(flat, [n for n in sizes if n]) if any(sizes) else [])
    return [next(found) if n else jnp.zeros(0, flat.dtype) for n in sizes]


def _joined(pieces: Sequence[Flat], dtype: Any) -> Flat:
    pieces = [x for x in pieces if x.size]
    return jnp.concatenate(pieces) if pieces else jnp.zeros(0, dtype)
