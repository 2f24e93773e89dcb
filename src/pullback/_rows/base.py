r"""The whitened Jacobian \(A = S^\top J\) at a point, as an operator: what solvers use of it.

The rows are kept in graded form, \(A = \mathrm{diag}(e^{\ell})\,\hat A\) with \(\hat A = \hat
S^\top J\) of order one. Vectors on the parameters are flat, in the orthonormal coordinates \(\eta =
R\delta\) of the gauge (`gauge.py`). The rows of one term are in `rows.py`, those of several, which
stack, in `stacked.py`, and those that are spread over devices in `shared.py`.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.axis import Axis
from .._base.tree import Structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params, Scalar
from .._problem.problem import AbstractObjective
from .gauge import AbstractGauge, EuclideanGauge


class AbstractRows(eqx.Module):
    """Ã = A R⁻¹, the whitened Jacobian in orthonormal coordinates of the gauge."""

    objective: eqx.AbstractVar[AbstractObjective]
    params: eqx.AbstractVar[Params]
    linear: eqx.AbstractVar[Any]
    """The model, linearised: `outputs`, `state`, `pushforward`, `pull`, and `like`, its outputs."""
    log_scale: eqx.AbstractVar[Float[Array, " m"]]
    gauge: eqx.AbstractVar[AbstractGauge]
    dense: eqx.AbstractVar[Float[Array, "m P"] | None]
    """Ã without its grading, if a solver has formed it: products then skip the model."""
    order: eqx.AbstractVar[Int[np.ndarray, " P"] | None]
    """The parameters in the order of the columns of `dense`, if that is not their own."""
    terms: eqx.AbstractVar[tuple[Any, ...]]
    """The rows of each term, a `Rows`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text()})"

    def _text(self) -> str:
        """Return the shape and the dtype of A, of one of them if there are several."""
        *batch, m = self.log_scale.shape
        several = f"{' x '.join(map(str, batch))} results: " if batch else ""
        return f"{several}A is {m} x {self.linear.params.size}, {self.dtype}"

    # ---- sizes ----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """(m, P)."""
        return self.log_scale.shape[0], self.linear.params.size

    @property
    def dtype(self) -> Any:
        """The dtype of the linear algebra."""
        return self.log_scale.dtype

    @property
    def structure(self) -> Structure:
        """How the parameters lie in a flat vector."""
        return self.linear.params

    @property
    def count(self) -> int:
        """N, the number of samples."""
        return self.objective.count

    @property
    def outputs(self) -> Outputs:
        """z, the outputs at this point."""
        return self.linear.outputs

    @property
    def active(self) -> Array:
        """Which rows are present; those of a sample of weight zero are not."""
        return self.log_scale > -jnp.inf

    @property
    def scale(self) -> Float[Array, " m"]:
        """The grading e^ℓ of the rows."""
        return jnp.exp(self.log_scale)

    @property
    @abc.abstractmethod
    def graded(self) -> bool:
        """Whether the scales of rows may differ by more than a float resolves."""

    @property
    @abc.abstractmethod
    def centred(self) -> bool:
        """Whether a metric takes the mean of the rows off, whose rounding remains."""

    @property
    def largest_log_scale(self) -> Scalar:
        """The logarithm of the heaviest row weight; zero if every row is absent."""
        top = jnp.max(jnp.where(self.active, self.log_scale, -jnp.inf), initial=-jnp.inf)
        return jnp.where(jnp.isfinite(top), top, 0.0)

    @property
    @abc.abstractmethod
    def noise(self) -> Scalar:
        """The singular value at or below which Ã is rounding of the mean that was taken off."""

    @property
    @abc.abstractmethod
    def by_sample(self) -> bool:
        """Whether the rows of J are formed sample by sample."""

    # ---- devices --------------------------------------------------------------------------------

    @property
    def axis(self) -> Axis | None:
        """The devices over which the rows are spread; `None` if all are here (`shared.py`)."""
        return None

    @property
    def shares(self) -> int:
        """On how many devices there are rows."""
        return 1 if self.axis is None else self.axis.size

    @property
    def local(self) -> Any:
        """The rows of this device; these, if they are not spread over several."""
        return self

    def summed(self, x: Any) -> Any:
        """Return what the rows of this device contribute to a sum, summed over all."""
        return x

    def gathered(self, x: Any) -> Any:
        """Return what belongs to the rows, or samples, of this device, of all of them."""
        return x

    def own(self, y: Any) -> Any:
        """Return the part that belongs to this device of what `gathered` returns."""
        return y

    # ---- other rows of the same problem ---------------------------------------------------------

    @abc.abstractmethod
    def divided_by(self, log_factor: Scalar) -> Any:
        """Return e^-log_factor A."""

    @abc.abstractmethod
    def resolved(self) -> Any:
        """Return the rows, all of them absent if they are rounding (samples that are all alike)."""

    @abc.abstractmethod
    def in_gauge(self, gauge: Any) -> Any:
        """Return the rows in the coordinates of what the user gives as a gauge."""

    @abc.abstractmethod
    def formed(self, dense: Array, order: np.ndarray | None = None) -> Any:
        """Return the rows with Ã, its grading left out, at hand."""

    @abc.abstractmethod
    def widened(self, dtype: Any) -> Any:
        """Return the rows with linear algebra in another dtype, and without structure."""

    @abc.abstractmethod
    def with_terms(self, terms: tuple[Any, ...]) -> Any:
        """Return rows made of other rows of the same terms."""

    def split(self, y: Float[Array, " m"]) -> Sequence[Array]:
        """Return the entries of each term of a vector on the rows."""
        ends = np.cumsum([term.shape[0] for term in self.terms])
        return [y] if ends.size == 1 else jnp.split(y, ends[:-1])

    # ---- coordinates ----------------------------------------------------------------------------

    def to_params(self, eta: Flat) -> Flat:
        """Return δ = R⁻¹ η."""
        return self.gauge.lower(eta)

    def from_params(self, delta: Flat) -> Flat:
        """Return η = R δ."""
        return self.gauge.lift(delta)

    def pull(self, g: Flat) -> Flat:
        """Return R⁻ᵀ g, a parameter covector in orthonormal coordinates."""
        return self.gauge.pull(g)

    # ---- products -------------------------------------------------------------------------------

    def mv(self, eta: Flat) -> Float[Array, " m"]:
        """Return Ã η."""
        return self.scale * self.unit_mv(eta)

    def rmv(self, y: Float[Array, " m"]) -> Flat:
        """Return Ãᵀ y."""
        return self.unit_rmv(self.scale * y)

    def unit_mv(self, eta: Flat) -> Float[Array, " m"]:
        """Return Ã η without the grading."""
        if self.dense is not None:
            return self.dense @ (eta if self.order is None else eta[self.order])
        return self.unit_push(self.gauge.lower(eta))

    def unit_push(self, delta: Flat) -> Float[Array, " m"]:
        """Return Â δ for δ in the coordinates of the parameters."""
        if self.dense is not None and isinstance(self.gauge, EuclideanGauge):
            return self.unit_mv(delta)
        return self.unit_output(self.linear.pushforward(delta.astype(self.structure.dtype)))

    @abc.abstractmethod
    def unit_output(self, v: OutputVector) -> Float[Array, " m"]:
        """Return Ŝᵀ v, an output vector in the whitened space without the grading."""

    def unit_rmv(self, y: Float[Array, " m"]) -> Flat:
        """Return the transpose of `unit_mv` on y."""
        if self.dense is None:
            return self.gauge.pull(self.unit_pull(y))
        pulled = self.dense.T @ y
        return pulled if self.order is None else scatter(pulled, self.order)

    @abc.abstractmethod
    def unit_pull(self, y: Float[Array, " m"]) -> Flat:
        """Return Âᵀ y in the coordinates of the parameters."""

    @abc.abstractmethod
    def pull_output(self, c: OutputCovector) -> Flat:
        """Return Jᵀ c in the coordinates of the parameters."""

    # ---- dense blocks ---------------------------------------------------------------------------

    @abc.abstractmethod
    def unit_rows(self) -> Float[Array, "m P"]:
        """Return Ã, dense, without its grading."""

    @abc.abstractmethod
    def sum_blocks(self, function: Callable[[Float[Array, "b P"]], Array]) -> Array:
        """Return the sum of a function of blocks of rows of Ã, one block of samples at a time."""

    @abc.abstractmethod
    def sample_blocks(self, function: Callable[[Float[Array, "q P"]], Array]) -> Array:
        """Return a function of the rows of each sample; of each row where samples have no rows."""

    def gram(self) -> Float[Array, "P P"]:
        """Return ÃᵀÃ, summed over blocks of samples."""
        return self.sum_blocks(lambda rows: rows.T @ rows)


def scatter(x: Array, order: np.ndarray) -> Array:
    """Return the vector y with y[order] = x."""
    return jnp.zeros_like(x).at[order].set(x, unique_indices=True)
