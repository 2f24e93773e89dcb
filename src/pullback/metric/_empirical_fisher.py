r"""The second moment of the gradients at the observed targets, \(M =
\nabla_z\ell\,\nabla_z\ell^\top\), \(\ell = \ell(z, y)\): rank one per sample.

**It is not a Fisher metric.** The Fisher metric draws its targets from the model (`SampledFisher`);
here they come from the data. The two agree only in expectation, and only if the model is right. The
empirical Fisher matrix is not the Hessian either: on a classification problem it was off by 119 %
and had half the rank. It vanishes with the gradient, so steps grow where they should not. It is
here, under its own name, because it is in use.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx

from .._base import checks
from .._base.functions import canonical
from .._base.tree import structure
from ._autodiff import differential, loss_of
from ._base import AbstractLikelihood
from ._dense import AbstractFactorMetric


class EmpiricalFisher(AbstractFactorMetric):
    """The rank-one second moment of the loss gradient of one sample, S = ∇ℓ(z, y).

    This is not a Fisher metric, and it has no divergence.

    **Arguments:**

    - `loss`: `loss(z, targets)`, a scalar for one sample; or a likelihood, for its negative
        log-likelihood.
    - `targets`: the targets of the sample, which `observe` sets.
    """

    loss: Callable | AbstractLikelihood = eqx.field(converter=canonical)
    targets: Any = None
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        if not isinstance(self.loss, AbstractLikelihood):
            example = "EmpiricalFisher(lambda z, y: jnp.sum((z - y) ** 2) / 2)"
            checks.function("EmpiricalFisher", "loss", self.loss, example)

    def factor(self, z):
        return structure(z).ravel(
            differential(loss_of(self.loss, self.targets, _OWNER), z, _OWNER)
        )[:, None]

    def observe(self, targets, index):
        return EmpiricalFisher(self.loss, self.targets if targets is None else targets)


_OWNER = "EmpiricalFisher(loss=...)"
