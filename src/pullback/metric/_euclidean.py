r"""The Euclidean metric on the outputs, \(M = \sigma I\): Gauss-Newton for squared errors, the
plain NTK geometry.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base import checks
from .._base.tree import structure
from ._base import AbstractMetric
from ._roots import DiagonalRoot


class Euclidean(AbstractMetric):
    """The metric `scale · I` on outputs of any structure; its divergence is `scale/2 ‖u - z‖²`.

    **Arguments:**

    - `scale`: a positive number.
    """

    scale: Float[Array, ""] | float = 1.0
    nonsingular: ClassVar[bool] = True
    constant: ClassVar[bool] = True
    event_ndim: ClassVar[int | None] = 0

    def __check_init__(self):
        checks.positive("Euclidean", "scale", self.scale)

    def root(self, z):
        like = structure(z)
        return DiagonalRoot(
            jnp.full(like.size, jnp.log(jnp.asarray(self.scale, like.dtype)) / 2), like
        )

    def apply(self, z, v):
        return jax.tree.map(lambda x: x * jnp.asarray(self.scale, x.dtype), v)

    def sharp(self, z, c):
        return jax.tree.map(lambda x: x / jnp.asarray(self.scale, x.dtype), c)

    def divergence(self, u, z):
        like = structure(z)
        return (
            jnp.asarray(self.scale, like.dtype) * jnp.sum((like.ravel(u) - like.ravel(z)) ** 2) / 2
        )

    def complaint(self, z):
        return str(
            checks.error("Euclidean", "scale", self.scale, "positive", "Euclidean(scale=1.0)")
        )
