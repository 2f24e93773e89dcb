r"""The Fisher metric from draws: \(S = \frac{1}{\sqrt D}[s_1 \dots s_D]\), \(s_d = \nabla_z(-\log
p(y_d \mid z))\), \(y_d \sim p(\cdot \mid z)\).

\(S S^\top\) is an unbiased estimate of the true Fisher metric of the family, of rank at most \(D\),
with error of order \(D^{-1/2}\). The draws come from the **model**, given the outputs; compare
`EmpiricalFisher`. Only the true Fisher metric (the family itself) equals the Hessian of the loss in
natural parameters, and hence the Gauss-Newton matrix; the estimate does so in expectation. The
divergence of the family is not that of the estimate, so there is no divergence.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from .._base import checks
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
    - `draws`: the number of draws per sample.
    - `index`: the position of the sample in the batch, which `observe` sets.
    """

    family: AbstractLikelihood
    key: PRNGKeyArray
    draws: int = eqx.field(static=True, default=1)
    index: Int[Array, ""] | None = None
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        example = "SampledFisher(Categorical(), jax.random.key(0), draws=8)"
        checks.instance(
            "SampledFisher",
            "family",
            self.family,
            AbstractLikelihood,
            "a likelihood to draw from",
            example,
        )
        checks.integer("SampledFisher", "draws", self.draws, least=1, example=example)

    def factor(self, z):
        key = self.key if self.index is None else jax.random.fold_in(self.key, self.index)
        like = structure(z)

        def score(key):
            targets = self.family.sample(key, z)
            loss = lambda x: self.family.negative_log_likelihood(x, targets)
            return like.ravel(differential(loss, z, "SampledFisher(family=...)"))

        scores = jax.vmap(score)(jax.random.split(key, self.draws))
        return scores.T / jnp.sqrt(jnp.asarray(self.draws, like.dtype))

    def observe(self, targets, index):
        return SampledFisher(self.family, self.key, self.draws, index)
