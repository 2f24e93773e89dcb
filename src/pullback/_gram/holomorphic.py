r"""K of a holomorphic model from every other row.

Rows come in pairs \((a, \mathrm{i}a)\), \(\mathrm{i}\) acting on pairs of parameters, and

\[ \langle \mathrm{i}a, \mathrm{i}b\rangle = \langle a, b\rangle, \qquad \langle \mathrm{i}a,
b\rangle = -\langle a, \mathrm{i}b\rangle, \]

so that half of the pulls and half of the products give all of K.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.pairs import turned
from .._rows.rows import TermRows
from .factors import Factors, Layout
from .kernel import by_tiles, pairs
from .structured import structured_factors


def half_factors(rows: TermRows, plan: Layout) -> Factors:
    """Return every other row of Â, those of real parts, in factors."""
    return structured_factors(rows, plan, half=True)


def half_rows(dense: Float[Array, "m P"]) -> Factors:
    """Return every other row of a dense Â."""
    return Factors((), (), dense[::2][:, None, :], ())


def turned_kernel(half: Factors) -> Float[Array, "m m"]:
    """Return the lower triangle of K from every other row."""
    k = half.rows.shape[1]

    def tile(one: Factors, other: Factors) -> Array:
        n = one.rows.shape[0]
        both = pairs(one, _with_turned(other)).reshape(n, k, n, k, 2)
        real, crossed = both[..., 0], both[..., 1]
        # The rows of i a: -⟨a, i b⟩ and ⟨a, b⟩.
        upper = jnp.stack([real, crossed], axis=-1)
        lower = jnp.stack([-crossed, real], axis=-1)
        return jnp.stack([upper, lower], axis=2).reshape(2 * n * k, 2 * n * k)

    after = next((x for x in (*half.d, half.rows) if x.size), half.rows)
    return by_tiles(half, tile, half, after, 2 * k)


def _with_turned(factors: Factors) -> Factors:
    """Return factors of the rows and of i times each of them, in turn."""
    n, k, _ = factors.rows.shape
    join = lambda x: jnp.stack([x, turned(x)], axis=2).reshape(n, 2 * k, *x.shape[2:])
    where = lambda f: (f.d, f.rows)
    return eqx.tree_at(where, factors, (jax.tree.map(join, factors.d), join(factors.rows)))
