r"""What products with \(A\) cannot tell from zero.

An entry of \(A\eta\) is a sum, and off by about \(\mathrm{eps}\,(\sum_j a_{ij}^2 \eta_j^2)^{1/2}\)
times the root of the number of its terms. With random \(\xi\) of independent entries of unit
variance that size is the size of \((A(\xi\eta))_i\), entry by entry. Heavy and light rows of a
graded \(A\) thus have each their own rounding.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, Scalar
from .._rows.rows import Rows


class Noise(NamedTuple):
    """Norms of rounding errors, and the images that they are compared with."""

    rest: Scalar
    """Of ρ = g - Gη - λη."""
    image: Scalar
    """Of A η."""
    residual: Scalar
    """‖r - A η‖."""
    size_of_rest: Scalar
    """‖A ρ‖."""
    size_of_total: Scalar
    """‖A g‖."""
    largest: Scalar
    """‖A ξ‖, at about the Frobenius norm of A."""


def noise_of(
    rows: Rows, eta: Flat, r: Float[Array, " m"], image: Array, total: Flat, rest: Flat
) -> Noise:
    """Return the rounding of ρ for a solution η, its image Aη and the right-hand side g."""
    norm = jnp.linalg.norm
    m, size = rows.shape
    columns, lines = jax.random.split(jax.random.key(1))
    xi = jax.random.normal(columns, (size,), rows.dtype)
    zeta = jax.random.normal(lines, (m,), rows.dtype)
    # One after the other: a model need not be a function that vmap can handle.
    spread, of_rest, of_total, of_xi = jax.lax.map(rows.mv, jnp.stack([xi * eta, rest, total, xi]))
    entries = jnp.abs(r - image) + jnp.abs(spread)
    eps = precision(rows)
    return Noise(
        rest=eps * (norm(rows.rmv(zeta * entries)) + norm(total) + norm(rest)),
        image=eps * norm(spread),
        residual=norm(r - image),
        size_of_rest=norm(of_rest),
        size_of_total=norm(of_total),
        largest=norm(of_xi),
    )


def precision(rows: Rows) -> float:
    """Return the relative error of a sum over rows or parameters, with a margin."""
    return 100 * math.sqrt(max(rows.shape)) * float(jnp.finfo(rows.dtype).eps)


def half_of_the_digits(rows: Rows, largest: Scalar) -> Scalar:
    """Return √(max(m, P) eps) · s_max, what a solver that squares A resolves.

    `largest` is random, and may be smaller than s_max: a factor makes up for it.
    """
    return 10 * math.sqrt(max(rows.shape) * float(jnp.finfo(rows.dtype).eps)) * largest
