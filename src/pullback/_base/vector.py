"""Flat vectors: a norm that does not overflow, and a probe of linear maps."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .axis import Axis, largest, total
from .types import Scalar


def norm(x: Array, axis: Axis | None = None) -> Scalar:
    """Return ‖x‖, also if x is spread over devices; the squares of its entries may overflow."""
    top = largest(jnp.max(jnp.abs(x), initial=0.0), axis)
    # Not the smallest number: its reciprocal, which a compiler may take, overflows.
    unit = jnp.where(top > 0, top, 1.0)
    scaled = x / unit
    return unit * jnp.sqrt(total(jnp.sum(scaled * scaled), axis))


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
