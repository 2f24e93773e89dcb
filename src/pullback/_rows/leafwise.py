r"""Products with \(A\) on parameters that stay sharded: vectors leaf by leaf (`_base/leaves.py`).

\[ A v = (A_k\,\mathrm{whole}(v))_k, \qquad A^\top y = \mathrm{blocks}\Bigl(\sum_k A_k^\top
y_k\Bigr), \]

k over the devices that share the samples. The model is linearised at whole leaves, so that a
product with \(A\) gathers each leaf of \(v\) that is cut once, and one with \(A^\top\) sums each
leaf once, into the blocks that devices have: what FSDP does in a gradient. Vectors on the rows have
the rows of this device.
"""

from functools import reduce

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.leaves import Leaves, Vector
from .._base.types import OutputCovector, OutputVector, Scalar
from .._base.vector import norm, probe
from .rows import AbstractRows


class LeafwiseRows(eqx.Module):
    """A, with vectors on the parameters leaf by leaf; Euclidean gauge."""

    rows: AbstractRows
    """The rows of all devices, at whole parameters."""
    leaves: Leaves
    here: Vector
    """The parameters, of which this device has its blocks."""

    @property
    def shape(self) -> tuple[int, int]:
        """(m, P), of all devices."""
        return self.rows.shape

    @property
    def dtype(self):
        """The dtype of the linear algebra."""
        return self.rows.dtype

    @property
    def active(self) -> Array:
        """Which rows of this device are present."""
        return self.rows.local.active

    @property
    def scale(self) -> Float[Array, " m"]:
        """The grading of the rows of this device."""
        return self.rows.local.scale

    def divided_by(self, log_factor: Scalar) -> "LeafwiseRows":
        """Return e^-log_factor A."""
        return LeafwiseRows(self.rows.divided_by(log_factor), self.leaves, self.here)

    def pushforward(self, v: Vector) -> OutputVector:
        """Return J v, of the samples of this device."""
        return self.rows.local.linear.push(self.leaves.tree(self.leaves.whole(v)))

    def mv(self, v: Vector) -> Float[Array, " m"]:
        """Return A v, the rows of this device."""
        return self.scale * self.rows.local.unit_output(self.pushforward(v))

    def rmv(self, y: Float[Array, " m"]) -> Vector:
        """Return Aᵀ y."""
        here = self.rows.local
        parts = zip(here.terms, here.split(self.scale * y), strict=True)
        return self._sum([self._term(term, term.unit_covector(own)) for term, own in parts])

    def pull_output(self, c: OutputCovector) -> Vector:
        """Return Jᵀ c."""
        here = self.rows.local
        parts = zip(here.terms, here.objective.parts(c), strict=True)
        return self._sum([self._term(term, own) for term, own in parts])

    def _term(self, term, c: OutputCovector) -> Vector:
        """Return Jᵀ c of one term, of the samples of this device."""
        return term.masked(self.leaves.covector(term.linear.transposed(c), self.dtype))

    def _sum(self, found: list[Vector]) -> Vector:
        add = lambda a, b: jax.tree.map(jnp.add, a, b)
        return self.leaves.summed(reduce(add, found), self.rows.axis)

    def norm(self, y: Float[Array, " m"]) -> Scalar:
        """Return the norm of a vector on the rows."""
        return norm(y, self.rows.axis)

    def probe(self) -> Float[Array, " m"]:
        """Return pseudo-random numbers on the rows (`_base/vector.py`)."""
        return self.rows.own(probe(self.shape[0], self.dtype))
