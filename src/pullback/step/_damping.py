r"""One factorisation, many dampings: \(V\,\mathrm{diag}(s/(s^2 + λ))\,U^\top r\) for any λ ≥ 0 from
one decomposition of \(A\).

Singular values that the undamped inverse drops stay dropped, so that λ → 0 leads to the
Moore-Penrose inverse and not to its rounding errors; λ = 0 *is* it. A covector outside the range is
divided by λ, as under `Tikhonov`, and by λ = 0 left alone, as under `MoorePenrose`.
"""

import equinox as eqx
import jax.numpy as jnp

from .._base.types import Scalar
from ..inverse._base import Tikhonov
from ..solver._base import AbstractFactors, Factorised, Spectrum
from ..solver._dual import DualFactors
from ..solver._krylov import KrylovFactors
from ..solver._primal import PrimalFactors
from ..solver._svd import SVDFactors
from ..solver._symmetric import Eigen


class Redamped(AbstractFactors):
    """Factors of A, damped afterwards."""

    undamped: AbstractFactors
    damped: AbstractFactors
    kernel: Scalar

    @property
    def spectrum(self) -> Spectrum:
        return self.undamped.spectrum

    @property
    def resolved(self):
        return self.undamped.resolved

    def lifted(self, r):
        return self.damped.lifted(r)

    def covector(self, g):
        inside = self.project(g)
        outside = self.kernel * (g - inside)
        if isinstance(self.undamped, DualFactors):
            # (G + λ)⁻¹ on the range is A⁺_λ (Aᵀ)⁺, and (Aᵀ)⁺ = K⁺A; `lifted` multiplies by the
            # scale again.
            dual = self.undamped
            scale, y = dual.rows.scale, dual.gram.apply(dual.rows.mv(inside))
            unit = jnp.where(scale > 0, y / jnp.where(scale > 0, scale, 1.0), 0.0)
            return self.damped.lifted(unit) + outside
        return self.damped.covector(inside) + outside

    def project(self, eta):
        return self.undamped.project(eta)


def redamp(factorised: Factorised, damping: Scalar) -> Factorised:
    """The factors of (G + λ)⁻¹ from those of G⁺, without factorising again (matrix-free solvers
    solve again).
    """
    base = factorised.factors
    # Tikhonov refuses λ = 0, where it has no inverse on the kernel; here that is the Moore-Penrose
    # inverse.
    inverse = eqx.tree_at(lambda t: t.damping, Tikhonov(1.0, factorised.inverse.gauge), damping)
    kernel = jnp.where(damping > 0, 1 / jnp.where(damping > 0, damping, 1.0), 0.0)

    def filtered(s, kept):
        return jnp.where(kept, 1 / jnp.where(kept, s * s + damping, 1.0), 0.0)

    if isinstance(base, SVDFactors):
        damped = eqx.tree_at(
            lambda f: (f.h, f.kernel), base, (filtered(base.s, base.kept), jnp.zeros_like(kernel))
        )
    elif isinstance(base, PrimalFactors | DualFactors) and isinstance(base.gram, Eigen):
        h = filtered(base.gram.s, base.gram.kept)
        damped = eqx.tree_at(
            lambda f: (f.gram.h, f.damping), base, (h, damping), is_leaf=lambda x: x is None
        )
    elif isinstance(base, KrylovFactors):
        damped = KrylovFactors(base.operator, damping, None, None, None, base.rtol, base.max_steps)
        return Factorised(factorised.operator, inverse, damped, factorised.solver)
    else:
        raise ValueError(
            f"the factors of {factorised.solver} cannot be damped afterwards. Use one of pullback.solver: SVD, Primal, Dual, Krylov, Auto."
        )
    return Factorised(
        factorised.operator, inverse, Redamped(base, damped, kernel), factorised.solver
    )
