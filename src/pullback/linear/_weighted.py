r"""Weighted least squares with weights that span any number of decades.

\[ d = \arg\min_d\ \sum_i w_i\,(a_i \cdot d - b_i)^2, \qquad \text{of least norm if there are
several.} \]

\(A^\top W A\) is never formed. If the rows are independent, the weights cancel and \(d = A^+ b\).
Otherwise, where rows of nearly the largest weight span all dimensions, rows are sorted by weight
and columns pivoted in Householder's QR of \(W^{1/2}A\). Where they do not, the rows are reduced
with their weights kept apart (`_graded.py`), so that a row of weight \(10^{-200}\) still decides
what the heavier rows leave open, also where these are dependent. Normal equations lose all of that
once the weights spread over more than sixteen decades.

*Rank.* The rank of \(A\) is that of the unweighted rows, and is decided there: in the weighted
matrix a small pivot means a light row as often as a dependent one. Columns of any units are
independent if they are so at a common size, because the minimiser is then one and changes with the
units as it should. Otherwise the singular values decide, against \(\max(N,
D)\,\varepsilon\,\sigma_1\).
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._base.vector import finite_or_nan
from ._graded import TINY_ROW, graded_triangle


# Compiled here, so that calls outside compiled code do not compile the branches below each time.
@jax.jit
def least_squares(
    a: Float[Array, "N D"],
    log_weights: Float[Array, " N"],
    log_targets: Float[Array, " N"],
    signs: Float[Array, " N"],
) -> Float[Array, " D"]:
    """The minimiser of least norm, from the logarithms of weights and targets and their signs."""
    n, d = a.shape
    if n <= d:
        u, s, vt, keep = _singular(a)
        inverse = jnp.where(keep, 1 / jnp.where(keep, s, 1), 0)
        return jax.lax.cond(
            jnp.sum(keep) == n,
            lambda: vt.T @ (inverse * (u.T @ (signs * jnp.exp(log_targets)))),
            lambda: _graded(*_row_space(a, vt, keep), log_weights, log_targets, signs),
        )
    units = column_units(a)
    scaled = a / units[None, :]

    def far():
        pivots = _pivots(scaled)
        full = pivots[-1] > max(n, d) * jnp.finfo(a.dtype).eps * pivots[0]
        at_once = lambda: (scaled, jnp.diag(1 / units))
        reduced = lambda: _row_space(a, *_singular(a)[2:])
        return _graded(*jax.lax.cond(full, at_once, reduced), log_weights, log_targets, signs)

    def near():
        return _sorted_qr(scaled, log_weights, log_targets, signs) / units

    return jax.lax.cond(heavy_rows_span(scaled, log_weights), near, far)


def column_units(a: Float[Array, "N D"]) -> Float[Array, " D"]:
    """Powers of two of about the size of each column; 1 for a column of zeros."""
    # Powers of two, so that dividing by them does not round.
    _, exponents = jnp.frexp(jnp.max(jnp.abs(a), axis=0))
    return jnp.ldexp(jnp.ones(a.shape[1], a.dtype), exponents)


def heavy_rows_span(a: Float[Array, "N D"], log_weights: Float[Array, " N"]) -> Bool[Array, ""]:
    """Whether rows of nearly the largest weight span all dimensions, so that no light row decides.

    Then the rounding of the heaviest row stays far below the least pivot of a QR. Without any light
    row the pivots need be no more above rounding than weights spread.
    """
    eps = float(jnp.finfo(a.dtype).eps)
    heavy = log_weights > jnp.max(log_weights) + math.log(eps) / 2
    pivots = _pivots(jnp.where(heavy[:, None], a, 0))
    spread = jnp.exp((jnp.max(log_weights) - jnp.min(log_weights)) / 2)
    least = jnp.where(jnp.all(heavy), max(a.shape) * eps * spread, eps**0.25)
    return pivots[-1] > least * pivots[0]


def _pivots(a: Float[Array, "N D"]) -> Float[Array, " D"]:
    """The pivots of a QR with pivoted columns, largest first."""
    return jnp.abs(jnp.diagonal(jax.scipy.linalg.qr(a, mode="r", pivoting=True)[0]))


def _singular(a: Float[Array, "N D"]) -> tuple[Array, Array, Array, Array]:
    """The singular value decomposition, and which singular values are not rounding."""
    u, s, vt = jnp.linalg.svd(finite_or_nan(a), full_matrices=False)
    return u, s, vt, s > max(a.shape) * jnp.finfo(a.dtype).eps * s[0]


def _row_space(
    a: Float[Array, "N D"], vt: Float[Array, "K D"], keep: Bool[Array, " K"]
) -> tuple[Float[Array, "N K"], Float[Array, "K D"]]:
    """The rows in coordinates of the row space, and the directions of these coordinates."""
    rows = jnp.where(keep[None, :], a @ vt.T, 0)
    size = lambda b: jnp.max(jnp.abs(b), axis=1)
    # What is left of a row outside of the row space is rounding.
    inside = size(rows) > TINY_ROW * max(a.shape) * jnp.finfo(a.dtype).eps * size(a)
    return jnp.where(inside[:, None], rows, 0), jnp.where(keep[:, None], vt, 0)


def _graded(
    rows: Float[Array, "N K"],
    directions: Float[Array, "K D"],
    log_weights: Float[Array, " N"],
    log_targets: Float[Array, " N"],
    signs: Float[Array, " N"],
) -> Float[Array, " D"]:
    """The minimiser for weights of any spread, from coordinates and their directions."""
    return graded_triangle(rows, log_weights, log_targets, signs).solution() @ directions


def _sorted_qr(
    a: Float[Array, "N D"],
    log_weights: Float[Array, " N"],
    log_targets: Float[Array, " N"],
    signs: Float[Array, " N"],
) -> Float[Array, " D"]:
    """The minimiser by a sorted and pivoted QR, for independent columns."""
    # Beside the heavy rows, which span all dimensions, only the product of such a weight and its
    # target counts. The target alone would overflow.
    least = jnp.max(log_weights) + 4 * math.log(float(jnp.finfo(a.dtype).eps))
    raised = jnp.maximum(log_weights, least)
    log_weights, log_targets = raised, log_targets + log_weights - raised
    order = jnp.argsort(-log_weights)
    half = (log_weights - jnp.max(log_weights))[order] / 2
    scaled = a[order] * jnp.exp(half)[:, None]
    columns = jax.scipy.linalg.qr(scaled, mode="r", pivoting=True)[1]
    targets = signs[order] * jnp.exp(half + log_targets[order])
    # The reflections are applied to the targets as to one more column. An explicit Q has errors of
    # the size of the heaviest row in every entry.
    triangle = jnp.linalg.qr(jnp.column_stack([scaled[:, columns], targets]), mode="r")
    r = triangle[: a.shape[1], :-1]
    rhs = triangle[: a.shape[1], -1]
    solution = jax.scipy.linalg.solve_triangular(r, rhs)
    return jnp.zeros(a.shape[1], a.dtype).at[columns].set(solution)
