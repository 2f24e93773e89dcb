r"""The Wasserstein metric on one-dimensional Gaussian measures: M = I in mean and scale.

\[ W_2^2 = (\mu_u - \mu_z)^2 + (|\sigma_u| - |\sigma_z|)^2, \qquad \rho = \tfrac12 W_2^2 . \]

The metric is the Hessian of \(\rho\), not of \(W_2^2\). Entries are independent variables, whose
squared distances add up. Unlike the Fisher metric it does not depend on the scale, and it is finite
at \(\sigma = 0\).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from .._base.types import Outputs
from ._base import AbstractMetric
from ._outputs import Named, named
from ._roots import DiagonalRoot


class WassersteinGaussian(AbstractMetric):
    """The W₂ metric of independent Gaussian variables in mean and standard deviation.

    The outputs are `{"mean": μ, "scale": σ}`, arrays of one shape, or a named tuple or module with
    these fields. σ and -σ are the same measure. For covariance matrices use
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
        a = reader.get(u)
        b = reader.get(z)
        return (
            jnp.sum((a["mean"] - b["mean"]) ** 2)
            + jnp.sum((jnp.abs(a["scale"]) - jnp.abs(b["scale"])) ** 2)
        ) / 2


def _read(z: Outputs) -> Named:
    """The reader of the two leaves."""
    reader = named(z, "WassersteinGaussian()", ("mean", "scale"))
    leaves = reader.get(z)
    if leaves["mean"].shape != leaves["scale"].shape:
        raise ValueError(
            f"WassersteinGaussian() takes 'mean' and 'scale' of one shape, got "
            f"{leaves['mean'].shape} and {leaves['scale'].shape}."
        )
    return reader
