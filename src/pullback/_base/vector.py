"""Flat vectors: a norm that does not overflow, a probe of linear maps, a sum of many rows."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .types import Scalar

TOGETHER = 8
"""How many rows are summed at once: each has its own stream from memory."""
FEW = 2**16
"""The entries up to which a matrix is in the cache anyway."""


def norm(x: Array) -> Scalar:
    """Return ‖x‖; the squares of its entries may overflow."""
    top = jnp.max(jnp.abs(x), initial=0.0)
    # Not the smallest number: its reciprocal, which a compiler may take, overflows.
    unit = jnp.where(top > 0, top, 1.0)
    scaled = x / unit
    return unit * jnp.sqrt(jnp.sum(scaled * scaled))


def norms(*xs: Array) -> Array:
    """Return the norms of vectors of one size, which compile together in the time of one."""
    return jax.vmap(norm)(jnp.stack(xs))


def probe(count: int, dtype: Any) -> Float[Array, " n"]:
    r"""Return pseudo-random numbers of mean 0 and variance 1, between ½ and 1½ in size.

    With \(\zeta\) of this kind \(\|A^\top\zeta\|^2\) is \(\|A\|_F^2\) in the mean. Signs alone do
    that, too, but rows that are equal could cancel to nothing. By hand: the generators of JAX take
    longer to compile than everything around them.
    """
    bits = jnp.arange(1, count + 1, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    for factor, shift in ((0x85EBCA77, 15), (0xC2B2AE3D, 13)):
        bits = (bits ^ (bits >> jnp.uint32(shift))) * jnp.uint32(factor)
    sign = jnp.where((bits >> jnp.uint32(16)) & jnp.uint32(1) == 0, 1.0, -1.0)
    size = 0.5 + (bits >> jnp.uint32(17)).astype(dtype) / 2**15
    # The mean of size² over [½, 1½] is 13/12.
    return sign.astype(dtype) * size / math.sqrt(13 / 12)


def finite_or_nan(a: Array) -> Array:
    """Return a matrix, or NaN everywhere if an entry is not finite.

    LAPACK does not return from the singular values of a matrix with an infinite entry.
    """
    return jnp.where(jnp.all(jnp.isfinite(a)), a, jnp.nan)


def combine(rows: Float[Array, "m P"], y: Float[Array, " m"]) -> Float[Array, " P"]:
    """Return Σ y_i a_i over the rows a_i of a matrix.

    On the CPU, XLA's product with a transposed matrix reads it at a third of the speed of memory,
    or less; the sums of eight rows at a time do not.
    """
    m, size = rows.shape
    if m < 2 * TOGETHER or m * size <= FEW:
        return rows.T @ y
    return jax.lax.platform_dependent(rows, y, cpu=_by_eights, default=lambda a, y: a.T @ y)


def _by_eights(rows: Array, y: Array) -> Array:
    """Return the sum of `combine`, in a loop over blocks of rows."""
    whole = rows.shape[0] // TOGETHER * TOGETHER

    def add(total, a, y):
        for i in range(a.shape[0]):
            total = total + y[i] * a[i]
        return total

    def turn(k, total):
        take = lambda x: jax.lax.dynamic_slice_in_dim(x, k * TOGETHER, TOGETHER)
        return add(total, take(rows), take(y))

    start = add(jnp.zeros(rows.shape[1], rows.dtype), rows[whole:], y[whole:])
    return jax.lax.fori_loop(0, whole // TOGETHER, turn, start)
