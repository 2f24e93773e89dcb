r"""The Fisher metric from draws: \(S = \frac{1}{\sqrt D}[s_1 \dots s_D]\), \(s_d = \nabla_z(-\log
p(y_d \mid z))\), \(y_d \sim p(\cdot \mid z)\).

\(S S^\top\) is an unbiased estimate of the true Fisher metric of the family, of rank at most \(D\),
with error of order \(D^{-1/2}\). The draws come from the **model**, given the outputs; compare
`EmpiricalFisher`. Only the true Fisher metric (the family itself) equals the Hessian of the loss in
natural parameters, and so the Gauss-Newton matrix; this one does so in expectation. The family's
divergence is not this metric's, and none is given.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from .._base.tree import structure
from ._autodiff import differential
from ._base import AbstractLikelihood
from ._dense import AbstractFactorMetric


class SampledFisher(AbstractFactorMetric):
    """The Monte-Carlo Fisher metric of a family.

    **Arguments:**

    - `family`: a likelihood, e.g. `Categorical()`.
    - `key`: a PRNG key; sample i of the batch draws with `fold_in(key, i)`. Give a fresh key each
        step for fresh draws.
    - `draws`: how many draws a sample.
    - `index`: the position of the sample in the batch; filled in by `observe`.
    """

    family: AbstractLikelihood
    key: PRNGKeyArray
    draws: int = eqx.field(static=True, default=1)
    index: Int[Array, ""] | None = None
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        if not isinstance(self.family, AbstractLikelihood):
            raise ValueError(
                f"SampledFisher(family=...) takes a likelihood to draw from, got {self.family!r}. "
                f"For example SampledFisher(Categorical(), jax.random.key(0), draws=8)."
            )
        if isinstance(self.draws, bool) or not isinstance(self.draws, int) or self.draws < 1:
            raise ValueError(
                f"SampledFisher(draws=...) takes a positive integer, got {self.draws!r}. "
                f"For example SampledFisher(family, key, draws=8)."
            )

    def factor(self, z):
        key = self.key if self.index is None else jax.random.fold_in(self.key, self.index)
        like = structure(z)

        def score(key):
            targets = self.family.sample(key, z)
            return like.ravel(
                differential(
                    lambda x: self.family.negative_log_likelihood(x, targets),
                    z,
                    "SampledFisher(family=...)",
                )
            )

        return jax.vmap(score)(jax.random.split(key, self.draws)).T / jnp.sqrt(
            jnp.asarray(self.draws, like.dtype)
        )

    def observe(self, targets, index):
        return SampledFisher(self.family, self.key, self.draws, index)
