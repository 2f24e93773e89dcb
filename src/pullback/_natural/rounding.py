r"""What products with \(A\) cannot tell from zero.

The rounding of \(A^\top(r - A\eta)\) is of the size \(\mathrm{eps}\,\|A\|_F\,(\|r - A\eta\| +
\|A\|_F\|\eta\|)\). \(\|A\|_F\) is estimated by one product (`_base/vector.py`).
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from .._base.types import Scalar
from .._rows.rows import AbstractRows


class Noise(NamedTuple):
    """Norms of rounding errors."""

    rest: Scalar
    """Of ρ = g - Gη - λη."""
    image: Scalar
    """Of A η."""
    residual: Scalar
    """‖r - A η‖, at most ‖r‖: what a change of A brings into ρ. The part of η that answers to a
    parameter covector is not to be found there."""
    largest: Scalar
    """About the Frobenius norm of A."""


def noise_of(
    rows: AbstractRows,
    largest: Scalar,
    eta: Scalar,
    residual: Scalar,
    r: Scalar,
    total: Scalar,
    rest: Scalar,
) -> Noise:
    """Return the rounding of ρ from the norms of A, η, r - Aη, r, the right-hand side g and ρ."""
    eps, image = precision(rows), largest * eta
    return Noise(
        rest=eps * (largest * (residual + image) + total + rest),
        image=eps * image,
        residual=jnp.minimum(residual, r),
        largest=largest,
    )


def precision(rows: AbstractRows) -> float:
    """Return the relative error of a sum over rows or parameters."""
    return 2 * math.sqrt(max(rows.shape)) * float(jnp.finfo(rows.dtype).eps)


def half_of_the_digits(rows: AbstractRows, largest: Scalar) -> Scalar:
    """Return √(max(m, P) eps) · s_max, what a solver that squares A resolves.

    `largest` is an estimate, and may be smaller than s_max: a factor makes up for it.
    """
    return 10 * math.sqrt(max(rows.shape) * float(jnp.finfo(rows.dtype).eps)) * largest
