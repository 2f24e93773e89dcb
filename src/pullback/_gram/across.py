r"""K and its products from the factors of several terms, block by block.

The block of a term with itself is its kernel (`kernel.py`); that of two terms is

\[ K_{nq,n'q'} = \sum_{tt'} (x_{nt}\cdot x_{n't'})\,(d_{nqt}\cdot d_{n'q't'}) , \]

summed over the leaves that both use, by tiles that stay in the cache.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .factors import Factors
from .joint import JointFactors
from .kernel import TILE, kernel, product


def joint_kernel(factors: JointFactors) -> Float[Array, "m m"]:
    """The lower triangle of K; entries above the diagonal tiles are zero."""
    if len(factors.parts) == 1:
        return kernel(factors.parts[0])
    sizes = [_row_count(part) for part in factors.parts]
    out = jnp.zeros((sum(sizes), sum(sizes)), factors.parts[0].rows.dtype)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    for k, part in enumerate(factors.parts):
        out = jax.lax.dynamic_update_slice(out, kernel(part), (starts[k], starts[k]))
        for j in range(k):
            block = _cross(_shared(factors, k, j), _shared(factors, j, k))
            out = jax.lax.dynamic_update_slice(out, block, (starts[k], starts[j]))
    return out


def joint_block(
    one: JointFactors, other: JointFactors, ahead: int | None = None
) -> Float[Array, "m l"]:
    """K between two sets of samples of the same terms: those of two devices, say.

    With `ahead` the entries that are farther than this to the right of the diagonal may be zero.
    """
    terms, sizes = range(len(one.parts)), [_row_count(part) for part in one.parts]
    starts = [sum(sizes[:k]) for k in terms]
    reach = lambda k, j: None if ahead is None else starts[k] - starts[j] + ahead
    blocks = [
        [_cross(_shared(one, k, j), _shared(other, j, k), reach(k, j)) for j in terms]
        for k in terms
    ]
    return jnp.block(blocks)


def _row_count(factors: Factors) -> int:
    """Return how many rows of A the samples of a term have."""
    return factors.rows.shape[0] * factors.rows.shape[1]


def as_factors(rows: Float[Array, "m P"]) -> JointFactors:
    """Rows of A that have no factors, in the form of those that have."""
    return JointFactors((Factors((), (), rows[:, None, :], ()),), ((),))


def _shared(factors: JointFactors, k: int, j: int) -> Factors:
    """Return the factors of term k, those of leaves only that term j has, too."""
    mine, other, part = factors.leaves[k], factors.leaves[j], factors.parts[k]
    places = [mine.index(leaf) for leaf in mine if leaf in other]
    places.sort(key=lambda place: mine[place])
    return Factors(
        tuple(part.x[p] for p in places),
        tuple(part.d[p] for p in places),
        part.rows,
        tuple(part.codes[p] for p in places),
    )


def _cross(one: Factors, other: Factors, reach: int | None = None) -> Float[Array, "m l"]:
    """K between the samples of two terms, which have the same leaves.

    With `reach` the entries that are at least this far to the right of the diagonal may be zero.
    """
    (n, q, _), (p, r, _) = one.rows.shape, other.rows.shape
    item = jnp.dtype(one.rows.dtype).itemsize
    pairs = [d.shape[2] * e.shape[2] for d, e in zip(one.d, other.d, strict=True)]
    # Half of the tiles along each side, so that products of all positions fit.
    side = math.sqrt(TILE / item / max([1, *pairs]))
    count, width = (max(1, min(n, round(side / q))), max(1, min(p, round(side / r))))
    if count == n and width == p:
        return _tile(one, other)

    def cut(factors, index, size):
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index * size, size), factors)

    # A slice that would reach beyond the end begins earlier, both where it is read and where it is
    # written.
    def row(i, out):
        mine = cut(one, i, count)

        def put(j, out):
            tile = _tile(mine, cut(other, j, width))
            place = (i * count * q, j * width * r)
            return jax.lax.dynamic_update_slice(out, tile, place)

        turns = -(-p // width)
        if reach is not None:
            columns = jnp.minimum((i + 1) * count, n) * q + reach
            turns = jnp.clip(-(-columns // (width * r)), 0, turns)
        return jax.lax.fori_loop(0, turns, put, out)

    start = jnp.zeros((n * q, p * r), one.rows.dtype)
    return jax.lax.fori_loop(0, -(-n // count), row, start)


def _tile(one: Factors, other: Factors) -> Array:
    """K between two sets of samples of two terms."""
    (n, q, size), (p, r, _) = one.rows.shape, other.rows.shape
    total = one.rows.reshape(n * q, size) @ other.rows.reshape(p * r, size).T
    for x, d, y, e, codes in zip(one.x, one.d, other.x, other.d, one.codes, strict=True):
        total = total + _pairs(x, y, d, e, codes).reshape(n * q, p * r)
    return total


def _pairs(x: Array, y: Array, d: Array, e: Array, codes: bool) -> Array:
    """The kernel of one leaf between two sets of samples, [n, q, p, r]."""
    (n, q, t, o), (p, r, u, _) = d.shape, e.shape
    # Positions outermost, so that the sum over pairs of positions is a sum of whole matrices.
    x, y, d, e = (jnp.moveaxis(z, axis, 0) for z, axis in ((x, 1), (y, 1), (d, 2), (e, 2)))
    if codes:
        mine = x[:, :, None, None]
        seen = ((mine == y[None, None]) & (mine >= 0)).astype(d.dtype)
    else:
        seen = (x.reshape(t * n, -1) @ y.reshape(u * p, -1).T).reshape(t, n, u, p)
    passed = (d.reshape(-1, o) @ e.reshape(-1, o).T).reshape(t, n, q, u, p, r)
    return jnp.sum(seen[:, :, None, :, :, None] * passed, axis=(0, 3))


def joint_product(factors: JointFactors, y: Float[Array, " m"]) -> Float[Array, " m"]:
    r"""K y from factors: the covectors \(e = d^\top y\) of all terms meet in each leaf."""
    if len(factors.parts) == 1:
        return product(factors.parts[0], y)
    shapes = [part.rows.shape[:2] for part in factors.parts]
    ends = [sum(n * q for n, q in shapes[: k + 1]) for k in range(len(shapes) - 1)]
    parts = [own.reshape(shape) for own, shape in zip(jnp.split(y, ends), shapes, strict=True)]
    pulled = sum(
        jnp.einsum("nqr,nq->r", part.rows, own)
        for part, own in zip(factors.parts, parts, strict=True)
    )
    totals = [jnp.einsum("nqr,r->nq", part.rows, pulled) for part in factors.parts]
    for leaf in dict.fromkeys(leaf for leaves in factors.leaves for leaf in leaves):
        users = factors.of(leaf)
        met = {k: jnp.einsum("nq,nqto->nto", parts[k], d) for k, _, d, _ in users}
        for k, x, d, codes in users:
            found = [_meet(x, other_x, met[j], codes) for j, other_x, _, _ in users]
            totals[k] = totals[k] + jnp.einsum("nqto,nto->nq", d, sum(found))
    return jnp.concatenate([total.ravel() for total in totals])


def _meet(x: Array, y: Array, e: Array, codes: bool) -> Array:
    """X (Yᵀ e), [n, t, o], for the positions of one term and the covectors of another."""
    if codes:
        mine = x[:, :, None, None]
        seen = ((mine == y[None, None]) & (mine >= 0)).astype(e.dtype)
        return jnp.einsum("ntpu,puo->nto", seen, e)
    return jnp.einsum("nti,io->nto", x, jnp.einsum("pui,puo->io", y, e))
