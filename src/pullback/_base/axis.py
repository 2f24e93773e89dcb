r"""Sums, maxima and copies over the devices that share the samples of a batch.

Inside of `jax.shard_map` each device has some of the samples, and everything over samples ends in
one of these functions. Without an axis they are the identity, and leave no trace in a program.

The axis is *data* of what is traced (`AbstractMeasure.axis`), never a global variable: programs are
cached by their arguments.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree


class Axis(NamedTuple):
    """The axes of a mesh over which samples are spread, and on how many devices that is."""

    names: tuple[str, ...]
    size: int


def total(tree: PyTree, axis: Axis | None) -> PyTree:
    """Return the sum over devices of each leaf."""
    return tree if axis is None else jax.lax.psum(tree, axis.names)


def anywhere(found: Array, axis: Axis | None) -> Array:
    """Return whether something holds on any device."""
    if axis is None:
        return found
    return jax.lax.pmax(found.astype(jnp.int32), axis.names) > 0


def largest(x: Array, axis: Axis | None) -> Array:
    """Return the maximum over devices; a NaN of one of them remains."""
    if axis is None:
        return x
    # A scale, or a bound: nobody differentiates it, and JAX cannot.
    x = jax.lax.stop_gradient(x)
    found = jax.lax.pmax(jnp.where(jnp.isnan(x), -jnp.inf, x), axis.names)
    return jnp.where(anywhere(jnp.isnan(x), axis), jnp.nan, found)


def smallest(x: Array, axis: Axis | None) -> Array:
    """Return the minimum over devices; a NaN of one of them remains."""
    return x if axis is None else -largest(-x, axis)


def gathered(tree: PyTree, axis: Axis | None) -> PyTree:
    """Return the leaves of all devices, one after the other along their first axis."""
    if axis is None:
        return tree
    return jax.tree.map(lambda x: jax.lax.all_gather(x, axis.names, tiled=True), tree)


def place(axis: Axis) -> Array:
    """Return the number of this device."""
    return jax.lax.axis_index(axis.names).astype(jnp.arange(1).dtype)


def own(tree: PyTree, axis: Axis | None) -> PyTree:
    """Return the share of this device of what all devices have: the inverse of `gathered`."""
    if axis is None:
        return tree

    def cut(x):
        count = x.shape[0] // axis.size
        return jax.lax.dynamic_slice_in_dim(x, place(axis) * count, count)

    return jax.tree.map(cut, tree)


def around(tree: PyTree, function: Callable[[PyTree], PyTree], axis: Axis) -> PyTree:
    """Return a function of the trees of all devices, side by side in the order of the devices.

    The trees travel round a ring, so that each is sent on once in a turn and two are here at once.
    """
    ring = [(k, (k - 1) % axis.size) for k in range(axis.size)]
    like, here = jax.eval_shape(function, tree), place(axis)
    wide = lambda x: jnp.zeros((x.shape[0], x.shape[1] * axis.size), x.dtype)

    def turn(k, state):
        out, tree = state
        other = (here + jnp.asarray(k, here.dtype)) % axis.size

        def put(out, x):
            return jax.lax.dynamic_update_slice_in_dim(out, x, other * x.shape[1], 1)

        out = jax.tree.map(put, out, function(tree))
        moved = jax.tree.map(lambda x: jax.lax.ppermute(x, axis.names, ring), tree)
        return out, moved

    return jax.lax.fori_loop(0, axis.size, turn, (jax.tree.map(wide, like), tree))[0]
