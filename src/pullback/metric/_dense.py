r"""Metrics given by a dense matrix \(M(z)\), or a factor of it, on the ravelled outputs of one
sample.

A dense matrix resolves its eigenvalues to \(k \cdot \mathrm{eps} \cdot \lambda_{\max}\) and no
further. A family that saturates (logits of ±1000) therefore needs a graded root, and a file of its
own.
"""

import abc

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.tree import structure
from .._base.types import Outputs
from .._base.vector import finite_or_nan
from ._base import AbstractMetric
from ._indefinite import describe
from ._roots import factor_root, matrix_apply, matrix_root, matrix_sharp


class AbstractMatrixMetric(AbstractMetric):
    """A metric given by its matrix; its root is NaN where the matrix is not a metric."""

    @abc.abstractmethod
    def matrix(self, z: Outputs) -> Float[Array, "k k"]:
        """M(z) on the ravelled outputs.

        **Arguments:**

        - `z`: the outputs of one sample.
        """

    def root(self, z):
        return matrix_root(self.matrix(z), z)

    def apply(self, z, v):
        return matrix_apply(self.matrix(z), z, v)

    def sharp(self, z, c):
        return matrix_sharp(self.matrix(z), z, c)

    def complaint(self, z):
        cure = "A metric must not be negative in any direction."
        return describe(self.matrix(z), f"The matrix of {type(self).__name__}", cure, z)


class AbstractFactorMetric(AbstractMetric):
    """A metric given by a factor S of M = S Sᵀ."""

    @abc.abstractmethod
    def factor(self, z: Outputs) -> Float[Array, "k q"]:
        """S(z) on the ravelled outputs.

        **Arguments:**

        - `z`: the outputs of one sample.
        """

    def root(self, z):
        return factor_root(self.factor(z), z)

    def apply(self, z, v):
        like = structure(z)
        factor = self.factor(z)
        return like.unravel(factor @ (factor.T @ like.ravel(v)))

    def sharp(self, z, c):
        like = structure(z)
        inverse = jnp.linalg.pinv(finite_or_nan(self.factor(z)))
        return like.unravel(inverse.T @ (inverse @ like.ravel(c)))
