r"""Weighted least squares where the weights of the rows spread beyond the digits of the arithmetic.

\[ d = \arg\min_d\ \sum_i e^{\ell_i}\,(a_i \cdot d - b_i)^2 . \]

*Why a QR of the weighted rows is not enough.* Let two heavy rows be equal. Their difference is
zero, but a factorisation leaves the rounding of the heavier one there, \(10^{-16}\) of it. A row of
weight \(10^{-40}\) that should decide the direction disappears behind it.

*A staircase first.* Gram-Schmidt on the unweighted rows, heaviest first, gives \(A = LQ^\top\),
where row i of L has no entry in a direction that only lighter rows have. A row that depends on
heavier ones to rounding is taken to depend on them. So these entries of L are zeros, not rounding,
and stay zeros in what follows: a Householder reflection leaves a row alone that has no entry in its
column.

*Then Householder's reduction with complete pivoting.* No multiplier and no growth is larger than 1,
so that the error of each row is small relative to this row (Cox and Higham). Rows are kept at the
size of their unweighted selves, with the logarithms of their weights beside them, and weights enter
as ratios to the pivot row only: nothing overflows, and what underflows is invisible. A large target
keeps the logarithm of its size beside it, because what overflows may be that of a row whose weight
makes up for it.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

TINY_ROW = 4.0
"""What counts as rounding of a row, in units of max(N, D) · eps of its size."""
RATIO = 0.5
"""The largest logarithm of a ratio of weights, relative to that of the largest number."""


class Triangle(NamedTuple):
    """The reduced rows: a triangle R whose rows have a weight of their own."""

    q: Float[Array, "K D"]
    """Orthonormal rows that span those of A; zeros beyond the rank."""
    r: Float[Array, "K K"]
    """R, upper triangular, in the order of `columns`; the identity beyond the rank."""
    half: Float[Array, " K"]
    """Half the logarithm of the weight of each row of R."""
    targets: Float[Array, " K"]
    """The reduced targets, without the weights."""
    columns: Int[Array, " K"]
    """The directions in the order of the columns of R."""
    rank: Int[Array, ""]
    """How many rows of R there are."""

    def solution(self) -> Float[Array, " D"]:
        """The minimiser of least norm."""
        z = jax.scipy.linalg.solve_triangular(self.r, self.targets)
        return jnp.zeros_like(z).at[self.columns].set(z) @ self.q

    def metric_solution(self, covector: Float[Array, " D"]) -> Float[Array, " D"]:
        """(AᵀWA)⁻¹ times a covector, for rows that span all dimensions."""
        # R is the product of its weights and its unit rows, and the weights enter twice.
        turned = (self.q @ covector)[self.columns]
        w = jax.scipy.linalg.solve_triangular(self.r, turned, trans="T")
        top = jnp.max(-2 * self.half)
        z = jax.scipy.linalg.solve_triangular(self.r, w * jnp.exp(-2 * self.half - top))
        # The scale last, so that what overflows is infinite and not the difference of infinities.
        return (jnp.zeros_like(z).at[self.columns].set(z) @ self.q) * jnp.exp(top)


def graded_triangle(
    a: Float[Array, "N D"],
    log_weights: Float[Array, " N"],
    log_targets: Float[Array, " N"],
    signs: Float[Array, " N"],
) -> Triangle:
    """The reduction of the rows, from the logarithms of weights and targets and their signs."""
    sizes = jnp.max(jnp.abs(a), axis=1)
    present = sizes > 0
    sizes = jnp.where(present, sizes, 1)
    half = log_weights / 2 + jnp.log(sizes)
    order = jnp.argsort(-jnp.where(present, half, -jnp.inf))
    rows = (a / sizes[:, None])[order]
    stairs, q, rank = _staircase(rows)
    large = jnp.maximum(log_targets, 0)
    targets = signs * jnp.exp(log_targets - large) / sizes
    r, half, reduced, columns = _reduced(stairs, half[order], targets[order], large[order])
    return Triangle(q, r, half, reduced, columns, rank)


def _staircase(
    a: Float[Array, "N D"],
) -> tuple[Float[Array, "N K"], Float[Array, "K D"], Int[Array, ""]]:
    """L and Qᵀ with A = L Qᵀ, row by row, and the rank."""
    n, d = a.shape
    k = min(n, d)
    least = TINY_ROW * max(n, d) * jnp.finfo(a.dtype).eps

    def add(i, carry):
        stairs, q, rank = carry
        row = a[i]
        along = q @ row
        rest = row - along @ q
        # Once more: the first pass leaves rounding of the size of the row.
        again = q @ rest
        rest = rest - again @ q
        size = jnp.linalg.norm(rest)
        new = (size > least * jnp.linalg.norm(row)) & (rank < k)
        at = jnp.minimum(rank, k - 1)
        unit = rest / jnp.where(new, size, 1)
        q = q.at[at].set(jnp.where(new, unit, q[at]))
        along = along + again
        along = along.at[at].set(jnp.where(new, size, along[at]))
        return stairs.at[i].set(along), q, rank + new.astype(rank.dtype)

    zero = jnp.zeros((), jnp.int32)
    start = (jnp.zeros((n, k), a.dtype), jnp.zeros((k, d), a.dtype), zero)
    return jax.lax.fori_loop(0, n, add, start)


def _reduced(
    s: Float[Array, "N K"],
    half: Float[Array, " N"],
    targets: Float[Array, " N"],
    large: Float[Array, " N"],
) -> tuple[Float[Array, "K K"], Float[Array, " K"], Float[Array, " K"], Int[Array, " K"]]:
    """R, the halves of the logarithms of its weights, its targets and the order of its columns.

    A target is the number in `targets` times the exponential of that in `large`.
    """
    n, k = s.shape
    most = RATIO * math.log(float(jnp.finfo(s.dtype).max))

    def eliminate(j, carry):
        s, targets, free_rows, free_columns, pivots, columns = carry
        sizes = jnp.max(jnp.abs(s), axis=1)
        score = jnp.where(free_rows & (sizes > 0), half + jnp.log(sizes), -jnp.inf)
        p = jnp.argmax(score).astype(jnp.int32)
        q = jnp.argmax(jnp.where(free_columns, jnp.abs(s[p]), -1)).astype(jnp.int32)
        there = score[p] > -jnp.inf
        # In units of the pivot row: at most the pivot itself, by the choice of the pivot.
        ratio = jnp.where(free_rows, jnp.exp(jnp.minimum(half - half[p], most)), 0)
        column = ratio * s[:, q]
        length = jnp.linalg.norm(column)
        pivot = s[p, q]
        beyond = pivot + jnp.where(pivot < 0, -length, length)
        # The reflection is I - τvvᵀ with v the column, `beyond` in place of the pivot; each row is
        # divided by its ratio again.
        v = s[:, q].at[p].set(beyond)
        tau = jnp.where(there, 1 / jnp.where(there, length * jnp.abs(beyond), 1), 0)
        moved = jnp.where(free_rows, tau * v, 0)
        s = s - moved[:, None] * ((v * ratio) @ (ratio[:, None] * s))[None, :]
        # A heavy row without a part in this column has 0, and a ratio that may overflow.
        part = free_rows & (v != 0)
        twice = jnp.where(part, jnp.exp(2 * (half - half[p]) + large), 0)
        targets = targets - moved * jnp.exp(-large) * jnp.sum(v * twice * targets)
        free_rows = free_rows.at[p].set(free_rows[p] & ~there)
        # What is reduced to zero is zero, not its rounding.
        s = s.at[:, q].set(jnp.where(free_rows, 0, s[:, q]))
        pivots = pivots.at[j].set(jnp.where(there, p, -1))
        return s, targets, free_rows, free_columns.at[q].set(False), pivots, columns.at[j].set(q)

    none = jnp.zeros(k, jnp.int32)
    start = (s, targets, jnp.ones(n, bool), jnp.ones(k, bool), none, none)
    s, targets, _, _, pivots, columns = jax.lax.fori_loop(0, k, eliminate, start)
    found = pivots >= 0
    r = jnp.where(found[:, None], s[pivots][:, columns], jnp.eye(k, dtype=s.dtype))
    reduced = targets[pivots] * jnp.exp(large[pivots])
    return r, half[pivots], jnp.where(found, reduced, 0), columns
