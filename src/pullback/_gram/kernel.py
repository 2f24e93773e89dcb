r"""\(K = AA^\top\) from factors, without A.

\[ K_{nq,n'q'} = \sum_{tt'} (x_{nt}\cdot x_{n't'})\,(d_{nqt}\cdot d_{n'q't'}), \]

summed over the leaves.

K is computed by tiles, on one side of the diagonal only: XLA has no symmetric product, and
\(AA^\top\) as a general one costs twice as much. A tile is so small that its products and their sum
over the leaves stay in the cache. (Whole block rows of K would go through memory once for every
leaf, which takes longer than their products.) The tiles are the iterations of one loop, so that
only one tile is compiled.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .factors import Factors, row_blocks

TILE = 2**18
"""The bytes of a tile of K: two products and their sum fit in a second-level cache of 1 MB.

With T positions per sample the products are T² times as large, and a tile has 1/T of the rows.
"""

COLUMNS = 2**23
"""The bytes of the columns of rows that are formed at a time."""


def tile_count(samples: int, rows: int, dtype: Any, positions: int = 1) -> int:
    """The number of tiles along one side of a kernel."""
    side = math.sqrt(TILE / jnp.dtype(dtype).itemsize)
    return max(1, min(samples, round(rows * positions / side)))


def kernel(factors: Factors) -> Float[Array, "m m"]:
    """The lower triangle of K; entries above the diagonal tiles are zero.

    It is computed as the transpose of the upper triangle: LAPACK wants columns, so that the
    transpose costs nothing, where a copy would cost as much as the products.
    """
    n, q, _ = factors.rows.shape
    out = _allocate(n * q, next((x for x in (*factors.d, factors.rows) if x.size), factors.rows))
    for number, (tiles, part) in enumerate(_parts(factors)):
        out = _add(out, part, pairs, (n, q, tiles), first=number == 0)
    for x, d, formed in zip(factors.x, factors.d, factors.formed, strict=False):
        if formed:
            out = _add_formed(out, x, d)
    return out.T


def by_tiles(
    samples: PyTree,
    tile: Callable[[Any, Any], Array],
    factors: Factors,
    after: Array,
    q: int | None = None,
) -> Float[Array, "m m"]:
    """The lower triangle of a kernel whose tiles are a function of two sets of samples.

    The factors tell its shape, unless there are q rows per sample; it is allocated after an array
    is computed.
    """
    n, rows, _ = factors.rows.shape
    q = rows if q is None else q
    widest = max([1, *(d.shape[2] for d in factors.d)])
    tiles = tile_count(n, n * q, factors.rows.dtype, widest)
    return _add(_allocate(n * q, after), samples, tile, (n, q, tiles), first=True).T


def _allocate(m: int, after: Array) -> Float[Array, "m m"]:
    """A zero that depends on an array.

    Otherwise XLA allocates K before the factors are computed, beside everything that they are
    computed from.
    """
    zero = jnp.minimum(jnp.abs(after.ravel()[0]), 0.0) if after.size else jnp.zeros((), after.dtype)
    return jnp.broadcast_to(zero, (m, m))


def _parts(factors: Factors) -> list[tuple[int, Factors]]:
    """The leaves by the number of tiles that suits them, with that number; rows have one position.

    Leaves of one position in the small tiles of leaves with many would be products of few rows.
    """
    n, q, size = factors.rows.shape
    suits = lambda t: tile_count(n, n * q, factors.rows.dtype, 2 ** math.ceil(math.log2(t)))
    formed = factors.formed or (False,) * len(factors.x)
    every = zip(factors.x, factors.d, factors.codes, formed, strict=True)
    leaves = [leaf[:3] for leaf in every if not leaf[3]]
    found: dict[int, list] = {suits(1): []} if size else {}
    for leaf in leaves:
        found.setdefault(suits(max(1, leaf[1].shape[2])), []).append(leaf)
    none = jnp.zeros((n, q, 0), factors.rows.dtype)
    parts = []
    for tiles, group in found.items():
        x, d, codes = zip(*group, strict=True) if group else ((), (), ())
        rows = factors.rows if size and tiles == suits(1) else none
        parts.append((tiles, Factors(tuple(x), tuple(d), rows, tuple(codes))))
    return parts


def _add(
    out: Array,
    samples: PyTree,
    tile: Callable[[Any, Any], Array],
    shape: tuple[int, int, int],
    first: bool,
) -> Array:
    """Tiles of a kernel, added to the upper triangle of a sum; to zero if they are the first.

    The shape is n, q, and the number of tiles along one side.
    """
    n, q, tiles = shape
    count = -(-n // tiles)
    # A slice that would reach beyond the end begins earlier, both where it is read and where it is
    # written. Some entries of the last tile are therefore computed twice, and added once.
    start = lambda index: jnp.minimum(index * count, n - count)
    fresh = lambda index: jnp.repeat(jnp.arange(count) + start(index) >= index * count, q)

    def cut(index):
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start(index), count), samples)

    def column(j, out):
        mine = cut(j)

        def put(i, out):
            new, place = tile(cut(i), mine), (start(i) * q, start(j) * q)
            if not first:
                wanted = fresh(i)[:, None] & fresh(j)[None, :]
                old = jax.lax.dynamic_slice(out, place, new.shape)
                new = old + jnp.where(wanted, new, 0.0)
            return jax.lax.dynamic_update_slice(out, new, place)

        return jax.lax.fori_loop(0, j + 1, put, out)

    return jax.lax.fori_loop(0, tiles, column, out)


def _add_formed(out: Array, x: Array, d: Array) -> Array:
    """K of one leaf, added to the upper triangle of a sum, from some columns of its rows at a time.

    The columns are those of some inputs. They stay in the cache between the product that forms them
    and those that use them.
    """
    n, t, i = x.shape
    d = d.reshape(n, t, -1)
    o = d.shape[-1]
    width = max(1, min(i, COLUMNS // (n * o * d.dtype.itemsize)))
    edges = np.linspace(0, n, row_blocks(n) + 1).astype(int)

    def columns(k, out):
        start = jnp.minimum(k * width, i - width)
        part = jax.lax.dynamic_slice_in_dim(x, start, width, axis=2)
        # The last columns begin earlier; those that were there are left out.
        fresh = start + jnp.arange(width) >= k * width
        part = jnp.where(fresh[None, None, :], part, 0.0)
        rows = jnp.einsum("nti,nto->nio", part, d).reshape(n, -1)
        for low, high in itertools.pairwise(edges):
            out = out.at[:high, low:high].add(rows[:high] @ rows[low:high].T)
        return out

    return jax.lax.fori_loop(0, -(-i // width), columns, out)


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
