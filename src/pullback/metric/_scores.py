r"""The Fisher metric as the covariance of scores, estimated from samples.

The outputs are the log-probabilities of the batch, \(z_i = \log p_\theta(x_i)\), and

\[ M = \mathrm{diag}(w) - \frac{w w^\top}{W}, \qquad W = \sum_i w_i, \]

one form on all of \(R^N\), so that \(J^\top M J\) is the (weighted) covariance of the scores
\(\nabla_\theta \log p_\theta(x_i)\): an unnormalised model needs no partition function, because
centring removes it. In variational Monte Carlo this is the quantum geometric tensor (stochastic
reconfiguration). It is the Fisher matrix in expectation if the samples come from the model.

With \(n = \sqrt w/\sqrt W\), a unit vector, \(S = \mathrm{diag}(\sqrt w)\,(I - nn^\top)\), in
\(O(N)\) memory:

\[ S x = \sqrt w \circ x - w\,\frac{\sqrt w^\top x}{W}, \qquad S^\top v = \sqrt w \circ \Bigl(v -
\frac{w^\top v}{W}\Bigr), \qquad S^+ c = \frac{c}{\sqrt w} \ \text{ if } \sum_i c_i = 0 . \]

(\(S S^\top = \mathrm{diag}(w) - ww^\top/W\), and \(c/\sqrt w \perp n\), hence \(c/\sqrt w\) is in
the range of \(S^\top\).) A sample of weight zero is absent.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.tree import Structure
from ._base import AbstractMetric, AbstractRoot
from ._outputs import one_array


class ScoresRoot(AbstractRoot):
    """S = (I - w 1ᵀ/W) diag(√w)."""

    log_scale: Float[Array, " N"]
    weights: Float[Array, " N"]
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        w = jnp.where(self.weights == 0, 0.0, w)
        return self.like.unravel(w - self.weights * jnp.sum(w) / _total(self.weights))

    def unit_transpose(self, v):
        return _centre_vector(self.weights, self.like.ravel(v))

    def unit_lift(self, c):
        return _divide(_centre_covector(self.weights, self.like.ravel(c)), self.weights)


def _total(weights: Array) -> Array:
    """W, or 1 if all weights are zero."""
    total = jnp.sum(weights)
    return jnp.where(total == 0, 1.0, total)


def _divide(c: Array, weights: Array) -> Array:
    """c/w, zero where the weight is."""
    return jnp.where(weights == 0, 0.0, c / jnp.where(weights == 0, 1.0, weights))


def _centre_vector(weights: Array, v: Array) -> Array:
    """v minus its weighted mean, on the samples that are present."""
    v = jnp.where(weights == 0, 0.0, v)
    return jnp.where(weights == 0, 0.0, v - jnp.sum(weights * v) / _total(weights))


def _centre_covector(weights: Array, c: Array) -> Array:
    """The orthogonal projection of c on the range of M: sum zero, and zero where the weight is."""
    c = jnp.where(weights == 0, 0.0, c)
    count = jnp.sum((weights != 0).astype(weights.dtype))
    return jnp.where(weights == 0, 0.0, c - jnp.sum(c) / jnp.maximum(count, 1.0))


class Scores(AbstractMetric):
    """The covariance of scores on the log-probabilities of a batch.

    The outputs are one array of shape (N,) for the whole batch. The divergence, with δ = u - z, is
    W times the KL divergence between the weighted samples reweighted by e^δ and the weighted
    samples: KL(p_u ‖ p_z) from samples.

    **Arguments:**

    - `weights`: the weights of the samples, non-negative, which `weigh` sets from the measure.
        `None` means 1/N each.
    """

    weights: Float[Array, " N"] | None = None
    nonsingular: ClassVar[bool] = False
    couples_samples: ClassVar[bool] = True
    centred: ClassVar[bool] = True

    def __check_init__(self):
        if self.weights is None:
            return
        good = np.ndim(self.weights) == 1
        if good and checks.is_concrete(self.weights):
            good = bool(np.all(np.asarray(self.weights) >= 0))
        if not good:
            raise checks.error(
                "Scores",
                "weights",
                self.weights,
                "a vector of non-negative weights, one per sample",
                "Scores(), with the weights in the measure",
            )

    def _read(self, z) -> tuple[Array, Array, Structure]:
        """The log-probabilities, their weights, and the structure of the outputs."""
        z, like = one_array(
            z,
            "Scores()",
            "one array of log-probabilities, of shape (N,)",
            "Return one log-probability per sample.",
        )
        if z.ndim != 1 or (self.weights is not None and jnp.shape(self.weights) != z.shape):
            weights = None if self.weights is None else jnp.shape(self.weights)
            raise ValueError(
                f"Scores() takes log-probabilities of shape (N,) and as many weights, got {z.shape}"
                f" and {weights}."
            )
        weights = (
            jnp.full_like(z, 1 / z.shape[0])
            if self.weights is None
            else jnp.asarray(self.weights).astype(z.dtype)
        )
        return z, weights, like

    def root(self, z):
        _, weights, like = self._read(z)
        present = weights != 0
        return ScoresRoot(
            jnp.where(present, jnp.log(jnp.where(present, weights, 1.0)) / 2, -jnp.inf),
            weights,
            like,
        )

    def apply(self, z, v):
        _, weights, like = self._read(z)
        return like.unravel(weights * _centre_vector(weights, like.ravel(v)))

    def sharp(self, z, c):
        _, weights, like = self._read(z)
        return like.unravel(
            _centre_covector(weights, _divide(_centre_covector(weights, like.ravel(c)), weights))
        )

    def divergence(self, u, z):
        z, weights, like = self._read(z)
        gap = jnp.where(weights == 0, 0.0, like.ravel(u) - z)
        log_mean = jax.nn.logsumexp(gap, b=weights / _total(weights))
        return jnp.sum(weights * jnp.exp(gap - log_mean) * (gap - log_mean))

    def weigh(self, weights):
        return Scores(weights)

    def complaint(self, z):
        example = "Scores(), with the weights in the measure"
        wanted = "finite and non-negative"
        return str(checks.error("Scores", "weights", self.weights, wanted, example))
