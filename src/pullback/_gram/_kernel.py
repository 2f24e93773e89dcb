r"""\(K = AA^\top\) from factors, without A: \(K_{nq,n'q'} = \sum_{tt'} (x_{nt}\cdot x_{n't'})\,(d_{nqt}\cdot d_{n'q't'})\), summed over the leaves.

Only the blocks on and below the diagonal are computed: XLA has no symmetric product, and \(AA^\top\) as a general one costs twice as much. With b
block rows the work is \((1 + 1/b)/2\) of the whole.
"""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._factors import Factors

BLOCK_ROWS, MAX_BLOCKS = 128, 8
"""As many block rows as leave each at least 128 rows of K, and at most 8: more of them are only longer to compile."""


def block_count(rows: int) -> int:
    """The number of block rows of a kernel.

    **Arguments:**

    - `rows`: the number m of rows of A.
    """
    return max(1, min(MAX_BLOCKS, rows // BLOCK_ROWS))


def kernel(factors: Factors) -> Float[Array, "m m"]:
    """The lower triangle of K; what is above the diagonal blocks is zero.

    Computed as the transpose of the upper one: LAPACK wants columns, and so the transpose costs nothing, where a copy would cost as much as the
    products.

    **Arguments:**

    - `factors`: A in factors.
    """
    n, q, _ = factors.rows.shape
    m, blocks = n * q, min(n, block_count(n * q))
    edges = [round(k * n / blocks) for k in range(blocks + 1)]
    out = jnp.zeros((m, m), factors.rows.dtype)
    for start, stop in itertools.pairwise(edges):
        out = jax.lax.dynamic_update_slice(out, _block(factors, start, stop), (0, start * q))
    return out.T


def kernel_of_rows(rows: Float[Array, "m P"]) -> Float[Array, "m m"]:
    """The lower triangle of K, A formed.

    **Arguments:**

    - `rows`: A.
    """
    return kernel(Factors((), (), rows[:, None, :], ()))


def _block(factors: Factors, start: int, stop: int) -> Array:
    """Rows of the samples :stop, columns of the samples start:stop."""
    q = factors.rows.shape[1]
    total = jnp.zeros((stop * q, (stop - start) * q), factors.rows.dtype)
    for x, d, codes in zip(factors.x, factors.d, factors.codes, strict=True):
        total = total + _pairs(x[:stop], x[start:stop], d[:stop], d[start:stop], codes)
    if factors.rows.shape[2]:
        rows = factors.rows.reshape(-1, factors.rows.shape[2])
        total = total + rows[: stop * q] @ rows[start * q : stop * q].T
    return total


def _pairs(x, other_x, d, other_d, codes) -> Array:
    """The kernel of one leaf between two sets of samples."""
    (n, q, t, o), other = d.shape, other_d.shape[0]
    if t == 1:
        seen = (x == other_x.T) & (x >= 0) if codes else x[:, 0] @ other_x[:, 0].T
        passed = d.reshape(n * q, o) @ other_d.reshape(other * q, o).T
        # Spelled out over the rows: XLA multiplies two matrices faster than it broadcasts one over the other's inner axes.
        return jnp.repeat(jnp.repeat(seen.astype(d.dtype), q, axis=0), q, axis=1) * passed
    # Positions outermost: the sum over pairs of them is one of whole matrices.
    x, other_x = jnp.moveaxis(x, 1, 0), jnp.moveaxis(other_x, 1, 0)
    d, other_d = jnp.moveaxis(d, 2, 0), jnp.moveaxis(other_d, 2, 0)
    if codes:
        mine = x[:, :, None, None]
        seen = ((mine == other_x[None, None]) & (mine >= 0)).astype(d.dtype)
    else:
        seen = (x.reshape(t * n, -1) @ other_x.reshape(t * other, -1).T).reshape(t, n, t, other)
    passed = (d.reshape(t * n * q, o) @ other_d.reshape(t * other * q, o).T).reshape(t, n, q, t, other, q)
    return jnp.sum(seen[:, :, None, :, :, None] * passed, axis=(0, 3)).reshape(n * q, other * q)


def product(factors: Factors, y: Float[Array, " m"]) -> Float[Array, " m"]:
    r"""K y from factors: about half of the work of a gradient.

    \(e_{nt} = \sum_q y_{nq} d_{nqt}\) are the covectors at the products; they meet through \(X^\top e\), or through \(XX^\top\) where there are fewer positions in all
    than inputs.

    **Arguments:**

    - `factors`: A in factors.
    - `y`: a vector on the rows.
    """
    n, q, _ = factors.rows.shape
    y = y.reshape(n, q)
    total = jnp.einsum("nqr,r->nq", factors.rows, jnp.einsum("nqr,nq->r", factors.rows, y))
    for x, d, codes in zip(factors.x, factors.d, factors.codes, strict=True):
        e = jnp.einsum("nq,nqto->nto", y, d).reshape(-1, d.shape[-1])
        if codes:
            flat = x.reshape(-1)
            met = ((flat[:, None] == flat[None, :]) & (flat[:, None] >= 0)).astype(d.dtype) @ e
        else:
            flat = x.reshape(-1, x.shape[-1])
            met = (flat @ flat.T) @ e if 2 * flat.shape[0] < flat.shape[1] else flat @ (flat.T @ e)
        total = total + jnp.einsum("nto,nqto->nq", met.reshape(n, -1, d.shape[-1]), d)
    return total.reshape(-1)
