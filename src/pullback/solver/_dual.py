r"""`Dual`: the m × m kernel \(K = AA^\top\). For more parameters than rows of A.

\(A^+ r = A^\top K^+ r\) and \(G^+ g = A^\top K^+ K^+ A g\); damped, \((G + λ)^{-1} g = (g - A^\top(K + λ)^{-1} A g)/λ\).

Metrics that saturate: if \(\hat K = \hat A\hat A^\top\) has full rank the weights cancel, \(A^+ r = \hat A^\top \hat K^{-1} \hat r\), and \(\hat K\) is what is factorised.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._inverse import MoorePenrose, Tikhonov
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, whiten
from ._gram import Damped, Eigen, damped, eigen, refine


class DualFactors(AbstractFactors):
    """K by eigenvectors, or K + λ by Cholesky, and the rows it was made of."""

    rows: Float[Array, "m P"]
    """A, or Â where the weights cancel."""
    scale: Float[Array, " m"]
    """What divides the grading out of a right-hand side: e^ℓ for A, one for Â."""
    grading: Float[Array, " m"]
    gram: Eigen | Damped
    damping: Float[Array, ""]

    @property
    def spectrum(self) -> Spectrum:
        return self.gram.spectrum

    @property
    def resolved(self):
        return isinstance(self.gram, Eigen)

    def lifted(self, r):
        return self.rows.T @ self._kernel(self.scale * r)

    def covector(self, g):
        rows, gram = self.rows, self.gram
        if isinstance(gram, Damped):

            def woodbury(g):
                return (g - rows.T @ gram.apply(rows @ g)) / self.damping

            return refine(woodbury, lambda v: g - rows.T @ (rows @ v) - self.damping * v, woodbury(g))
        # A⁺(Aᵀ)⁺g. Where the weights cancel, A = D rows, and D⁻² stands between the two.
        y = refine(lambda g: gram.apply(rows @ g), lambda y: g - rows.T @ y, gram.apply(rows @ g))
        ratio = self.scale / jnp.where(self.grading > 0, self.grading, 1.0)
        return rows.T @ self._kernel(y * ratio * ratio)

    def _kernel(self, r: Array) -> Array:
        """(K + λ)⁺ r."""
        product = lambda y: self.rows @ (self.rows.T @ y) + self.damping * y
        return refine(self.gram.apply, lambda y: r - product(y), self.gram.apply(r))

    def project(self, eta):
        if isinstance(self.gram, Damped):
            return jnp.full_like(eta, jnp.nan)
        return self.rows.T @ self.gram.apply(self.rows @ eta)


class Dual(AbstractSolver):
    """Eigenvectors of K (Cholesky of K + λ under `Tikhonov`): O(m² P + m³) operations, O(m P + m²) memory. Every inverse."""

    def check(self, inverse):
        pass

    def factorise(self, metric, inverse):
        operator = whiten(metric, inverse)
        unit, grading = operator.unit_rows(), operator.scale
        zero = jnp.zeros((), metric.dtype)
        if isinstance(inverse, Tikhonov):
            rows = grading[:, None] * unit
            damping = jnp.asarray(inverse.damping, metric.dtype)
            factors = DualFactors(rows, grading, grading, damped(rows @ rows.T, damping), damping)
        elif metric.problem.metric.graded and isinstance(inverse, MoorePenrose) and inverse.rtol is None:
            plain = eigen(unit @ unit.T, operator.shape, inverse)
            full = plain.spectrum.rank == jnp.sum(metric.active, dtype=jnp.int32)
            scale = jnp.where(full, 1.0, grading)
            rows = scale[:, None] * unit
            gram = jax.lax.cond(full, lambda _: plain, lambda a: eigen(a @ a.T, operator.shape, inverse), rows)
            gram = eqx.tree_at(lambda g: g.spectrum.graded, gram, full)
            factors = DualFactors(rows, scale, grading, gram, zero)
        else:
            rows = grading[:, None] * unit
            factors = DualFactors(rows, grading, grading, eigen(rows @ rows.T, operator.shape, inverse), zero)
        return Factorised(operator, inverse, factors, self.name)
