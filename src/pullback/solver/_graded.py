r"""The Moore-Penrose solution of a graded system, \(A = D\hat A\) with \(D = \mathrm{diag}(e^\ell)\) spanning more orders of magnitude than a float resolves.

That is what a saturated model gives. A cut-off on the singular values of \(A\) would drop its samples in silence, so rank and row space are
those of \(\hat A = \hat U \hat S V^\top\) (the same in exact arithmetic, \(D\) being invertible), and \(\delta = V y\) with

- \(y = \hat S^{-1}\hat U^\top \hat r\) if \(\hat A\) has full row rank: the weights cancel, \(A^+ r = \hat A^+ \hat r\);
- otherwise \(y\) minimises \(\|D(B y - \hat r)\|\), \(B = \hat U \hat S\) of full column rank, by a QR decomposition with rows sorted by weight and columns
  pivoted, which is backward stable row by row (Cox and Higham, 1998): rows of weight \(e^{-200}\) keep their digits.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import qr, solve_triangular
from jaxtyping import Array, Float, Int

from .._inverse import AbstractInverse
from ._base import AbstractFactors, Spectrum


class GradedFactors(AbstractFactors):
    """The decompositions of Â and of DB."""

    u: Float[Array, "m k"]
    s: Float[Array, " k"]
    vt: Float[Array, "k P"]
    kept: Array
    full: Array
    """Whether Â has full row rank."""
    weights: Float[Array, " m"]
    order: Int[Array, " m"]
    q: Float[Array, "m k"]
    r: Float[Array, "k k"]
    pivots: Int[Array, " k"]
    log_largest: Float[Array, ""]
    spectrum: Spectrum

    @property
    def resolved(self):
        return True

    def lifted(self, r):
        cancelled = jnp.where(self.kept, (self.u.T @ r) / jnp.where(self.kept, self.s, 1.0), 0.0)
        weighted = self._unpivot(self._solve(self.q.T @ (self.weights * r)[self.order], transpose=False))
        return self.vt.T @ jnp.where(self.full, cancelled, weighted)

    def covector(self, g):
        # G = V Bᵀ D² B Vᵀ and DB = QRΠᵀ, so G⁺ = V Π R⁻¹ R⁻ᵀ Πᵀ Vᵀ; D was divided by its largest entry.
        inside = jnp.where(self.kept, self.vt @ g, 0.0)[self.pivots]
        y = self._solve(self._solve(inside, transpose=True), transpose=False)
        return self.vt.T @ (jnp.exp(-2 * self.log_largest) * self._unpivot(y))

    def project(self, eta):
        return self.vt.T @ jnp.where(self.kept, self.vt @ eta, 0.0)

    def _solve(self, b: Array, transpose: bool) -> Array:
        live = jnp.diagonal(self.r) != 0
        r = self.r + jnp.diag(jnp.where(live, 0.0, 1.0).astype(self.r.dtype))
        return jnp.where(live, solve_triangular(r, jnp.where(live, b, 0.0), trans="T" if transpose else "N"), 0.0)

    def _unpivot(self, y: Array) -> Array:
        return jnp.zeros_like(y).at[self.pivots].set(y)


def graded_factors(rows: Float[Array, "m P"], log_scale: Float[Array, " m"], inverse: AbstractInverse) -> GradedFactors:
    """Decompose a graded system.

    **Arguments:**

    - `rows`: Â, of order one.
    - `log_scale`: ℓ, the logarithms of the row weights; -inf for an absent row.
    - `inverse`: for its cut-off.
    """
    active = log_scale > -jnp.inf
    u, s, vt = jnp.linalg.svd(rows, full_matrices=False)
    cutoff = inverse.cutoff(s[0], rows.shape)
    kept = inverse.kept(s, cutoff)
    full = jnp.sum(kept) == jnp.sum(active)
    log_largest = jnp.max(jnp.where(active, log_scale, -jnp.inf))
    log_largest = jnp.where(jnp.isfinite(log_largest), log_largest, 0.0)
    weights = jnp.exp(log_scale - log_largest)
    order = jnp.argsort(-log_scale)
    b = weights[:, None] * u * jnp.where(kept, s, 0.0)[None, :]
    q, r, pivots = qr(b[order], mode="economic", pivoting=True)
    return GradedFactors(u, s, vt, kept, full, weights, order, q, r, pivots, log_largest, Spectrum.of(s, kept, cutoff, graded=True))
