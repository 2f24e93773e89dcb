r"""What the rounding of a mean that was taken off the rows does to a solution.

The rows of `Scores` are \(A = \sqrt w\,(J - \bar J)\). A model knows its scores up to eps times
their size, so that \(A\) is known up to \(\nu = \mathrm{eps}\,\|\sqrt w\,\bar J\|\), however it is
centred, and \(g = J^\top c\) up to \(\nu\|r\|\). With \(H\) the inverse of \(G\), to first order

\[ \Delta\eta = H\,\bigl(\Delta g - A^\top\Delta A\,\eta\bigr), \qquad \|\Delta A\,\eta\| \le
\nu\|\eta\|, \quad \|\Delta g\| \le \nu\|r\| . \]

No residual shows it: the computed rows are those of another problem, solved well. Where the mean is
not much larger than the rows this is rounding like that of any other metric, and the condition
number tells of it. Where it is, one more solve, for a random \(\Delta\) of this size, tells whether
the solution has the digits that a certificate stands for. There a certificate that fails is of the
same cause: its products have this rounding.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat
from .._base.vector import norm, probe
from .factorised import Factorised

LARGE, DIGITS = 10.0, 10.0
"""From how many ‖A‖ on a mean is large; the change of a solution, in √eps, that is too much. The
same number as in `SVDFactors`."""


def is_blurred(
    piece: Factorised, vector: Flat, r: Float[Array, " m"] | None, certified: Array
) -> Array:
    """Return whether the rounding of the mean decides digits of a solution for r and any g."""
    rows, factors = piece.rows, piece.factors
    if not rows.centred:
        return jnp.asarray(False)
    (m, size), eps = rows.shape, float(jnp.finfo(rows.dtype).eps)
    eta, removed = rows.from_params(vector), rows.removed
    unit = lambda count: probe(count, rows.dtype) / norm(probe(count, rows.dtype))

    def changed():
        turned = eps * removed * norm(eta) * unit(m)
        scale = jnp.where(rows.active, rows.scale, 1.0)
        pulled = eps * removed * norm(piece.graded(r)) * unit(size)
        change = factors.solve_both(jnp.where(rows.active, turned / scale, 0.0), pulled)
        # Written so that a NaN is none of this: it has a verdict of its own.
        return norm(change) > DIGITS * eps**0.5 * norm(eta)

    large = removed > LARGE * norm(rows.rmv(probe(m, rows.dtype)))
    found = jax.lax.cond(large & certified, changed, lambda: large)
    finite = jnp.all(jnp.isfinite(vector))
    return jnp.where(finite, found, factors.blurred)
