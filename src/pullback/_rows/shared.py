r"""Rows whose samples are spread over devices: \(A = [A_1; A_2; \dots]\), one share on each.

\[ A\eta = (A_k\eta)_k, \qquad A^\top y = \sum_k A_k^\top y_k, \qquad G = \sum_k A_k^\top A_k . \]

Every device has the parameters, and every flat vector, on parameters and on rows, in full: m
numbers are few beside the rows themselves, and what solvers and certificates do with such a vector
(norms, maxima, ranks, tests) is then the same on all devices without a word about it. A product
with \(A\) is made where the samples are and ends in a copy of m numbers to all; one with
\(A^\top\) ends in one sum of P numbers. Trees of outputs (z, c, Jδ) have the samples of this device
only.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._base.axis import Axis, gathered, own, total
from .._base.tree import Structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params, Scalar
from .._base.vector import norm, probe
from .._problem.problem import AbstractObjective
from .base import AbstractRows
from .gauge import AbstractGauge

GATHERED = 2**31
"""The largest A, in bytes, of which every device makes itself a copy where a solver needs that."""


class SharedLinearisation(eqx.Module):
    """The model on the samples of this device; what is pulled back is that of all devices."""

    here: Any
    axis: Axis = eqx.field(static=True)

    @property
    def parts(self) -> "tuple[SharedLinearisation, ...]":
        """The models of several terms."""
        return tuple(SharedLinearisation(part, self.axis) for part in self.here.parts)

    @property
    def outputs(self) -> Outputs:
        """z, of the samples of this device."""
        return self.here.outputs

    @property
    def state(self) -> Any:
        """The new state of the model."""
        return self.here.state

    @property
    def params(self) -> Structure:
        """How the parameters lie in a flat vector."""
        return self.here.params

    @property
    def like(self) -> Structure:
        """How the outputs of this device lie in a flat vector."""
        return self.here.like

    def pushforward(self, v: Flat) -> OutputVector:
        """J v, of the samples of this device."""
        return self.here.pushforward(v)

    def push(self, tangent: PyTree) -> OutputVector:
        """J v of a tree v, of the samples of this device."""
        return self.here.push(tangent)

    def own(self, outputs: Outputs) -> Outputs:
        """Outputs, or a vector there, as the model returns them: complex where it does."""
        return self.here.own(outputs)

    def real(self, vector: OutputVector) -> OutputVector:
        """The inverse of `own`."""
        return self.here.real(vector)

    def pull(self, c: OutputCovector) -> Flat:
        """Jᵀ c, summed over devices."""
        return total(self.here.pull(c), self.axis)


class SharedRows(AbstractRows):
    """Ã of samples that are spread over devices."""

    here: AbstractRows
    """The rows of this device."""
    log_scale: Float[Array, " m"]
    """The grading of the rows of all devices."""
    devices: Axis = eqx.field(static=True)

    @staticmethod
    def of(local: AbstractRows) -> "SharedRows":
        """Return the rows of all devices."""
        axis = local.objective.axis
        assert axis is not None
        return SharedRows(local, gathered(local.log_scale, axis), axis)

    @property
    def axis(self) -> Axis:
        return self.devices

    @property
    def local(self) -> AbstractRows:
        return self.here

    @property
    def objective(self) -> AbstractObjective:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The problem on the samples of this device."""
        return self.here.objective

    @property
    def params(self) -> Params:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.here.params

    @property
    def linear(self) -> SharedLinearisation:  # pyright: ignore[reportIncompatibleVariableOverride]
        return SharedLinearisation(self.here.linear, self.devices)

    @property
    def gauge(self) -> AbstractGauge:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.here.gauge

    @property
    def dense(self) -> Array | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ã of this device, if a solver has formed it."""
        return self.here.dense

    @property
    def order(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.here.order

    @property
    def terms(self) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The rows of each term, of the samples of this device."""
        return self.here.terms

    @property
    def count(self) -> int:
        return self.here.count * self.devices.size

    @property
    def graded(self) -> bool:
        return self.here.graded

    @property
    def centred(self) -> bool:
        return self.here.centred

    @property
    def removed(self) -> Scalar:
        return self.here.removed

    @property
    def by_sample(self) -> bool:
        return self.here.by_sample

    # ---- devices --------------------------------------------------------------------------------

    def summed(self, x: Any) -> Any:
        return total(x, self.devices)

    def gathered(self, x: Any) -> Any:
        return gathered(x, self.devices)

    def own(self, y: Any) -> Any:
        return own(y, self.devices)

    # ---- other rows of the same problem ---------------------------------------------------------

    def _of(self, local: AbstractRows) -> "SharedRows":
        return replace(self, here=local)

    def divided_by(self, log_factor: Scalar) -> "SharedRows":
        return replace(
            self, here=self.here.divided_by(log_factor), log_scale=self.log_scale - log_factor
        )

    def resolved(self) -> "SharedRows":
        if not self.centred:
            return self
        size = norm(self.rmv(probe(self.shape[0], self.dtype)))
        absent = jnp.where(size > self.noise, 0.0, jnp.inf)
        return self.divided_by(absent)

    def in_gauge(self, gauge: Any) -> "SharedRows":
        return self._of(self.here.in_gauge(gauge))

    def formed(self, dense: Array, order: np.ndarray | None = None) -> "SharedRows":
        return self._of(self.here.formed(dense, order))

    def widened(self, dtype: Any) -> "SharedRows":
        return replace(self, here=self.here.widened(dtype), log_scale=self.log_scale.astype(dtype))

    def with_terms(self, terms: tuple[Any, ...]) -> "SharedRows":
        return self._of(self.here.with_terms(terms))

    # ---- products -------------------------------------------------------------------------------

    def unit_mv(self, eta: Flat) -> Float[Array, " m"]:
        return self.gathered(self.here.unit_mv(eta))

    def unit_push(self, delta: Flat) -> Float[Array, " m"]:
        return self.gathered(self.here.unit_push(delta))

    def unit_output(self, v: OutputVector) -> Float[Array, " m"]:
        return self.gathered(self.here.unit_output(v))

    def unit_rmv(self, y: Float[Array, " m"]) -> Flat:
        return self.summed(self.here.unit_rmv(self.own(y)))

    def unit_pull(self, y: Float[Array, " m"]) -> Flat:
        return self.summed(self.here.unit_pull(self.own(y)))

    def pull_output(self, c: OutputCovector) -> Flat:
        return self.summed(self.here.pull_output(c))

    # ---- dense blocks ---------------------------------------------------------------------------

    def unit_rows(self) -> Float[Array, "m P"]:
        m, size = self.shape
        taken = m * size * jnp.dtype(self.dtype).itemsize
        if taken > GATHERED:
            raise ValueError(
                f"A is {m} x {size}, {taken / 2**30:.3g} GiB, and this solver would copy it to "
                f"each of {self.devices.size} devices, which is done up to "
                f"{GATHERED / 2**30:.3g} GiB. "
                "Use solver=pullback.solver.Primal() if the parameters are few, "
                "pullback.solver.Dual() if the rows are, or pullback.solver.Krylov()."
            )
        return self.gathered(self.here.unit_rows())

    def sum_blocks(self, function: Callable[[Float[Array, "b P"]], Array]) -> Array:
        return self.summed(self.here.sum_blocks(function))

    def sample_blocks(self, function: Callable[[Float[Array, "q P"]], Array]) -> Array:
        return self.gathered(self.here.sample_blocks(function))
