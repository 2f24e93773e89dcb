r"""G on every device, and its Cholesky factorisation shared by the devices (`_panels.py`).

After one sum every device has all of G: its memory is not shared, but its \(P^3/3\) operations are.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.axis import Axis
from .._gram.centred import Gram
from ._panels import DealtFactor, Panels, is_shared
from ._symmetric import AbstractMatrix, Factored, Matrix


class SpreadMetric(AbstractMatrix):
    """G, of which every device factorises its rows."""

    gram: Gram
    axis: Axis = eqx.field(static=True)

    def __call__(self):
        return self.gram

    def kept(self):
        return self

    def factorised(self, damping):
        matrix, lost = jax.lax.stop_gradient(self.gram)
        factor, positive = Panels.dealt(matrix, self.axis).cholesky(damping)
        diagonal = jnp.diagonal(matrix)
        size = jnp.sqrt(jnp.sum(diagonal))
        whole = DealtFactor(factor, matrix.shape[0])
        return Factored(whole, positive, size, diagonal + damping, lost)


def as_matrix(gram: Gram, rows: Any) -> AbstractMatrix:
    """Return G to be damped, factorised by all devices together where it is large."""
    matrix, axis = gram.matrix, rows.axis
    if axis is not None and is_shared(matrix.shape[0], matrix.dtype.itemsize, axis.size):
        return SpreadMetric(gram, axis)
    return Matrix(gram)
