r"""Weighted least squares with weights that span any number of decades.

\[ d = \arg\min_d\ \sum_i w_i\,(a_i \cdot d - b_i)^2, \qquad \text{of least norm if there are
several.} \]

\(A^\top W A\) is never formed. If the rows are independent, the weights cancel and \(d = A^+ b\).
Otherwise rows are sorted by weight and columns pivoted: Householder's QR of \(W^{1/2}A\) then has
an error that is small *row by row* (Powell and Reid; Cox and Higham), so that a row of weight
\(10^{-200}\) still decides what the heavier rows leave open. Normal equations lose all of that once
the weights spread over more than sixteen decades.

*Weights beyond the range of floating point.* Let \(\ell\) be the sorted logarithms of the weights.
A gap \(\ell_i - \ell_{i+1} > 80\) makes everything below it invisible to everything above it, to
\(e^{-80}\); shrinking the gap to 80 changes nothing in double precision. If the heaviest D rows
still spread over more than the exponents of floating point can hold, their weights are capped
above: fewer than D rows in general position are met exactly whatever their weights.

*Rank.* The rank of \(A\) is that of the unweighted rows, and is decided there, by the singular
values against \(\max(N, D)\,\varepsilon\,\sigma_1\): in the weighted matrix a small pivot means a
light row as often as a dependent one.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._base.vector import finite_or_nan

GAP = 80.0
"""The difference of log-weights beyond which a lighter row does not affect a heavier one."""


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
        return _by_svd(a, log_weights, log_targets, signs)
    pivots = jnp.abs(jnp.diagonal(jax.scipy.linalg.qr(a, mode="r", pivoting=True)[0]))
    full = pivots[-1] > max(n, d) * jnp.finfo(a.dtype).eps * pivots[0]
    return jax.lax.cond(full, _sorted_qr, _by_svd, a, log_weights, log_targets, signs)


def _by_svd(
    a: Float[Array, "N D"],
    log_weights: Float[Array, " N"],
    log_targets: Float[Array, " N"],
    signs: Float[Array, " N"],
) -> Float[Array, " D"]:
    """The minimiser of least norm at any rank, by reduction to the row space."""
    # There either the rows are independent, and the weights cancel, or the columns are.
    u, s, vt = jnp.linalg.svd(finite_or_nan(a), full_matrices=False)
    keep = s > max(a.shape) * jnp.finfo(a.dtype).eps * s[0]
    inverse = jnp.where(keep, 1 / jnp.where(keep, s, 1), 0)

    def cancelled(_):
        return inverse * (u.T @ (signs * jnp.exp(log_targets)))

    def weighted(_):
        # The columns that are left out become coordinate directions of weight zero, which the
        # pivoting puts last.
        return _sorted_qr(
            jnp.where(keep[None, :], u * s[None, :], 0),
            log_weights,
            log_targets,
            signs,
            rank=jnp.sum(keep),
        )

    all_rows = (jnp.sum(keep) == a.shape[0]) if a.shape[0] <= a.shape[1] else jnp.asarray(False)
    return vt.T @ jax.lax.cond(all_rows, cancelled, weighted, None)


def _representable(log_weights: Float[Array, " N"], columns: int) -> Float[Array, " N"]:
    """Sorted log-weights brought into the range of floating point, as derived in the module."""
    limit = 1.8 * math.log(float(jnp.finfo(log_weights.dtype).max))
    gaps = jnp.minimum(-jnp.diff(log_weights), GAP)
    shrunk = -jnp.concatenate([jnp.zeros(1, log_weights.dtype), jnp.cumsum(gaps)])
    shrunk = jnp.minimum(shrunk - shrunk[min(columns, shrunk.shape[0]) - 1], limit)
    return jnp.where(log_weights[0] - log_weights[-1] < limit, log_weights - log_weights[0], shrunk)


def _sorted_qr(
    a: Float[Array, "N D"],
    log_weights: Float[Array, " N"],
    log_targets: Float[Array, " N"],
    signs: Float[Array, " N"],
    rank: Int[Array, ""] | None = None,
) -> Float[Array, " D"]:
    """The minimiser by a sorted and pivoted QR; columns beyond the rank are left out."""
    order = jnp.argsort(-log_weights)
    half = _representable(log_weights[order], a.shape[1]) / 2
    scaled = a[order] * jnp.exp(half)[:, None]
    columns = jax.scipy.linalg.qr(scaled, mode="r", pivoting=True)[1]
    targets = signs[order] * jnp.exp(half + log_targets[order])
    # The reflections are applied to the targets as to one more column. An explicit Q has errors of
    # the size of the heaviest row in every entry.
    triangle = jnp.linalg.qr(jnp.column_stack([scaled[:, columns], targets]), mode="r")
    r = triangle[: a.shape[1], :-1]
    rhs = triangle[: a.shape[1], -1]
    if rank is not None:
        inside = jnp.arange(r.shape[0]) < rank
        r = jnp.where(inside[:, None] & inside[None, :], r, jnp.eye(*r.shape, dtype=r.dtype))
        rhs = jnp.where(inside, rhs, 0)
    # Each row of R has the scale of its own weight. With the scale divided out, the back
    # substitution neither over- nor underflows.
    scale = jnp.maximum(jnp.max(jnp.abs(r), axis=1), jnp.finfo(r.dtype).tiny)
    solution = jax.scipy.linalg.solve_triangular(r / scale[:, None], rhs / scale)
    return jnp.zeros(a.shape[1], a.dtype).at[columns].set(solution)
