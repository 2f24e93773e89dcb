r"""The Fisher metric of Gaussian variables in their mean \(\mu\) and \(\lambda = \log\sigma\): \(M
= \mathrm{diag}(1/\sigma^2, 2)\).

The mean and the logarithm of the scale are orthogonal. With \(t = (y - \mu)/\sigma\) the negative
log-likelihood is \(t^2/2 + \lambda\), its differential \((-t/\sigma,\ 1 - t^2)\) and its ambient
gradient \((\mu - y,\ (1 - t^2)/2)\). The root is graded: \(\ell = (-\lambda,\ \tfrac12\log 2)\).
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from ._base import AbstractLikelihood
from ._outputs import named, targets_like
from ._roots import DiagonalRoot


class GaussianMeanScale(AbstractLikelihood):
    """Independent Gaussian variables with a mean and a scale, both outputs of the model.

    The outputs are `{"mean": μ, "log_scale": log σ}`, arrays of one shape, or a named tuple or
    module with these fields. Targets are one array of that shape.
    """

    nonsingular: ClassVar[bool] = True
    graded: ClassVar[bool] = True
    event_ndim: ClassVar[int | None] = 0

    def root(self, z):
        reader, _, log_scale = _read(z)
        return DiagonalRoot(
            reader.like.ravel(
                reader.put(mean=-log_scale, log_scale=jnp.full_like(log_scale, math.log(2) / 2))
            ),
            reader.like,
        )

    def apply(self, z, v):
        reader, _, log_scale = _read(z)
        v = reader.get(v)
        return reader.put(mean=v["mean"] * jnp.exp(-2 * log_scale), log_scale=2 * v["log_scale"])

    def sharp(self, z, c):
        reader, _, log_scale = _read(z)
        c = reader.get(c)
        return reader.put(mean=c["mean"] * jnp.exp(2 * log_scale), log_scale=c["log_scale"] / 2)

    def divergence(self, u, z):
        # log σ_z/σ_u + (σ_u² + (μ_u - μ_z)²)/(2σ_z²) - 1/2
        _, mean, log_scale = _read(u)
        _, other, other_log_scale = _read(z)
        gap = log_scale - other_log_scale
        return jnp.sum(
            jnp.expm1(2 * gap) / 2 - gap + ((mean - other) * jnp.exp(-other_log_scale)) ** 2 / 2
        )

    def negative_log_likelihood(self, z, targets):
        _, mean, log_scale = _read(z)
        y = targets_like(mean, targets, "GaussianMeanScale")
        return jnp.sum(((y - mean) * jnp.exp(-log_scale)) ** 2 / 2 + log_scale)

    def sample(self, key, z):
        _, mean, log_scale = _read(z)
        return mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape, mean.dtype)

    def likelihood_lift(self, z, targets):
        reader, mean, log_scale = _read(z)
        error = mean - targets_like(mean, targets, "GaussianMeanScale")
        return reader.like.ravel(
            reader.put(mean=error, log_scale=(1 - (error * jnp.exp(-log_scale)) ** 2) / 2)
        )


def _read(z):
    """The reader of the outputs, the mean and the log-scale."""
    reader = named(z, "GaussianMeanScale()", ("mean", "log_scale"))
    leaves = reader.get(z)
    mean = leaves["mean"]
    log_scale = leaves["log_scale"]
    if mean.shape != log_scale.shape:
        raise ValueError(
            f"GaussianMeanScale() takes 'mean' and 'log_scale' of one shape, got {mean.shape} and "
            f"{log_scale.shape}."
        )
    return reader, mean, log_scale
