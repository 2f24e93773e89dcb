r"""The Hessian of the loss in the outputs, \(M = \nabla^2_z\,\ell(z, y)\): pulled back, the
generalised Gauss-Newton matrix.

It is a metric where the loss is convex in the outputs. Where it is not, the user says by a type
what to do with the negative eigenvalues: `Refuse` (the default), `Clip` or `Absolute`. With
`Refuse` the loss is taken to be convex and the divergence is its own, \(D_\ell(u, z) = \ell(u) -
\ell(z) - \langle\nabla\ell(z), u - z\rangle\); a changed spectrum has no divergence.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from ._autodiff import bregman, hessian, loss_of
from ._base import AbstractLikelihood
from ._check import require_callable
from ._dense import AbstractMatrixMetric, describe
from ._roots import ABSOLUTE, CLIP, spectral


class AbstractSpectrum(eqx.Module):
    """What to do with the negative eigenvalues of a Hessian."""

    @abc.abstractmethod
    def repair(self, matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
        """The matrix that stands for the Hessian.

        **Arguments:**

        - `matrix`: a symmetric matrix.
        """


class Refuse(AbstractSpectrum):
    """An indefinite Hessian is not a metric: the root is NaN, and the complaint names the
    eigenvalues.
    """

    def repair(self, matrix):
        return matrix


class Clip(AbstractSpectrum):
    """Negative eigenvalues become zero: the metric does not see these directions."""

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
    - `targets`: the targets of the sample; filled in by `observe`.
    """

    loss: Callable | AbstractLikelihood
    spectrum: AbstractSpectrum = Refuse()
    targets: Any = None
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        if not isinstance(self.loss, AbstractLikelihood):
            require_callable(
                self.loss, _OWNER, "LossHessian(lambda z, y: jnp.sum((z - y) ** 2) / 2)"
            )
        if not isinstance(self.spectrum, AbstractSpectrum):
            raise ValueError(
                f"LossHessian(spectrum=...) takes Refuse(), Clip() or Absolute(), got {self.spectrum!r}. "
                f"For example LossHessian(loss, spectrum=Clip())."
            )

    def matrix(self, z):
        return self.spectrum.repair(self._hessian(z))

    def _hessian(self, z):
        return hessian(loss_of(self.loss, self.targets, _OWNER), z, _OWNER)

    def divergence(self, u, z):
        if not self.has_divergence:
            raise TypeError(
                f"LossHessian(spectrum={self.spectrum}) is a metric without a divergence; with Refuse() it has one."
            )
        return bregman(loss_of(self.loss, self.targets, _OWNER), u, z, _OWNER)

    @property
    def has_divergence(self):
        return isinstance(self.spectrum, Refuse)

    def observe(self, targets, index):
        return LossHessian(self.loss, self.spectrum, self.targets if targets is None else targets)

    def complaint(self, z):
        cure = "Use LossHessian(loss, spectrum=Clip()) or Absolute(), or a metric that is one by construction."
        return describe(self._hessian(z), "The Hessian of LossHessian(loss=...)", cure)


_OWNER = "LossHessian(loss=...)"
