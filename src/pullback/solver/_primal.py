r"""`Primal`: the P × P matrix \(G = A^\top A\), summed over blocks of samples. For fewer parameters
than rows of A.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._rows.pullback import MEMORY
from ..inverse._base import Tikhonov
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, Whitened, whiten
from ._cost import primal_cost
from ._structured import WORKSPACE, find, structured_metric
from ._symmetric import Damped, Eigen, damped, eigen, refine


class Held(eqx.Module):
    """A matrix that is kept: G is summed over the samples, and to do it again would be long to
    compile.
    """

    matrix: Float[Array, "P P"]

    def __call__(self) -> Float[Array, "P P"]:
        """The matrix."""
        return self.matrix


class PrimalFactors(AbstractFactors):
    """G by eigenvectors, or G + λ by Cholesky."""

    operator: Whitened
    gram: Eigen | Damped
    damping: Float[Array, ""] | None
    order: np.ndarray | None
    """The order of the parameters in `gram`, if it is another than that of the flat vector."""

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
            return operator.rmv(r - operator.mv(eta)) - self._damped(eta)

        return self._solve(
            lambda inverse: refine(
                self.gram, inverse, residual, self._start(inverse, operator.rmv(r))
            )
        )

    def covector(self, g):
        def product(eta):
            return self.operator.rmv(self.operator.mv(eta))

        def how(inverse):
            # What of g is outside the range of G stays in the residual, and would come in through
            # the eigenvectors, off by eps cond(A)²: one product with G takes it away.
            clean = (
                inverse
                if self.damping is not None
                else lambda rest: inverse(inverse(product(rest)))
            )
            return refine(
                self.gram,
                clean,
                lambda eta: g - product(eta) - self._damped(eta),
                self._start(inverse, g),
            )

        return self._solve(how)

    def project(self, eta):
        return (
            self._ordered(self.gram.project, eta)
            if isinstance(self.gram, Eigen)
            else jnp.full_like(eta, jnp.nan)
        )

    def _start(self, inverse, g: Array) -> Array:
        """The first solution, put into the range of Aᵀ: the eigenvectors of G are off by eps
        cond(A)², and what of that lies in the kernel of A no residual would show.
        """
        x = inverse(g)
        return x if self.damping is not None else self.operator.rmv(self.operator.mv(inverse(x)))

    def _damped(self, eta: Array) -> Array:
        return jnp.zeros_like(eta) if self.damping is None else self.damping * eta

    def _solve(self, how) -> Array:
        return self.gram.solve(lambda inverse: how(lambda x: self._ordered(inverse, x)))

    def _ordered(self, function, x: Array) -> Array:
        if self.order is None:
            return function(x)
        return jnp.zeros_like(x).at[self.order].set(function(x[self.order]), unique_indices=True)


class Primal(AbstractSolver):
    """Eigenvectors of G (Cholesky of G + λ under `Tikhonov`): O(m P² + P³) operations, O(P²)
    memory. Every inverse.

    Where the model is understood (dense layers) G is summed from factors of the layers, 2 N P²
    operations however many outputs a sample has.
    """

    structured: bool = eqx.field(static=True, default=True)
    """Whether to look for structure; the result does not depend on it."""

    def check(self, inverse):
        pass

    def cost(self, setting, inverse):
        return primal_cost(
            setting, inverse, self.structured, WORKSPACE if self.structured else MEMORY
        )

    def factorise(self, metric, inverse):
        operator = whiten(metric, inverse)
        found = find(operator, single=True) if self.structured else None
        matrix = operator.gram() if found is None else structured_metric(metric, found)
        damping = None
        if isinstance(inverse, Tikhonov):
            damping = jnp.asarray(inverse.damping, metric.dtype)
            gram = damped(Held(matrix), damping)
        else:
            gram = eigen(matrix, operator.shape, inverse)
        order = None if found is None else found.order
        return Factorised(
            operator, inverse, PrimalFactors(operator, gram, damping, order), self.name
        )
