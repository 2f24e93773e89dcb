r"""The Fisher metric of Poisson variables in their log-rates \(z\): \(M = e^z\).

The root is \(e^{z/2}\), graded by \(\ell = z/2\): a rate of \(e^{-1000}\) is ordinary input. The
ambient gradient of the negative log-likelihood \(e^z - yz\) of a count \(y\) is \(\hat r =
M^{-1}(e^z - y) = 1 - y e^{-z}\), which is 1 when nothing was counted, however small the rate.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from .._base.tree import split, structure
from ._base import AbstractLikelihood
from ._outputs import targets_like
from ._roots import DiagonalRoot, overflows


class Poisson(AbstractLikelihood):
    """Independent Poisson variables; every entry of the outputs is the logarithm of a rate.

    Targets are counts, of the shape of the outputs.
    """

    nonsingular: ClassVar[bool] = True
    graded: ClassVar[bool] = True
    event_ndim: ClassVar[int | None] = 0

    def root(self, z):
        like = structure(z)
        return DiagonalRoot(like.ravel(z) / 2, like)

    def apply(self, z, v):
        return jax.tree.map(lambda s, x: x * jnp.exp(s), split(z)[0], v)

    def sharp(self, z, c):
        # 0 wins over a rate that underflows.
        return jax.tree.map(
            lambda s, x: x * jnp.exp(-jnp.where((x == 0) & overflows(-s), 0.0, s)), split(z)[0], c
        )

    def divergence(self, u, z):
        def kl(a, b):
            # e^a (a - b) - e^a + e^b with the larger rate outside the bracket, whose terms then
            # cannot overflow.
            gap = a - b
            up = jnp.where(gap > 0, gap, 0.0)
            down = jnp.where(gap > 0, 0.0, gap)
            return jnp.sum(
                jnp.exp(a) * (up + jnp.expm1(-up))
                + jnp.exp(b) * (down * jnp.exp(down) - jnp.expm1(down))
            )

        return sum(jax.tree.leaves(jax.tree.map(kl, split(u)[0], split(z)[0])))

    def admits(self, z, targets):
        targets = jax.tree.leaves(targets_like(z, targets, "Poisson"))
        return jnp.all(jnp.stack([jnp.all(y >= 0) for y in targets]))

    @property
    def support(self):
        return "counts, not negative"

    def negative_log_likelihood(self, z, targets):
        targets = targets_like(z, targets, "Poisson")
        return sum(
            jax.tree.leaves(
                jax.tree.map(lambda s, y: jnp.sum(jnp.exp(s) - y * s), split(z)[0], targets)
            )
        )

    def sample(self, key, z):
        like = structure(z)
        return like.unravel(jax.random.poisson(key, jnp.exp(like.ravel(z))).astype(like.dtype))

    def likelihood_lift(self, z, targets):
        def ambient(s, y):
            # y = 0 wins over an overflowing e^-z.
            return 1 - y * jnp.exp(-jnp.where(y == 0, 0.0, s))

        return structure(z).ravel(
            jax.tree.map(ambient, split(z)[0], targets_like(z, targets, "Poisson"))
        )
