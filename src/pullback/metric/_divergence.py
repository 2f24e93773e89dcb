r"""The metric of any smooth divergence, by automatic differentiation: \(M(z) = \nabla^2_u\,\rho(u,
z)|_{u = z}\).

**Argument order**: `rho(u, z)`, first the outputs that move, then the outputs that `u` is compared
with. Both orders of \(\mathrm{KL}(p_u \| p_z)\) have the same Hessian on the diagonal, but they are
different divergences, and step rules use the divergence.

**Assumes** \(\rho(z, z) = 0\) and \(\nabla_u\rho(u, z)|_{u=z} = 0\): otherwise \(\rho\) is not a
divergence, its Hessian is not a tensor (it depends on the coordinates), and the root is NaN.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .._base import checks
from .._base.functions import canonical
from .._base.tree import structure
from .._base.types import Outputs, Scalar
from ._autodiff import hessian, on_vector
from ._dense import AbstractMatrixMetric
from ._indefinite import describe


class Divergence(AbstractMatrixMetric):
    """The metric of a smooth divergence ρ(u, z) between the outputs of one sample.

    **Arguments:**

    - `rho`: `rho(u, z)`, non-negative and zero at `u = z`; its Hessian in the **first** argument is
        the metric.
    """

    rho: Callable[[Outputs, Outputs], Scalar] = eqx.field(converter=canonical)
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        example = "Divergence(lambda u, z: jnp.sum((u - z) ** 2) / 2)"
        checks.function("Divergence", "rho", self.rho, example)

    def matrix(self, z):
        matrix = hessian(lambda u: self.rho(u, z), z, _OWNER)
        return jnp.where(self._vanishes(z, matrix)[2], matrix, jnp.nan)

    def _vanishes(self, z: Outputs, matrix: Array) -> tuple[Array, Array, Bool[Array, ""]]:
        """ρ and its gradient on the diagonal, and whether both are zero up to the root of eps."""
        # A gradient g moves the minimiser by M⁻¹g, which is compared with 1 + |z|.
        x = structure(z).ravel(z)
        value, slope = jax.value_and_grad(on_vector(lambda u: self.rho(u, z), z, _OWNER))(x)
        eps = jnp.finfo(x.dtype).eps
        length = 1 + jnp.max(jnp.abs(x), initial=0.0)
        size = jnp.max(jnp.abs(matrix), initial=0.0)
        small = jnp.abs(value) <= jnp.sqrt(eps) * size * length**2 + eps
        return value, slope, small & jnp.all(jnp.abs(slope) <= jnp.sqrt(eps) * size * length + eps)

    def divergence(self, u, z):
        return on_vector(lambda x: self.rho(x, z), z, _OWNER)(structure(z).ravel(u))

    def complaint(self, z):
        matrix = hessian(lambda u: self.rho(u, z), z, _OWNER)
        value, slope, vanishes = self._vanishes(z, matrix)
        if np.all(np.isfinite(matrix)) and not vanishes:
            steepest = float(np.max(np.abs(slope), initial=0.0))
            return (
                f"{_OWNER} is not a divergence: rho(z, z) = {float(value):.6g} and its gradient in "
                f"the first argument there has entries up to {steepest:.6g}; both must be zero."
            )
        return describe(
            matrix,
            f"The Hessian of {_OWNER} in its first argument",
            "A divergence is least on the diagonal.",
            z,
        )


_OWNER = "Divergence(rho=...)"
