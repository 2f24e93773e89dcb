r"""The Fisher metric of Bernoulli variables in their logits \(s\): \(M = \varphi(s)\varphi(-s)\),
\(\varphi\) the logistic function.

Saturation. \(M\) underflows at \(|s| > 745\), its root not before \(|s| > 1490\), and \(\ell =
-(\mathrm{softplus}(s) + \mathrm{softplus}(-s))/2\) never. The ambient gradient of the negative
log-likelihood with label \(y \in [0, 1]\) is

\[ M^{-1}(\varphi(s) - y) = \frac{1-y}{\varphi(-s)} - \frac{y}{\varphi(s)}, \]

bounded for a correctly classified sample however large the logit (with \(y = ±1\) it is
\(-y/\varphi(ys)\)).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from .._base.tree import split, structure
from ._base import AbstractLikelihood
from ._log_loss import log_softplus
from ._outputs import targets_like
from ._roots import DiagonalRoot, overflows


class Bernoulli(AbstractLikelihood):
    """Independent Bernoulli variables; every entry of the outputs is a logit.

    Targets are in [0, 1], of the shape of the outputs.
    """

    nonsingular: ClassVar[bool] = True
    graded: ClassVar[bool] = True
    event_ndim: ClassVar[int | None] = 0

    def root(self, z):
        like = structure(z)
        s = like.ravel(z)
        return DiagonalRoot(-(jax.nn.softplus(s) + jax.nn.softplus(-s)) / 2, like)

    def apply(self, z, v):
        return jax.tree.map(lambda s, x: x * jax.nn.sigmoid(s) * jax.nn.sigmoid(-s), split(z)[0], v)

    def sharp(self, z, c):
        def one(s, x):
            # 0 wins over a variance that underflows.
            safe = jnp.where((x == 0) & overflows(jnp.abs(s) + 1), 0.0, s)
            return x / jax.nn.sigmoid(safe) / jax.nn.sigmoid(-safe)

        return jax.tree.map(one, split(z)[0], c)

    def divergence(self, u, z):
        def kl(a, b):
            # φ(a) log φ(a)/φ(b) + φ(-a) log φ(-a)/φ(-b)
            up = jax.nn.sigmoid(a) * (jax.nn.log_sigmoid(a) - jax.nn.log_sigmoid(b))
            return jnp.sum(
                up + jax.nn.sigmoid(-a) * (jax.nn.log_sigmoid(-a) - jax.nn.log_sigmoid(-b))
            )

        return sum(jax.tree.leaves(jax.tree.map(kl, split(u)[0], split(z)[0])))

    def admits(self, z, targets):
        targets = jax.tree.leaves(targets_like(z, targets, "Bernoulli"))
        return jnp.all(jnp.stack([jnp.all((y >= 0) & (y <= 1)) for y in targets]))

    @property
    def support(self):
        return "numbers from 0 to 1"

    def negative_log_likelihood(self, z, targets):
        def loss(s, y):
            return jnp.sum((1 - y) * jax.nn.softplus(s) + y * jax.nn.softplus(-s))

        return sum(
            jax.tree.leaves(jax.tree.map(loss, split(z)[0], targets_like(z, targets, "Bernoulli")))
        )

    def sample(self, key, z):
        like = structure(z)
        return like.unravel(
            jax.random.bernoulli(key, jax.nn.sigmoid(like.ravel(z))).astype(like.dtype)
        )

    def likelihood_lift(self, z, targets):
        def ambient(s, y):
            # 1/φ(s) = 1 + e^-s; a zero factor must win over an overflowing one.
            up = jnp.where(y == 1, 0.0, (1 - y) * (1 + jnp.exp(s)))
            return up - jnp.where(y == 0, 0.0, y * (1 + jnp.exp(-s)))

        return structure(z).ravel(
            jax.tree.map(ambient, split(z)[0], targets_like(z, targets, "Bernoulli"))
        )

    def log_loss(self, z, targets):
        def terms(s, y):
            return logsumexp(
                jnp.stack([jnp.log1p(-y) + log_softplus(s), jnp.log(y) + log_softplus(-s)])
            )

        parts = jax.tree.map(terms, split(z)[0], targets_like(z, targets, "Bernoulli"))
        return logsumexp(jnp.stack(jax.tree.leaves(parts)))
