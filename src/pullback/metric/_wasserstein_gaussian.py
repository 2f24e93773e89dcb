r"""The Wasserstein metric on Gaussian measures of one dimension: \(M = I\) in mean and standard
deviation.

\[ W_2^2 = (\mu_u - \mu_z)^2 + (|\sigma_u| - |\sigma_z|)^2, \qquad \rho = \tfrac12 W_2^2 , \]

the Hessian of \(\rho\), not of \(W_2^2\). Entries are independent variables, whose squared
distances add up. Unlike the Fisher metric it does not depend on the scale, and is finite at
\(\sigma = 0\).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from ._base import AbstractMetric
from ._outputs import named
from ._roots import DiagonalRoot


class WassersteinGaussian(AbstractMetric):
    """The W₂ metric of independent Gaussian variables; outputs `{"mean": μ, "scale": σ}`, arrays of
    one shape (or a named tuple).

    σ and -σ stand for the same measure. For covariance matrices see
    `WassersteinGaussianCovariance`.
    """

    nonsingular: ClassVar[bool] = True
    event_ndim: ClassVar[int | None] = 0

    def root(self, z):
        like = _read(z).like
        return DiagonalRoot(jnp.zeros(like.size, like.dtype), like)

    def apply(self, z, v):
        _read(z)
        return jax.tree.map(lambda x: x, v)

    def sharp(self, z, c):
        _read(z)
        return jax.tree.map(lambda x: x, c)

    def divergence(self, u, z):
        reader = _read(z)
        a, b = reader.get(u), reader.get(z)
        return (
            jnp.sum((a["mean"] - b["mean"]) ** 2)
            + jnp.sum((jnp.abs(a["scale"]) - jnp.abs(b["scale"])) ** 2)
        ) / 2


def _read(z):
    reader = named(z, "WassersteinGaussian()", ("mean", "scale"))
    leaves = reader.get(z)
    if leaves["mean"].shape != leaves["scale"].shape:
        raise ValueError(
            f"WassersteinGaussian() takes 'mean' and 'scale' of one shape, got {leaves['mean'].shape} and {leaves['scale'].shape}."
        )
    return reader
