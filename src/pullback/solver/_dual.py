r"""`Dual`: the m × m kernel \(K = AA^\top\). For more parameters than rows of A.

\(A^+ r = A^\top K^+ r\) and \(G^+ g = A^\top K^+ K^+ A g\); damped, \((G + λ)^{-1} g = (g - A^\top(K + λ)^{-1} A g)/λ\).

Metrics that saturate: if \(\hat K = \hat A\hat A^\top\) has full rank the weights cancel, \(A^+ r = \hat A^\top \hat K^{-1} \hat r\), and \(\hat K\) is what is factorised.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._gram import kernel_of_rows
from .._inverse import MoorePenrose, Tikhonov
from .._types import Flat
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, Whitened, whiten
from ._cost import dual_cost
from ._structured import find, structured_kernel, structured_rows
from ._symmetric import Damped, Eigen, damped, eigen, refine


class DualFactors(AbstractFactors):
    """K by eigenvectors, or K + λ by Cholesky, and the rows it was made of."""

    operator: Whitened
    scale: Float[Array, " m"]
    """e^ℓ, or one where the weights cancel; `gram` is that of diag(scale) Â."""
    grading: Float[Array, " m"]
    gram: Eigen | Damped
    damping: Float[Array, ""] | None

    @property
    def spectrum(self) -> Spectrum:
        return self.gram.spectrum

    @property
    def resolved(self):
        return isinstance(self.gram, Eigen)

    def lifted(self, r):
        r = self.scale * r
        solution = self._rmv(self._kernel(r))
        if self.damping is not None:
            return solution
        # What of r is outside the range of A comes in through the eigenvectors, off by eps cond(A)², and stays in the residual of K; the normal
        # equations do not see it.
        rest = self._rmv(r - self.scaled_mv(solution))
        return solution + self._rmv(self.gram.apply(self.gram.apply(self.scaled_mv(rest))))

    def covector(self, g):
        gram, mv, rmv = self.gram, self.scaled_mv, self._rmv
        if isinstance(gram, Damped):

            def woodbury(g):
                return (g - rmv(gram.apply(mv(g)))) / gram.damping

            return refine(gram, woodbury, lambda v: g - rmv(mv(v)) - gram.damping * v, woodbury(g))
        # A⁺(Aᵀ)⁺g. Where the weights cancel, A = D Â, and D⁻² stands between the two.
        y = refine(gram, lambda g: gram.apply(mv(g)), lambda y: g - rmv(y), gram.apply(mv(g)))
        ratio = self.scale / jnp.where(self.grading > 0, self.grading, 1.0)
        return rmv(self._kernel(y * ratio * ratio))

    def project(self, eta):
        if isinstance(self.gram, Damped):
            return jnp.full_like(eta, jnp.nan)
        return self._rmv(self.gram.apply(self.scaled_mv(eta)))

    def scaled_mv(self, eta: Flat) -> Array:
        """diag(scale) Â η.

        **Arguments:**

        - `eta`: a flat vector.
        """
        return self.scale * self.operator.unit_mv(eta)

    def _rmv(self, y: Array) -> Flat:
        return self.operator.unit_rmv(self.scale * y)

    def _kernel(self, r: Array) -> Array:
        """(K + λ)⁺ r."""

        def rest(y):
            image = r - self.scaled_mv(self._rmv(y))
            return image if self.damping is None else image - self.damping * y

        return refine(self.gram, self.gram.apply, rest, self.gram.apply(r))


class Dual(AbstractSolver):
    """Eigenvectors of K (Cholesky of K + λ under `Tikhonov`): O(m² P + m³) operations, O(m P + m²) memory. Every inverse.

    Where the model is understood (dense layers, convolutions, look-ups) K is computed from factors of the layers, and A is never formed.
    """

    structured: bool = eqx.field(static=True, default=True)
    """Whether to look for structure; the result does not depend on it."""

    def check(self, inverse):
        pass

    def cost(self, setting, inverse):
        return dual_cost(setting, inverse, self.structured)

    def factorise(self, metric, inverse):
        operator = whiten(metric, inverse)
        grading = operator.scale
        found = find(operator) if self.structured else None
        if found is not None and found.factors:
            rows, kernel = operator, structured_kernel(metric, found)
        else:
            # Rows that are formed anyway are kept: a product with them is cheaper than a pass through the model.
            unit = operator.unit_rows() if found is None else structured_rows(metric, found)
            rows = Whitened(metric, operator.gauge, unit, None if found is None else found.order)
            kernel = kernel_of_rows(unit)
        graded = grading[:, None] * kernel * grading[None, :]
        if isinstance(inverse, Tikhonov):
            damping = jnp.asarray(inverse.damping, metric.dtype)
            factors = DualFactors(rows, grading, grading, damped(graded, damping), damping)
        elif metric.problem.metric.graded and isinstance(inverse, MoorePenrose) and inverse.rtol is None:
            plain = eigen(kernel, operator.shape, inverse)
            full = plain.spectrum.rank == jnp.sum(metric.active, dtype=jnp.int32)
            gram = jax.lax.cond(full, lambda _: plain, lambda k: eigen(k, operator.shape, inverse), graded)
            gram = eqx.tree_at(lambda g: g.spectrum.graded, gram, full)
            factors = DualFactors(rows, jnp.where(full, 1.0, grading), grading, gram, None)
        else:
            factors = DualFactors(rows, grading, grading, eigen(graded, operator.shape, inverse), None)
        return Factorised(operator, inverse, factors, self.name)
