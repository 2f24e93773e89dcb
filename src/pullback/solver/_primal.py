r"""`Primal`: the P × P matrix \(G = A^\top A\), summed over blocks of samples. For fewer parameters than rows of A."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._inverse import Tikhonov
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, Whitened, whiten
from ._gram import Damped, Eigen, damped, eigen, refine


class PrimalFactors(AbstractFactors):
    """G by eigenvectors, or G + λ by Cholesky."""

    operator: Whitened
    gram: Eigen | Damped
    damping: Float[Array, ""]

    @property
    def spectrum(self) -> Spectrum:
        return self.gram.spectrum

    @property
    def resolved(self):
        return isinstance(self.gram, Eigen)

    def lifted(self, r):
        operator, r = self.operator, self.operator.scale * r

        def residual(eta):
            # Formed in the output space, where it does not cancel.
            return operator.rmv(r - operator.mv(eta)) - self.damping * eta

        return refine(self.gram.apply, residual, self.gram.apply(operator.rmv(r)))

    def covector(self, g):
        operator = self.operator
        return refine(self.gram.apply, lambda eta: g - operator.rmv(operator.mv(eta)) - self.damping * eta, self.gram.apply(g))

    def project(self, eta):
        return self.gram.project(eta) if isinstance(self.gram, Eigen) else jnp.full_like(eta, jnp.nan)


class Primal(AbstractSolver):
    """Eigenvectors of G (Cholesky of G + λ under `Tikhonov`): O(m P² + P³) operations, O(P²) memory. Every inverse."""

    def check(self, inverse):
        pass

    def factorise(self, metric, inverse):
        operator = whiten(metric, inverse)
        if isinstance(inverse, Tikhonov):
            damping = jnp.asarray(inverse.damping, metric.dtype)
            gram = damped(operator.gram(), damping)
        else:
            damping = jnp.zeros((), metric.dtype)
            gram = eigen(operator.gram(), operator.shape, inverse)
        return Factorised(operator, inverse, PrimalFactors(operator, gram, damping), self.name)
