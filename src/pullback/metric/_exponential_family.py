r"""The Fisher metric of an exponential family in its natural parameters: \(M = \nabla^2 A(z)\),
\(A\) the log-partition function.

\[ p(y \mid z) = h(y)\exp(\langle T(y), z\rangle - A(z)). \]

Its divergence is the Bregman divergence with its arguments reversed: \(\mathrm{KL}(p_u \| p_z) =
A(z) - A(u) - \langle\nabla A(u), z - u\rangle = D_A(z, u)\). The two orders have the same Hessian
at \(u = z\), but they are different functions.

The matrix is dense. A family that saturates is better served by its own metric (`Bernoulli`,
`Categorical`, `Poisson`).
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import PRNGKeyArray

from .._base import checks
from .._base.functions import canonical
from .._base.tree import structure
from .._base.types import Outputs, Scalar
from ._autodiff import bregman, differential, hessian, on_vector
from ._base import AbstractLikelihood
from ._dense import AbstractMatrixMetric
from ._indefinite import describe
from ._outputs import targets_like


class ExponentialFamily(AbstractMatrixMetric, AbstractLikelihood):
    """The exponential family with the given log-partition function.

    The outputs of one sample are the natural parameters, any pytree. Targets are the sufficient
    statistic T(y), of the structure of the outputs: the negative log-likelihood is A(z) - <T, z>.

    **Arguments:**

    - `log_partition`: a convex function A of the outputs of one sample, smooth enough to be
        differentiated twice.
    - `sampler`: `sampler(key, z)` draws one T(y); only `sample` (and so `SampledFisher`) needs it.
    """

    log_partition: Callable[[Outputs], Scalar] = eqx.field(converter=canonical)
    sampler: Callable[[PRNGKeyArray, Outputs], Any] | None = eqx.field(
        default=None, converter=canonical
    )
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        example = "ExponentialFamily(lambda z: jnp.sum(jnp.exp(z)))"
        checks.function("ExponentialFamily", "log_partition", self.log_partition, example)
        if self.sampler is not None:
            example = "ExponentialFamily(A, sampler=lambda key, z: ...)"
            checks.function("ExponentialFamily", "sampler", self.sampler, example)

    def matrix(self, z):
        return hessian(self.log_partition, z, _OWNER)

    def divergence(self, u, z):
        return bregman(self.log_partition, z, u, _OWNER)

    def negative_log_likelihood(self, z, targets):
        like = structure(z)
        statistic = like.ravel(targets_like(z, targets, "ExponentialFamily"))
        x = like.ravel(z)
        return on_vector(self.log_partition, z, _OWNER)(x) - (statistic * x).sum()

    def sample(self, key, z):
        if self.sampler is None:
            raise TypeError(
                "ExponentialFamily cannot be sampled from its log-partition function alone: give "
                "ExponentialFamily(log_partition, sampler=lambda key, z: ...), which draws the "
                "sufficient statistic T(y)."
            )
        return self.sampler(key, z)

    def likelihood_lift(self, z, targets):
        like = structure(z)
        mean = like.ravel(differential(self.log_partition, z, _OWNER))
        return self.root(z).unit_lift(
            like.unravel(mean - like.ravel(targets_like(z, targets, "ExponentialFamily")))
        )

    def complaint(self, z):
        return describe(
            self.matrix(z), f"The Hessian of {_OWNER}", "A log-partition function is convex.", z
        )


_OWNER = "ExponentialFamily(log_partition=...)"
