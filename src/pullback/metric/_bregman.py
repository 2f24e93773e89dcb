r"""The metric of a convex potential, \(M = \nabla^2\varphi(z)\), the geometry of mirror descent.

Its divergence is \(D_\varphi(u, z) = \varphi(u) - \varphi(z) - \langle\nabla\varphi(z), u -
z\rangle\). **Assumes** \(\varphi\) convex; where it is convex but not strictly so \(M\) is
singular, which is allowed. For \(\varphi\) a log-partition function this is \(\mathrm{KL}(p_z \|
p_u)\), the reverse of what `ExponentialFamily` computes; the metric is the same.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx

from .._base import checks
from .._base.functions import canonical
from .._base.types import Outputs, Scalar
from ._autodiff import bregman, hessian
from ._dense import AbstractMatrixMetric
from ._indefinite import describe


class Bregman(AbstractMatrixMetric):
    """The Hessian metric of a convex function of the outputs, and its Bregman divergence.

    **Arguments:**

    - `phi`: a convex function of the outputs of one sample, smooth enough to be differentiated
        twice.
    """

    phi: Callable[[Outputs], Scalar] = eqx.field(converter=canonical)
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        checks.function("Bregman", "phi", self.phi, "Bregman(lambda z: jnp.sum(z**2) / 2)")

    def matrix(self, z):
        return hessian(self.phi, z, _OWNER)

    def divergence(self, u, z):
        return bregman(self.phi, u, z, _OWNER)

    def complaint(self, z):
        return describe(self.matrix(z), f"The Hessian of {_OWNER}", "phi must be convex.", z)


_OWNER = "Bregman(phi=...)"
