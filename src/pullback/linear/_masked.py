r"""The natural gradient of a matrix product under the Fisher matrix of the observed entries.

Let \(J_\Omega\) be the rows of the Jacobian at the observed entries \((i_a, j_a)\). Then \(\delta =
J_\Omega^+r = J_\Omega^\top K_\Omega^{+}r\) with the kernel of the observations,

\[ (K_\Omega)_{ab} = \sum_l (P_l)_{i_ai_b}\,(Q_l)_{j_aj_b}, \]

formed without the Jacobian. Where it is ill-conditioned, its eigenvalues are squared singular
values that have lost their digits, and \(J_\Omega\) is formed after all, while it fits. The norm
on the factors decides what \(\delta\) does to the entries that are not observed: *here depth
matters again*, although the inverse is Moore-Penrose and the metric is pulled back exactly.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ._minimum_norm import Factors, partial_products, pull, unit_factors

LARGEST = 2**26
"""The most entries of a Jacobian that is formed."""


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


def observed_jacobian(
    factors: Factors, rows: Int[Array, " O"], columns: Int[Array, " O"]
) -> Float[Array, "O P"]:
    """J_Ω, the rows of the Jacobian at the observations."""
    before, after = partial_products(factors)
    dtype = factors[0].dtype
    blocks = []
    for a, b in zip(before, after, strict=True):
        left = jnp.eye(factors[0].shape[0], dtype=dtype)[rows] if a is None else a[rows]
        right = (
            jnp.eye(factors[-1].shape[1], dtype=dtype)[columns] if b is None else b[:, columns].T
        )
        blocks.append((left[:, :, None] * right[:, None, :]).reshape(rows.size, -1))
    return jnp.concatenate(blocks, axis=1)


@jax.jit
def masked_pseudoinverse(
    factors: Factors, r: Float[Array, " O"], rows: Int[Array, " O"], columns: Int[Array, " O"]
) -> Factors:
    r"""\(J_\Omega^+r\), by Cholesky where K_Ω is well-conditioned."""
    factors, restore = unit_factors(factors)
    k = observed_kernel(factors, rows, columns)
    lower = jnp.linalg.cholesky(k)
    pivots = jnp.diagonal(lower)
    cutoff = k.shape[0] * jnp.finfo(k.dtype).eps

    def regular():
        solve = lambda b: jax.scipy.linalg.cho_solve((lower, True), b)
        first = solve(r)
        # One step of refinement.
        return pulled(first + solve(r - k @ first))

    def pulled(weights):
        zero = jnp.zeros((factors[0].shape[0], factors[-1].shape[1]), k.dtype)
        return pull(factors, zero.at[rows, columns].set(weights))

    def from_jacobian():
        u, s, vt = jnp.linalg.svd(observed_jacobian(factors, rows, columns), full_matrices=False)
        keep = s > max(u.shape[0], vt.shape[1]) * jnp.finfo(k.dtype).eps * s[0]
        flat = (jnp.where(keep, 1 / jnp.where(keep, s, 1), 0) * (u.T @ r)) @ vt
        ends = np.cumsum([w.size for w in factors])[:-1]
        parts = zip(jnp.split(flat, ends), factors, strict=True)
        return tuple(part.reshape(w.shape) for part, w in parts)

    def from_kernel():
        values, basis = jnp.linalg.eigh(k)
        keep = values > cutoff * values[-1]
        inverse = jnp.where(keep, 1 / jnp.where(keep, values, 1), 0)
        return pulled(basis @ (inverse * (basis.T @ r)))

    # A failed Cholesky factorisation is all NaN, for which the comparison is false.
    least = jnp.min(pivots) ** 2 / jnp.max(pivots) ** 2
    if rows.size * sum(w.size for w in factors) > LARGEST:
        return restore(jax.lax.cond(least > 100 * cutoff, regular, from_kernel))
    return restore(jax.lax.cond(least > jnp.finfo(k.dtype).eps ** 0.5, regular, from_jacobian))
