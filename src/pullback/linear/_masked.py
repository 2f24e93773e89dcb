r"""The natural gradient of a matrix product under the Fisher matrix of the observed entries.

Let \(J_\Omega\) be the rows of the Jacobian at the observed entries \((i_a, j_a)\). Then \(\delta =
J_\Omega^+r = J_\Omega^\top K_\Omega^{+}r\) with the kernel of the observations,

\[ (K_\Omega)_{ab} = \sum_l (P_l)_{i_ai_b}\,(Q_l)_{j_aj_b}, \]

formed without the Jacobian. The norm on the factors decides what \(\delta\) does to the entries
that are not observed: *here depth matters again*, although the inverse is Moore-Penrose and the
metric is pulled back exactly.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ._minimum_norm import Factors, partial_products, pull


def observed_kernel(
    factors: Factors, rows: Int[Array, " O"], columns: Int[Array, " O"]
) -> Float[Array, "O O"]:
    """K_Ω, the kernel of the observations."""
    before, after = partial_products(factors)
    total = jnp.zeros((rows.size, rows.size), factors[0].dtype)
    for a, b in zip(before, after, strict=True):
        left = (
            a[rows] @ a[rows].T
            if a is not None
            else jnp.asarray(rows[:, None] == rows[None, :], factors[0].dtype)
        )
        right = (
            b[:, columns].T @ b[:, columns]
            if b is not None
            else jnp.asarray(columns[:, None] == columns[None, :], factors[0].dtype)
        )
        total = total + left * right
    return total


@jax.jit
def masked_pseudoinverse(
    factors: Factors, r: Float[Array, " O"], rows: Int[Array, " O"], columns: Int[Array, " O"]
) -> Factors:
    r"""\(J_\Omega^+r\), by Cholesky where K_Ω is regular and by eigenvectors where it is not."""
    k = observed_kernel(factors, rows, columns)
    lower = jnp.linalg.cholesky(k)
    pivots = jnp.diagonal(lower)
    cutoff = k.shape[0] * jnp.finfo(k.dtype).eps

    def regular(_):
        solve = lambda b: jax.scipy.linalg.cho_solve((lower, True), b)
        first = solve(r)
        # One step of refinement.
        return first + solve(r - k @ first)

    def singular(_):
        values, basis = jnp.linalg.eigh(k)
        keep = values > cutoff * values[-1]
        return basis @ (jnp.where(keep, 1 / jnp.where(keep, values, 1), 0) * (basis.T @ r))

    # A failed Cholesky factorisation is all NaN, for which the comparison is false.
    weights = jax.lax.cond(
        jnp.min(pivots) ** 2 > 100 * cutoff * jnp.max(pivots) ** 2, regular, singular, None
    )
    covector = (
        jnp.zeros((factors[0].shape[0], factors[-1].shape[1]), k.dtype)
        .at[rows, columns]
        .set(weights)
    )
    return pull(factors, covector)
