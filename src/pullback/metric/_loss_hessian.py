r"""The Hessian of the loss in the outputs, \(M = \nabla^2_z\,\ell(z, y)\): pulled back, the
generalised Gauss-Newton matrix.

The Hessian is a metric where the loss is convex in the outputs. Where the loss is not, the argument
`spectrum` chooses what becomes of the negative eigenvalues: `Refuse` (the default), `Clip` or
`Absolute`. `Refuse` assumes a convex loss, whose Bregman divergence is \(D_\ell(u, z) = \ell(u) -
\ell(z) - \langle\nabla\ell(z), u - z\rangle\); a changed spectrum has no divergence.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from .._base import checks
from .._base.functions import canonical
from ._autodiff import bregman, hessian, loss_of
from ._base import AbstractLikelihood
from ._dense import AbstractMatrixMetric
from ._indefinite import describe
from ._roots import ABSOLUTE, CLIP, spectral


class AbstractSpectrum(eqx.Module):
    """What to do with the negative eigenvalues of a Hessian."""

    keeps_hessian: ClassVar[bool] = False
    """Whether `repair` returns the Hessian itself, so that the divergence of the loss fits it."""

    @abc.abstractmethod
    def repair(self, matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
        """The matrix that stands for the Hessian.

        **Arguments:**

        - `matrix`: a symmetric matrix.
        """


class Refuse(AbstractSpectrum):
    """The Hessian as it is; where it is indefinite, the root is NaN and an error shows why."""

    keeps_hessian: ClassVar[bool] = True

    def repair(self, matrix):
        return matrix


class Clip(AbstractSpectrum):
    """Negative eigenvalues become zero: the metric ignores these directions."""

    def repair(self, matrix):
        return spectral(CLIP, matrix)


class Absolute(AbstractSpectrum):
    """Negative eigenvalues change their sign, as in saddle-free Newton."""

    def repair(self, matrix):
        return spectral(ABSOLUTE, matrix)


class LossHessian(AbstractMatrixMetric):
    """The Hessian of the loss of one sample in its outputs.

    **Arguments:**

    - `loss`: `loss(z, targets)` or `loss(z)`, a scalar for one sample; or a likelihood, for its
        negative log-likelihood.
    - `spectrum`: `Refuse()`, `Clip()` or `Absolute()`.
    - `targets`: the targets of the sample, which `observe` sets.
    """

    loss: Callable | AbstractLikelihood = eqx.field(converter=canonical)
    spectrum: AbstractSpectrum = Refuse()
    targets: Any = None
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        if not isinstance(self.loss, AbstractLikelihood):
            example = "LossHessian(lambda z, y: jnp.sum((z - y) ** 2) / 2)"
            checks.function("LossHessian", "loss", self.loss, example)
        checks.instance(
            "LossHessian",
            "spectrum",
            self.spectrum,
            AbstractSpectrum,
            "Refuse(), Clip() or Absolute()",
            "LossHessian(loss, spectrum=Clip())",
        )

    def matrix(self, z):
        return self.spectrum.repair(self._hessian(z))

    def _hessian(self, z):
        """The Hessian of the loss as it is."""
        return hessian(loss_of(self.loss, self.targets, _OWNER), z, _OWNER)

    def divergence(self, u, z):
        if not self.has_divergence:
            raise TypeError(
                f"LossHessian(spectrum={self.spectrum}) is a metric without a divergence; "
                f"LossHessian(spectrum=Refuse()) has one."
            )
        return bregman(loss_of(self.loss, self.targets, _OWNER), u, z, _OWNER)

    @property
    def has_divergence(self):
        return self.spectrum.keeps_hessian

    def observe(self, targets, index):
        return LossHessian(self.loss, self.spectrum, self.targets if targets is None else targets)

    def complaint(self, z):
        cure = (
            "Use LossHessian(loss, spectrum=Clip()) or Absolute(), or a metric that is positive "
            "semi-definite by construction."
        )
        return describe(self._hessian(z), "The Hessian of LossHessian(loss=...)", cure, z)


_OWNER = "LossHessian(loss=...)"
