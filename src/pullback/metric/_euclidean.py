r"""The Euclidean metric on the outputs, \(M = \sigma I\): Gauss-Newton for squared errors, the plain NTK geometry."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._tree import inner, split, structure
from ._base import AbstractMetric
from ._roots import DiagonalRoot


class Euclidean(AbstractMetric):
    """The metric `scale · I` on arrays and pytrees of outputs of any shape; divergence `scale/2 ‖u - z‖²`."""

    scale: Float[Array, ""] | float = 1.0
    nonsingular: ClassVar[bool] = True

    def __check_init__(self):
        if isinstance(self.scale, int | float) and not self.scale > 0:
            raise ValueError(f"Euclidean(scale={self.scale}): the scale must be positive, e.g. Euclidean(scale=1.0).")

    def root(self, z):
        like = structure(z)
        return DiagonalRoot(jnp.full(like.size, jnp.log(jnp.asarray(self.scale, like.dtype)) / 2), like)

    def apply(self, z, v):
        return jax.tree.map(lambda x: (self.scale * x).astype(x.dtype), v)

    def sharp(self, z, c):
        return jax.tree.map(lambda x: (x / self.scale).astype(x.dtype), c)

    def divergence(self, u, z):
        difference = jax.tree.map(jnp.subtract, split(u)[0], split(z)[0])
        return self.scale * inner(difference, difference) / 2
