r"""What `Dual` and `Primal` share: a symmetric matrix (K or G) factorised by eigenvectors, or by
Cholesky where it is damped.

Working on \(K = AA^\top\) or \(G = A^\top A\) squares the condition number: an eigenvalue below
\(n\,\mathrm{eps}\,\lambda_{\max}\) is rounding, so these solvers resolve singular values down to
\(\sqrt{n\,\mathrm{eps}}\; s_{\max}\) only. That is the cut-off they report if the inverse asks for
less. Iterative refinement with products of \(A\) wins back the digits of the solution itself.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from .._base.types import Scalar
from .._compat.lapack import cholesky
from ..inverse._base import AbstractInverse
from ._base import Spectrum


class Eigen(eqx.Module):
    """K or G = Q diag(s²) Qᵀ, largest first, and h(s)."""

    vectors: Float[Array, "n n"]
    s: Float[Array, " n"]
    h: Float[Array, " n"]
    kept: Array
    spectrum: Spectrum

    def apply(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """h(·) x on the eigenvectors."""
        return self.vectors @ (self.h * (self.vectors.T @ x))

    def solve(self, how: Callable[[Callable[[Array], Array]], Array]) -> Array:
        """A computation with h(·)."""
        return how(self.apply)

    def project(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """The projection on the eigenvectors that are kept."""
        return self.vectors @ jnp.where(self.kept, self.vectors.T @ x, 0.0)


class Damped(eqx.Module):
    """K + λ or G + λ = L Lᵀ, and how to make the matrix again for where that is not proved to be
    positive definite: LAPACK overwrites it, and a copy that is almost never looked at would cost as
    much memory and a pass through it.
    """

    cholesky: Float[Array, "n n"]
    """L below the diagonal; above it, anything."""
    again: Callable[[], Float[Array, "n n"]]
    damping: Scalar
    proved: Array
    spectrum: Spectrum

    def apply(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """(· + λ)⁻¹ x."""
        return self.solve(lambda inverse: inverse(x))

    def solve(self, how: Callable[[Callable[[Array], Array]], Array]) -> Array:
        """A computation with (· + λ)⁻¹."""

        def by_eigenvectors():
            values, vectors = jnp.linalg.eigh(self.again(), symmetrize_input=False)
            return how(
                lambda x: vectors @ ((vectors.T @ x) / (jnp.maximum(values, 0.0) + self.damping))
            )

        # The condition is on the solution: around the factor it would cost XLA two copies of it.
        solution = how(lambda x: cho_solve((self.cholesky, True), x))
        return jax.lax.cond(self.proved, lambda: solution, by_eigenvectors)


def eigen(matrix: Float[Array, "n n"], shape: tuple[int, int], inverse: AbstractInverse) -> Eigen:
    """Eigendecomposition of K or G."""
    values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
    s = jnp.sqrt(jnp.maximum(values[::-1], 0.0))
    # The maximum hides a NaN matrix; let it show.
    s = jnp.where(jnp.all(jnp.isfinite(values)), s, jnp.nan)
    resolution = jnp.sqrt(max(shape) * jnp.finfo(s.dtype).eps) * s[0]
    cutoff = jnp.maximum(inverse.cutoff(s[0], shape), resolution)
    kept = inverse.kept(s, cutoff)
    return Eigen(vectors[:, ::-1], s, inverse.filter(s, cutoff), kept, Spectrum.of(s, kept, cutoff))


def damped(make: Callable[[], Float[Array, "n n"]], damping: Scalar) -> Damped:
    """Cholesky of K + λ or G + λ, if that is positive definite beyond rounding; otherwise its
    eigenvectors.

    The matrix is positive semi-definite by construction, and its smallest computed eigenvalue is at
    least -n·eps·‖·‖; so with λ above that the sum is positive definite. The pivots are checked all
    the same. A fallback is reported.
    """
    matrix = make()
    n = matrix.shape[0]
    # Read before it is written, so that everything happens in place.
    index, diagonal = jnp.arange(n), jnp.diagonal(matrix) + damping
    matrix = matrix.at[index, index].set(diagonal, unique_indices=True)
    noise = n * jnp.finfo(matrix.dtype).eps * jnp.max(diagonal, initial=0.0)
    factor, positive = cholesky(matrix)
    proved = positive & (damping > noise)
    return Damped(factor, make, damping, proved, Spectrum.unknown(matrix.dtype, fallback=~proved))


def refine(
    gram: Eigen | Damped,
    solve: Callable[[Array], Array],
    residual: Callable[[Array], Array],
    start: Array,
) -> Array:
    """Iterative refinement, x + solve(residual(x)): once for a Cholesky factorisation, which is
    backward stable, twice for eigenvectors.
    """
    x = start + solve(residual(start))
    return x if isinstance(gram, Damped) else x + solve(residual(x))
