r"""K of a holomorphic model from every other row.

Rows come in pairs \((a, \mathrm{i}a)\), \(\mathrm{i}\) acting on pairs of parameters, and

\[ \langle \mathrm{i}a, \mathrm{i}b\rangle = \langle a, b\rangle, \qquad \langle \mathrm{i}a,
b\rangle = -\langle a, \mathrm{i}b\rangle, \]

so that half of the pulls and half of the products give all of K, the real form of a complex matrix,
\(z \mapsto \begin{pmatrix} \mathrm{Re} & -\mathrm{Im} \\ \mathrm{Im} & \mathrm{Re} \end{pmatrix}\).
The real form of a complex Cholesky factor is lower triangular, because its diagonal is real: it is
the factor of the real form, for half the work.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.pairs import turned
from .._compat.lapack import cholesky
from .._rows.rows import Rows
from .factors import Factors, Layout
from .kernel import by_tiles
from .structured import structured_factors


def half_factors(rows: Rows, plan: Layout) -> Factors:
    """Return every other row of Â, those of real parts, in factors."""
    return structured_factors(rows, plan, half=True)


def half_rows(rows: Rows) -> Factors:
    """Return every other row of Â, dense, formed sample by sample."""
    log_scale = jnp.where(rows.active, 0.0, -jnp.inf).astype(rows.dtype)
    unit = eqx.tree_at(lambda r: r.log_scale, rows, log_scale)
    found = unit.sample_blocks(lambda block: block[::2])
    return Factors((), (), found.reshape(-1, 1, rows.shape[1]), ())


def half_of(dense: Float[Array, "m P"]) -> Factors:
    """Return every other row of a dense Â."""
    return Factors((), (), dense[::2, None, :], ())


def turned_kernel(half: Factors) -> Float[Array, "m m"]:
    """Return the lower triangle of K from every other row."""
    k = half.rows.shape[1]

    def tile(one: Factors, other: Factors) -> Array:
        n = one.rows.shape[0]
        real, crossed = _products(one, other)
        # The rows of i a: -⟨a, i b⟩ and ⟨a, b⟩.
        upper = jnp.stack([real, crossed], axis=-1)
        lower = jnp.stack([-crossed, real], axis=-1)
        return jnp.stack([upper, lower], axis=2).reshape(2 * n * k, 2 * n * k)

    after = next((x for x in (*half.d, half.rows) if x.size), half.rows)
    return by_tiles(half, tile, half, after, 2 * k)


def turned_cholesky(
    matrix: Float[Array, "m m"], scale: Float[Array, " m"]
) -> tuple[Float[Array, "m m"], Array]:
    """Return the factor L of diag(scale) K diag(scale) + λ, and whether all pivots are positive.

    With other scales for real than for imaginary parts the matrix is no real form.
    """

    def by_half(matrix):
        whole = jax.lax.complex(matrix[::2, ::2], matrix[1::2, ::2])
        factor = jnp.tril(jnp.linalg.cholesky(whole, symmetrize_input=False))
        top = jnp.stack([factor.real, -factor.imag], axis=-1)
        low = jnp.stack([factor.imag, factor.real], axis=-1)
        return jnp.stack([top, low], axis=1).reshape(matrix.shape)

    def both(matrix):
        factor, positive = cholesky(matrix)
        return jnp.where(positive, factor, jnp.nan)

    factor = jax.lax.cond(jnp.all(scale[::2] == scale[1::2]), by_half, both, matrix)
    return factor, jnp.all(jnp.isfinite(jnp.diagonal(factor)))


def _products(one: Factors, other: Factors) -> tuple[Array, Array]:
    """Return ⟨a, b⟩ and ⟨a, i b⟩ for the rows of two sets of samples, [n, k, n, k]."""
    n, k, size = one.rows.shape
    total = jnp.zeros((2, n, k, n, k), one.rows.dtype)
    for x, d, other_x, other_d, codes in zip(
        one.x, one.d, other.x, other.d, one.codes, strict=True
    ):
        total = total + _of_leaf(x, other_x, d, other_d, codes)
    if size:
        rows, others = (f.rows.reshape(-1, size) for f in (one, other))
        both = jnp.stack([rows @ others.T, rows @ turned(others).T])
        total = total + both.reshape(total.shape)
    return total[0], total[1]


def _of_leaf(x: Array, other_x: Array, d: Array, other_d: Array, codes: bool) -> Array:
    """Return both products of one leaf between two sets of samples.

    Positions are those of Re x with d̄ and, unless x is an index, of Im x with the conjugate of id,
    which is -i d̄ (`factors.py`): the products of d̄ give all others.
    """
    n, k, t, o = d.shape
    t = t if codes else t // 2
    first = lambda d: jnp.moveaxis(d[:, :, :t], 2, 0).reshape(-1, o)
    mine, theirs = first(d), first(other_d)
    shape = (t, n, k, t, n, k)
    real, crossed = (mine @ b.T for b in (theirs, turned(theirs)))
    real, crossed = real.reshape(shape), crossed.reshape(shape)
    x, other_x = jnp.moveaxis(x, 1, 0), jnp.moveaxis(other_x, 1, 0)
    if codes:
        index = x[:, :, None, None]
        seen = ((index == other_x[None, None]) & (index >= 0)).astype(d.dtype)
        wide = seen[:, :, None, :, :, None]
        return jnp.stack([jnp.sum(wide * y, axis=(0, 3)) for y in (real, crossed)])
    met = x.reshape(2 * t * n, -1) @ other_x.reshape(2 * t * n, -1).T
    met = met.reshape(2, t, n, 2, t, n)
    along = (met[0, :, :, 0] + met[1, :, :, 1])[:, :, None, :, :, None]
    across = (met[1, :, :, 0] - met[0, :, :, 1])[:, :, None, :, :, None]
    both = along * real + across * crossed, along * crossed - across * real
    return jnp.stack([jnp.sum(y, axis=(0, 3)) for y in both])
