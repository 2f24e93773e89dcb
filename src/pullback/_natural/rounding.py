r"""What products with \(A\) cannot tell from zero.

The rounding of \(A^\top(r - A\eta)\) is of the size \(\mathrm{eps}\,\|A\|_F\,(\|r - A\eta\| +
\|A\|_F\|\eta\|)\). With independent signs \(\zeta\), \(\|A^\top\zeta\|^2\) is \(\|A\|_F^2\) in the
mean.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, Scalar
from .._rows.rows import Rows


class Noise(NamedTuple):
    """Norms of rounding errors."""

    rest: Scalar
    """Of ρ = g - Gη - λη."""
    image: Scalar
    """Of A η."""
    residual: Scalar
    """‖r - A η‖, which the rounding of ρ is a fraction of."""
    largest: Scalar
    """About the Frobenius norm of A."""


def noise_of(
    rows: Rows, largest: Scalar, eta: Flat, residual: Array, total: Flat, rest: Flat
) -> Noise:
    """Return the rounding of ρ for a solution η, r - Aη and the right-hand side g."""
    norm = jnp.linalg.norm
    eps = precision(rows)
    image, left = largest * norm(eta), norm(residual)
    return Noise(
        rest=eps * (largest * (left + image) + norm(total) + norm(rest)),
        image=eps * image,
        residual=left,
        largest=largest,
    )


def signs(count: int, dtype: Any) -> Float[Array, " n"]:
    """Return pseudo-random signs, the same ones every time.

    By hand: the generators of JAX take longer to compile than everything around them.
    """
    bits = jnp.arange(1, count + 1, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    for factor, shift in ((0x85EBCA77, 15), (0xC2B2AE3D, 13)):
        bits = (bits ^ (bits >> jnp.uint32(shift))) * jnp.uint32(factor)
    return jnp.where((bits >> jnp.uint32(16)) & jnp.uint32(1) == 0, 1.0, -1.0).astype(dtype)


def precision(rows: Rows) -> float:
    """Return the relative error of a sum over rows or parameters."""
    return 2 * math.sqrt(max(rows.shape)) * float(jnp.finfo(rows.dtype).eps)


def half_of_the_digits(rows: Rows, largest: Scalar) -> Scalar:
    """Return √(max(m, P) eps) · s_max, what a solver that squares A resolves.

    `largest` is an estimate, and may be smaller than s_max: a factor makes up for it.
    """
    return 10 * math.sqrt(max(rows.shape) * float(jnp.finfo(rows.dtype).eps)) * largest
