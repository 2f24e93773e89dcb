r"""`SVD`: the singular value decomposition of \(A\). Does not square the condition number; the
reference among our solvers.

For metrics that saturate (`graded`) and the undamped Moore-Penrose inverse, the decomposition is
that of `_graded.py`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..inverse._base import MoorePenrose
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, whiten
from ._cost import svd_cost
from ._graded import graded_factors, thin_svd


class SVDFactors(AbstractFactors):
    """Ã = U diag(s) Vᵀ and h(s)."""

    scale: Float[Array, " m"]
    u: Float[Array, "m k"]
    s: Float[Array, " k"]
    vt: Float[Array, "k P"]
    h: Float[Array, " k"]
    kept: Array
    kernel: Float[Array, ""]
    spectrum: Spectrum

    @property
    def resolved(self):
        return True

    def lifted(self, r):
        return self.vt.T @ (self.s * self.h * (self.u.T @ (self.scale * r)))

    def covector(self, g):
        inside = self.vt @ g
        return self.vt.T @ (self.h * inside) + self.kernel * (g - self.vt.T @ inside)

    def project(self, eta):
        return self.vt.T @ jnp.where(self.kept, self.vt @ eta, 0.0)


class SVD(AbstractSolver):
    """Singular value decomposition of the dense A: O(m P min(m, P)) operations, O(m P) memory.
    Every inverse.
    """

    def check(self, inverse):
        pass

    def cost(self, setting, inverse):
        return svd_cost(setting, inverse)

    def factorise(self, metric, inverse):
        operator = whiten(metric, inverse)
        rows = operator.unit_rows()
        if (
            metric.problem.metric.graded
            and isinstance(inverse, MoorePenrose)
            and inverse.rtol is None
        ):
            return Factorised(
                operator, inverse, graded_factors(rows, metric.log_scale, inverse), self.name
            )
        u, s, vt = thin_svd(operator.scale[:, None] * rows)
        cutoff = inverse.cutoff(s[0], operator.shape)
        kept = inverse.kept(s, cutoff)
        kernel = jnp.asarray(inverse.kernel, metric.dtype)
        h = inverse.filter(s, cutoff)
        spectrum = Spectrum.of(s, kept, cutoff)
        factors = SVDFactors(
            scale=operator.scale, u=u, s=s, vt=vt, h=h, kept=kept, kernel=kernel, spectrum=spectrum
        )
        return Factorised(operator, inverse, factors, self.name)
