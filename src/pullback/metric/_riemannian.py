r"""Any metric given as a matrix-valued function of the outputs, \(M(z)\) on the ravelled outputs of
one sample.

**Assumes** \(M(z)\) symmetric (asymmetry up to \(\sqrt{\mathrm{eps}}\) relative is rounding, and is
symmetrised) and positive semi-definite. Otherwise the root is NaN, and the error says which of the
two assumptions fails. There is no divergence: a metric alone does not determine one.
"""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.functions import canonical
from .._base.tree import structure
from .._base.types import Outputs
from ._dense import AbstractMatrixMetric
from ._indefinite import describe


class Riemannian(AbstractMatrixMetric):
    """The metric with the given matrix at each point.

    **Arguments:**

    - `matrix_fn`: from the outputs of one sample, with k floating entries in all, to a symmetric
        positive semi-definite (k, k) array on these entries, ravelled leaf by leaf.
    """

    matrix_fn: Callable[[Outputs], Float[Array, "k k"]] = eqx.field(converter=canonical)
    nonsingular: ClassVar[bool] = False

    def __check_init__(self):
        example = "Riemannian(lambda z: jnp.diag(1 + z**2))"
        checks.function("Riemannian", "matrix_fn", self.matrix_fn, example)

    def matrix(self, z):
        matrix = self._given(z)
        asymmetry, size = _asymmetry(matrix)
        return jnp.where(
            asymmetry <= jnp.sqrt(jnp.finfo(matrix.dtype).eps) * size,
            (matrix + matrix.T) / 2,
            jnp.nan,
        )

    def _given(self, z):
        """The matrix as the user's function returns it."""
        like = structure(z)
        matrix = jnp.asarray(self.matrix_fn(z))
        if matrix.shape != (like.size, like.size) or not jnp.issubdtype(matrix.dtype, jnp.floating):
            raise ValueError(
                f"Riemannian(matrix_fn=...) must return a real array of shape ({like.size}, "
                f"{like.size}) for outputs with {like.size} floating entries, got {matrix.dtype} "
                f"of shape {matrix.shape}."
            )
        return matrix.astype(like.dtype)

    def complaint(self, z):
        matrix = self._given(z)
        asymmetry, size = _asymmetry(matrix)
        if np.all(np.isfinite(matrix)) and asymmetry > np.sqrt(jnp.finfo(matrix.dtype).eps) * size:
            return (
                f"Riemannian(matrix_fn=...) is not symmetric at these outputs: "
                f"max |M - Mᵀ| = {float(asymmetry):.6g} where max |M| = {float(size):.6g}."
            )
        return describe(
            matrix,
            "The matrix of Riemannian(matrix_fn=...)",
            "A metric must not be negative in any direction.",
            z,
        )


def _asymmetry(matrix: Array) -> tuple[Array, Array]:
    """max |M - Mᵀ| and max |M|."""
    return jnp.max(jnp.abs(matrix - matrix.T), initial=0.0), jnp.max(jnp.abs(matrix), initial=0.0)
