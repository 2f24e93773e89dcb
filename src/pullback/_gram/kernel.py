r"""\(K = AA^\top\) from factors, without A.

\[ K_{nq,n'q'} = \sum_{tt'} (x_{nt}\cdot x_{n't'})\,(d_{nqt}\cdot d_{n'q't'}), \]

summed over the leaves.

K is computed by tiles, on one side of the diagonal only: XLA has no symmetric product, and
\(AA^\top\) as a general one costs twice as much. A tile is so small that its products and their sum
over the leaves stay in the cache. (Whole block rows of K would go through memory once for every
leaf, which takes longer than their products.) The tiles are the iterations of one loop, so that
only one tile is compiled.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .factors import Factors

TILE = 2**18
"""The bytes of a tile of K: two products and their sum fit in a second-level cache of 1 MB.

With T positions per sample the products are T² times as large, and a tile has 1/T of the rows.
"""


def tile_count(samples: int, rows: int, dtype: Any, positions: int = 1) -> int:
    """The number of tiles along one side of a kernel."""
    side = math.sqrt(TILE / jnp.dtype(dtype).itemsize)
    return max(1, min(samples, round(rows * positions / side)))


def kernel(factors: Factors) -> Float[Array, "m m"]:
    """The lower triangle of K; entries above the diagonal tiles are zero."""
    return by_tiles(factors, pairs, factors.rows.shape[1])


def by_tiles(
    factors: Factors, tile: Callable[[Factors, Factors], Array], q: int
) -> Float[Array, "m m"]:
    """The lower triangle of a kernel of q rows per sample, whose tiles are a function of factors.

    It is computed as the transpose of the upper triangle: LAPACK wants columns, so that the
    transpose costs nothing, where a copy would cost as much as the products.
    """
    n = factors.rows.shape[0]
    m = n * q
    tiles = tile_count(n, m, factors.rows.dtype, max([1, *(d.shape[2] for d in factors.d)]))
    count = -(-n // tiles)

    # A slice that would reach beyond the end begins earlier, both where it is read and where it is
    # written. Some entries of the last tile are therefore computed twice.
    def cut(index):
        return jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, index * count, count), factors
        )

    def column(j, out):
        mine = cut(j)

        def put(i, out):
            return jax.lax.dynamic_update_slice(
                out, tile(cut(i), mine), (i * count * q, j * count * q)
            )

        return jax.lax.fori_loop(0, j + 1, put, out)

    # A zero that depends on the factors. Otherwise XLA allocates K before the factors are computed,
    # beside everything that they are computed from.
    one = [x for x in (*factors.d, factors.rows) if x.size][:1]
    zero = (
        jnp.minimum(jnp.abs(one[0].ravel()[0]), 0.0) if one else jnp.zeros((), factors.rows.dtype)
    )
    return jax.lax.fori_loop(0, tiles, column, jnp.broadcast_to(zero, (m, m))).T


def kernel_of_rows(rows: Float[Array, "m P"]) -> Float[Array, "m m"]:
    """The lower triangle of K from A."""
    return kernel(Factors((), (), rows[:, None, :], ()))


def diagonal_blocks(factors: Factors) -> Float[Array, "n q q"]:
    """The blocks of K of each sample with itself."""

    def one(factors):
        alone = jax.tree.map(lambda x: x[None], factors)
        return pairs(alone, alone)

    return jax.lax.map(one, factors)


def pairs(one: Factors, other: Factors) -> Array:
    """K between two sets of samples."""
    n, q, size = one.rows.shape
    total = jnp.zeros((n, q, n, q), one.rows.dtype)
    for x, d, other_x, other_d, codes in zip(
        one.x, one.d, other.x, other.d, one.codes, strict=True
    ):
        total = total + _pairs(x, other_x, d, other_d, codes)
    total = total.reshape(n * q, n * q)
    return total + one.rows.reshape(-1, size) @ other.rows.reshape(-1, size).T if size else total


def _pairs(x: Array, other_x: Array, d: Array, other_d: Array, codes: bool) -> Array:
    """The kernel of one leaf between two sets of samples."""
    n, q, t, o = d.shape
    # Positions outermost, so that the sum over pairs of positions is a sum of whole matrices.
    x = jnp.moveaxis(x, 1, 0)
    other_x = jnp.moveaxis(other_x, 1, 0)
    d = jnp.moveaxis(d, 2, 0)
    other_d = jnp.moveaxis(other_d, 2, 0)
    if codes:
        mine = x[:, :, None, None]
        seen = ((mine == other_x[None, None]) & (mine >= 0)).astype(d.dtype)
    else:
        seen = (x.reshape(t * n, -1) @ other_x.reshape(t * n, -1).T).reshape(t, n, t, n)
    passed = (d.reshape(-1, o) @ other_d.reshape(-1, o).T).reshape(t, n, q, t, n, q)
    return jnp.sum(seen[:, :, None, :, :, None] * passed, axis=(0, 3))


def product(factors: Factors, y: Float[Array, " m"]) -> Float[Array, " m"]:
    r"""K y from factors, at about half the cost of a gradient.

    \(e_{nt} = \sum_q y_{nq} d_{nqt}\) are the covectors at the products. They are multiplied by
    \(X(X^\top e)\), or by \((XX^\top)e\) where there are fewer positions in all than inputs.
    """
    n, q, _ = factors.rows.shape
    y = y.reshape(n, q)
    total = jnp.einsum("nqr,r->nq", factors.rows, jnp.einsum("nqr,nq->r", factors.rows, y))
    for x, d, codes in zip(factors.x, factors.d, factors.codes, strict=True):
        e = _each(lambda y, d: y @ d, y, d).reshape(-1, d.shape[-1])
        if codes:
            flat = x.reshape(-1)
            met = ((flat[:, None] == flat[None, :]) & (flat[:, None] >= 0)).astype(d.dtype) @ e
        else:
            flat = x.reshape(-1, x.shape[-1])
            met = (flat @ flat.T) @ e if 2 * flat.shape[0] < flat.shape[1] else flat @ (flat.T @ e)
        total = total + _each(lambda met, d: d @ met, met.reshape(n, -1), d)
    return total.reshape(-1)


def _each(function: Callable[[Array, Array], Array], vectors: Array, d: Array) -> Array:
    """A function of a vector and of d as q × (t, o), sample by sample."""
    # For products of all samples at once XLA would make a transposed copy of d.
    d = d.reshape(*d.shape[:2], -1)
    if d.shape[1] == 1:
        return jax.vmap(function)(vectors, d)
    return jax.lax.map(lambda pair: function(*pair), (vectors, d))
