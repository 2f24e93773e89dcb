r"""diag(scale) Â, the rows of A as `Dual` uses them, and the kernel \(K\) of them.

On one device K is one matrix. Over devices each makes its own rows of K, from factors of the layers
that travel round a ring: in panels (`_panels.py`), where K is damped and large, and otherwise for
all to copy.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.axis import Axis, around
from .._base.types import Flat, Scalar
from .._compat.lapack import cholesky
from .._gram.across import as_factors, joint_block, joint_kernel, joint_product
from .._gram.apply import Products, StackedProducts
from .._gram.centred import Gram, centred_kernel, centred_product
from .._gram.factors import Factors
from .._gram.holomorphic import turned_cholesky, turned_kernel
from .._gram.joint import JointFactors, mean_of
from .._gram.kernel import kernel_of_rows
from .._rows.rows import AbstractRows
from .._rows.shared import GATHERED
from ._panels import COPIED, SPARE, Panels, cuts
from ._symmetric import AbstractMatrix, Factored, rounding


class ScaledRows(AbstractMatrix):
    """diag(scale) Â, in factors if the model's structure allows it, otherwise dense."""

    rows: AbstractRows
    factors: JointFactors | None
    """With the scale, unless a mean is taken off the rows."""
    scale: Float[Array, " m"]
    products: Products | StackedProducts | None = None
    """Products with the factors, where they cost less than a pass through the model."""
    half: Factors | None = None
    """Of every other row, without the scale, if those in between are i times the same."""

    def __call__(self) -> Gram:
        """Return K, lower triangle."""
        if self.rows.axis is not None:
            return Gram(self._over_devices(self.rows.axis), jnp.zeros((), self.rows.dtype))
        mean = mean_of(self.rows)
        if self.half is not None:
            matrix = self._present[:, None] * turned_kernel(self.half) * self._present[None, :]
            return Gram(matrix, jnp.zeros((), matrix.dtype))
        if self.factors is not None and mean is not None:
            return centred_kernel(self.factors.parts[0], mean, self._present)
        if self.factors is not None:
            return Gram(joint_kernel(self.factors), jnp.zeros((), self.rows.dtype))
        assert self.rows.dense is not None
        matrix = self.scale[:, None] * kernel_of_rows(self.rows.dense) * self.scale[None, :]
        return Gram(matrix, jnp.zeros((), matrix.dtype))

    def _over_devices(self, axis: Axis) -> Float[Array, "m m"]:
        """Return K: each device makes its rows of it, and sends them to all."""
        m = self.rows.shape[0]
        if self._bytes > GATHERED:
            raise ValueError(
                f"K is {m} x {m}, {self._bytes / 2**30:.3g} GiB, and its eigenvectors would be "
                f"computed on each of {axis.size} devices, which is done up to "
                f"{GATHERED / 2**30:.3g} GiB. Damp, inverse=pullback.Tikhonov(...): the Cholesky "
                "factorisation of K + λ is shared by the devices. Or use "
                "solver=pullback.solver.Krylov(), or pullback.solver.Primal() if the parameters "
                "are few."
            )
        mine = self._local_factors()
        return self.rows.gathered(around(mine, lambda other: joint_block(mine, other), axis))

    def _local_factors(self) -> JointFactors:
        """Return the rows of this device in factors; rows that have none are their own."""
        if self.factors is not None:
            return self.factors
        assert self.rows.dense is not None
        return as_factors(self.rows.own(self.scale)[:, None] * self.rows.dense)

    @property
    def _bytes(self) -> int:
        """The bytes of K."""
        return self.rows.shape[0] ** 2 * jnp.dtype(self.rows.dtype).itemsize

    @property
    def spread(self) -> bool:
        """Whether K stays on the devices that make its rows, where it is damped."""
        return self.rows.axis is not None and self._bytes > COPIED

    @property
    def has_eigenvectors(self):
        return self.rows.axis is None or self._bytes <= SPARE

    def kept(self):
        return SpreadKernel(self, self._panels()) if self.spread else super().kept()

    def factorised(self, damping):
        return self.kept().factorised(damping) if self.spread else super().factorised(damping)

    def _panels(self) -> Panels:
        """Return K in panels."""
        mine, axis = jax.lax.stop_gradient(self._local_factors()), self.rows.axis
        assert axis is not None
        # Of the block between two devices a panel takes what is below its first row.
        widest = cuts(self.rows.local.shape[0], axis.size)[0][1]
        return Panels.of(mine, lambda other: joint_block(mine, other, widest), axis)

    @property
    def removed(self) -> Scalar:
        """What was taken off the rows, whose rounding products through the model have."""
        formed = self.rows.dense is not None
        return jnp.zeros((), self.rows.dtype) if formed else self.rows.removed

    def cholesky(self, matrix):
        return cholesky(matrix) if self.half is None else turned_cholesky(matrix, self.scale)

    def product(self, y: Array) -> Array:
        """Return K y."""
        if self.factors is None or self.rows.axis is not None:
            return self.mv(self.rmv(y))
        mean = mean_of(self.rows)
        if mean is None:
            return joint_product(self.factors, y)
        return centred_product(self.factors.parts[0], mean, self._present, y)

    @property
    def _present(self) -> Float[Array, " m"]:
        """The scale, zero for rows of absent samples."""
        return jnp.where(self.rows.active, self.scale, 0.0)

    def mv(self, eta: Flat) -> Array:
        """Return diag(scale) Â η."""
        if self.products is not None:
            return self.products.mv(eta)
        return self.scale * self.rows.unit_mv(eta)

    def rmv(self, y: Array) -> Flat:
        """Return the transpose on y."""
        if self.products is not None:
            return self.products.rmv(y)
        return self.rows.unit_rmv(self.scale * y)


class SpreadKernel(AbstractMatrix):
    """K, of which every device has its rows."""

    scaled: ScaledRows
    panels: Panels

    def __call__(self):
        return self.scaled()

    @property
    def has_eigenvectors(self):
        return self.scaled.has_eigenvectors

    @property
    def noise(self):
        return rounding(self.panels.diagonal, jnp.zeros((), self.scaled.rows.dtype))

    def kept(self):
        return self

    def factorised(self, damping):
        panels = jax.lax.stop_gradient(self.panels)
        factor, positive = panels.cholesky(damping)
        diagonal, lost = panels.diagonal, jnp.zeros((), self.scaled.rows.dtype)
        return Factored(factor, positive, jnp.sqrt(jnp.sum(diagonal)), diagonal + damping, lost)
