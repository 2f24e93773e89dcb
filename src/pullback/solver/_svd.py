r"""`SVD`: the singular value decomposition of \(A\). The reference among our solvers.

It does not square the condition number. For metrics that saturate (`graded`) and an inverse under
which the weights of rows cancel, the decomposition is that of `_graded.py`. Over devices that each
have at least P rows, A stays where it is (`tall_svd`); otherwise every device has a copy of it.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.axis import Axis, gathered, own, total
from .._base.vector import norm
from ..inverse._base import numerical_zero, respond
from ._base import AbstractDecomposition, AbstractFactors, AbstractSolver, Places, Spectrum
from ._cost import svd_cost
from ._cost_devices import is_tall, svd_share
from ._graded import graded_factors, thin_svd
from ._redamped import Redamped, damped_filter, inverse_damping, without


class SVDFactors(AbstractFactors, AbstractDecomposition):
    """Ã = U diag(s) Vᵀ and h(s)."""

    scale: Float[Array, " m"]
    u: Float[Array, "m k"]
    """Where A stays in block rows, the rows of this device."""
    s: Float[Array, " k"]
    vt: Float[Array, "k P"]
    h: Float[Array, " k"]
    kept: Array
    kernel: Float[Array, ""]
    spectrum: Spectrum
    dropped: Float[Array, " k"] | None = None
    """Singular values that may or may not be rounding of the mean of the rows, and were dropped."""
    axis: Axis | None = eqx.field(static=True, default=None)
    """The devices on which the rows of u are; `None` if all are here."""

    @property
    def places(self):
        return Places(whole=("A",)) if self.axis is None else Places(parts=("A",))

    def solve_lifted(self, r):
        w = total(self.u.T @ own(self.scale * r, self.axis), self.axis)
        return self._decided(self.vt.T @ (self.s * self.h * w), w, 1)

    def solve_covector(self, g):
        inside = self.vt @ g
        outside = without(lambda g: self.vt.T @ (self.vt @ g), g)
        found = self.vt.T @ (self.h * inside) + self.kernel * outside
        return self._decided(found, inside, 2)

    def _decided(self, eta: Array, w: Array, power: int) -> Array:
        """Return η, or NaN if what was dropped could change it by more than a certificate sees."""
        if self.dropped is None:
            return eta
        lost = norm((self.kernel * self.dropped) ** power * w)
        least = 10 * float(jnp.finfo(eta.dtype).eps) ** 0.5
        return jnp.where(lost <= least * norm(eta), eta, jnp.nan)

    @property
    def blurred(self):
        return jnp.asarray(False) if self.dropped is None else jnp.any(self.dropped > 0)

    def damped(self, damping):
        h = damped_filter(self.s, self.kept, damping)
        damped = eqx.tree_at(lambda f: (f.h, f.kernel), self, (h, jnp.zeros_like(self.kernel)))
        return Redamped(self, damped, inverse_damping(damping))

    def solve_in_range(self, g):
        """Return the solution for a covector in the range."""
        return self.solve_covector(g)

    def project(self, eta):
        return self.vt.T @ jnp.where(self.kept, self.vt @ eta, 0.0)

    @property
    def knows_row_space(self):
        return True

    @property
    def kernel_exact(self):
        return True

    @property
    def decomposition(self):
        return self

    def coordinates(self, eta):
        return self.vt @ eta

    def combine(self, w):
        return self.vt.T @ w


class SVD(AbstractSolver):
    """Singular value decomposition of the dense A, for every inverse.

    O(m P min(m, P)) operations, O(m P) memory.
    """

    def check(self, inverse):
        pass

    def cost(self, setting, inverse):
        return svd_share(setting, inverse, svd_cost(setting))

    def factorise(self, rows, inverse):
        if rows.graded and inverse.cancels_weights:
            return graded_factors(rows.unit_rows(), rows.log_scale, inverse)
        axis = rows.axis if is_tall(*rows.shape, rows.shares) else None
        if axis is None:
            u, s, vt = thin_svd(rows.scale[:, None] * rows.unit_rows())
        else:
            u, s, vt = tall_svd(rows.own(rows.scale)[:, None] * rows.local.unit_rows(), axis)
        noise = rows.noise
        h, kept, cutoff = respond(inverse, s, rows.shape, noise)
        dropped = None
        if not inverse.pseudo_inverse:
            # h₀ may be large: digits that are rounding would come back through s h(s).
            zero = numerical_zero(jnp.max(s, initial=0.0), rows.shape)
            if rows.centred:
                dropped = jnp.where((s > zero) & (s <= noise), s, 0.0)
            s = jnp.where(s > jnp.maximum(zero, noise), s, 0.0)
        return SVDFactors(
            scale=rows.scale,
            u=u,
            s=s,
            vt=vt,
            h=h,
            kept=kept,
            kernel=jnp.asarray(inverse.kernel, rows.dtype),
            spectrum=Spectrum.of(s, kept, cutoff),
            dropped=dropped,
            axis=axis,
        )


def tall_svd(rows: Float[Array, "b P"], axis: Axis) -> tuple[Array, Array, Array]:
    """Return U, s, Vᵀ of the rows of all devices, of U those of this device; b ≥ P.

    A = QR on each device, the R of all devices below each other are another such matrix, and its R
    has the singular values of A. Only n P² numbers are sent.
    """
    q, r = jnp.linalg.qr(rows)
    top, r = jnp.linalg.qr(gathered(r, axis))
    u, s, vt = thin_svd(r)
    return q @ (own(top, axis) @ u), s, vt
