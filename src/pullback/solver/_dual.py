r"""`Dual`: the m × m kernel \(K = AA^\top\). For more parameters than rows of A.

\(A^+ r = A^\top K^+ r\) and \(G^+ g = A^\top K^+ K^+ A g\); damped, \((G + λ)^{-1} g = (g -
A^\top(K + λ)^{-1} A g)/λ\).

Metrics that saturate: if \(\hat K = \hat A\hat A^\top\) has full rank the weights cancel, \(A^+ r =
\hat A^\top \hat K^{-1} \hat r\), and \(\hat K\) is what is factorised.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat
from .._gram import Factors, kernel, kernel_of_rows, product
from ..inverse._base import MoorePenrose, Tikhonov
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, Whitened, whiten
from ._cost import dual_cost
from ._structured import find, structured_factors, structured_rows
from ._symmetric import Damped, Eigen, damped, eigen, refine


class Rows(eqx.Module):
    """diag(scale) Â, in factors if the model's structure allows it, otherwise dense."""

    operator: Whitened
    factors: Factors | None
    scale: Float[Array, " m"]

    def __call__(self) -> Float[Array, "m m"]:
        """K, lower triangle."""
        if self.factors is not None:
            return kernel(self.factors)
        assert self.operator.dense is not None
        return self.scale[:, None] * kernel_of_rows(self.operator.dense) * self.scale[None, :]

    def product(self, y: Array) -> Array:
        """K y."""
        return self.mv(self.rmv(y)) if self.factors is None else product(self.factors, y)

    def mv(self, eta: Flat) -> Array:
        """diag(scale) Â η."""
        return self.scale * self.operator.unit_mv(eta)

    def rmv(self, y: Array) -> Flat:
        """The transpose."""
        return self.operator.unit_rmv(self.scale * y)


class DualFactors(AbstractFactors):
    """K by eigenvectors, or K + λ by Cholesky, and the rows it was made of."""

    rows: Rows
    """Their scale is e^ℓ, or one where the weights cancel."""
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
        r = self.rows.scale * r
        solution = self.rows.rmv(self._kernel(r))
        if self.damping is not None:
            return solution
        # What of r is outside the range of A comes in through the eigenvectors, off by eps
        # cond(A)², and stays in the residual of K; the normal equations do not see it.
        rest = self.rows.rmv(r - self.rows.mv(solution))
        return solution + self.rows.rmv(self.gram.apply(self.gram.apply(self.rows.mv(rest))))

    def covector(self, g):
        gram, mv, rmv = self.gram, self.rows.mv, self.rows.rmv
        if isinstance(gram, Damped):

            def woodbury(inverse):
                once = lambda g: (g - rmv(inverse(mv(g)))) / gram.damping
                return refine(gram, once, lambda v: g - rmv(mv(v)) - gram.damping * v, once(g))

            return gram.solve(woodbury)
        # A⁺(Aᵀ)⁺g. Where the weights cancel, A = D Â, and D⁻² stands between the two.
        y = refine(gram, lambda g: gram.apply(mv(g)), lambda y: g - rmv(y), gram.apply(mv(g)))
        ratio = self.rows.scale / jnp.where(self.grading > 0, self.grading, 1.0)
        return rmv(self._kernel(y * ratio * ratio))

    def project(self, eta):
        if isinstance(self.gram, Damped):
            return jnp.full_like(eta, jnp.nan)
        return self.rows.rmv(self.gram.apply(self.rows.mv(eta)))

    def _kernel(self, r: Array) -> Array:
        """(K + λ)⁺ r."""

        def rest(y):
            image = r - self.rows.product(y)
            return image if self.damping is None else image - self.damping * y

        return self.gram.solve(lambda inverse: refine(self.gram, inverse, rest, inverse(r)))


class Dual(AbstractSolver):
    """Eigenvectors of K (Cholesky of K + λ under `Tikhonov`): O(m² P + m³) operations, O(m P + m²)
    memory. Every inverse.

    Where the model is understood (dense layers, convolutions, look-ups) K is computed from factors
    of the layers, and A is never formed.
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

            def rows(scale):
                return Rows(operator, structured_factors(metric, found, scale), scale)

        else:
            # Rows that are formed anyway are kept: a product with them is cheaper than a pass
            # through the model.
            dense = operator.unit_rows() if found is None else structured_rows(metric, found)
            order = None if found is None else found.order

            def rows(scale):
                return Rows(Whitened(metric, operator.gauge, dense, order), None, scale)

        graded, damping = rows(grading), None
        if isinstance(inverse, Tikhonov):
            damping = jnp.asarray(inverse.damping, metric.dtype)
            gram = damped(graded, damping)
        elif (
            metric.problem.metric.graded
            and isinstance(inverse, MoorePenrose)
            and inverse.rtol is None
        ):
            unit = rows(jnp.ones_like(grading))()
            plain = eigen(unit, operator.shape, inverse)
            full = plain.spectrum.rank == jnp.sum(metric.active, dtype=jnp.int32)
            weighed = lambda k: eigen(
                grading[:, None] * k * grading[None, :], operator.shape, inverse
            )
            gram = jax.lax.cond(full, lambda _: plain, weighed, unit)
            gram = eqx.tree_at(lambda g: g.spectrum.graded, gram, full)
            graded = rows(jnp.where(full, 1.0, grading))
        else:
            gram = eigen(graded(), operator.shape, inverse)
        return Factorised(operator, inverse, DualFactors(graded, grading, gram, damping), self.name)
