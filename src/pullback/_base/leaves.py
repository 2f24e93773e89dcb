r"""Vectors on the parameters leaf by leaf, so that each leaf stays where the user has put it.

A vector is a tuple of real arrays, one per leaf of coordinates; a complex leaf has a trailing axis
of two. It is never ravelled: to concatenate leaves that are sharded gathers all of them. Inside of
a `jax.shard_map` over the axes of the samples a leaf may be *cut* along some of its dimensions:
each device has a block of it (FSDP). Other axes of the mesh are left to XLA's partitioner (tensor
parallel): there every leaf is whole.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .axis import Axis, anywhere, largest, total
from .pairs import as_complex, as_pair, conjugate, is_complex
from .tree import Structure, split
from .types import Scalar

Vector = tuple[Array, ...]
"""One real array per leaf."""
Cut = tuple[tuple[int, tuple[str, ...]], ...]
"""The dimensions of a leaf that are cut, and the axes of the mesh over which they are."""


class Leaves(eqx.Module):
    """How the leaves of the parameters lie on the devices that share the samples."""

    like: Structure = eqx.field(static=True)
    """The leaves as a whole."""
    cuts: tuple[Cut, ...] = eqx.field(static=True)

    # ---- trees ----------------------------------------------------------------------------------

    def vector(self, tree: PyTree, dtype: Any) -> Vector:
        """Return the coordinates of a tree."""
        leaves = jax.tree.leaves(split(tree)[0])
        real = lambda x, kind: as_pair(x) if is_complex(kind) else x
        kinds = self.like.dtypes
        return tuple(real(x, kind).astype(dtype) for x, kind in zip(leaves, kinds, strict=True))

    def covector(self, tree: PyTree, dtype: Any) -> Vector:
        """Return those of a covector in the convention of `jax.grad` (`pairs.py`)."""
        return self.vector(conjugate(tree), dtype)

    def tree(self, vector: Vector) -> PyTree:
        """Return the tree of a vector, each leaf in its own dtype."""
        leaf = lambda x, kind: (as_complex(x) if is_complex(kind) else x).astype(kind)
        leaves = map(leaf, vector, self.like.dtypes)
        return jax.tree.unflatten(self.like.treedef, leaves)

    def covector_tree(self, covector: Vector) -> PyTree:
        """Return the tree of a covector, in the convention of `jax.grad`."""
        return conjugate(self.tree(covector))

    # ---- devices --------------------------------------------------------------------------------

    def whole(self, vector: Vector) -> Vector:
        """Return all leaves as a whole: each that is cut is gathered, once."""
        return tuple(map(gather, vector, self.cuts))

    def summed(self, vector: Vector, axis: Axis | None) -> Vector:
        """Return the sum over devices of whole leaves, each device with the blocks it has."""
        return tuple(self._summed(x, cut, axis) for x, cut in zip(vector, self.cuts, strict=True))

    def _summed(self, x: Array, cut: Cut, axis: Axis | None) -> Array:
        if axis is None:
            return x
        for dimension, names in cut:
            x = jax.lax.psum_scatter(x, names, scatter_dimension=dimension, tiled=True)
        rest = tuple(name for name in axis.names if name not in _names(cut))
        return jax.lax.psum(x, rest) if rest else x

    # ---- numbers --------------------------------------------------------------------------------

    def norm(self, vector: Vector) -> Scalar:
        """Return the norm; the squares of the entries may overflow."""
        # Of a NaN the sum is one, too: it need not be looked for among the devices.
        size = lambda x: jnp.max(jnp.where(jnp.isnan(x), 0.0, jnp.abs(x)), initial=0.0)
        most = lambda x, axis: x if axis is None else jax.lax.pmax(x, axis.names)
        top = functools.reduce(jnp.maximum, self._each(size, jnp.maximum, most, vector))
        unit = jnp.where(top > 0, top, 1.0)
        squares = lambda x: jnp.sum((x / unit) * (x / unit))
        return unit * jnp.sqrt(sum(self._each(squares, jnp.add, total, vector)))

    def largest(self, vector: Vector) -> Scalar:
        """Return the largest entry in size; a NaN of any device remains."""
        top = lambda x: jnp.max(jnp.abs(x), initial=0.0)
        return jnp.max(jnp.stack(self._each(top, jnp.maximum, largest, vector)))

    def all_finite(self, vector: Vector) -> Array:
        """Return whether every entry is finite, on all devices."""
        bad = lambda x: jnp.any(~jnp.isfinite(x))
        return ~jnp.any(jnp.stack(self._each(bad, jnp.logical_or, anywhere, vector)))

    def _each(
        self, function: Callable, join: Callable, over: Callable, vector: Vector
    ) -> list[Array]:
        """Return a function of the leaves, joined over leaves that are cut over the same axes."""
        found: dict[tuple[str, ...], Array] = {}
        for x, cut in zip(vector, self.cuts, strict=True):
            names = _names(cut)
            found[names] = join(found[names], function(x)) if names in found else function(x)
        return [over(x, Axis(names, 0) if names else None) for names, x in found.items()]


def gather(x: Array, cut: Cut) -> Array:
    """Return a leaf as a whole."""
    for dimension, names in cut:
        x = jax.lax.all_gather(x, names, axis=dimension, tiled=True)
    return x


def _names(cut: Cut) -> tuple[str, ...]:
    return tuple(sorted(name for _, names in cut for name in names))
