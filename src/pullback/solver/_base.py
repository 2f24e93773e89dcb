r"""How an inverse is computed: factorise \(\tilde A = A R^{-1}\) once, solve for many right-hand
sides.

Two right-hand sides. A *lifted* output covector, \(\delta = A^+ r\), does not square the condition
number; it is given graded, \(\hat r = e^{-\ell} r\). A parameter *covector*, \(\delta = G^+ g\), is
for gradients that arrive without the outputs.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._base.types import Count, Flat, Scalar
from .._rows.gauge import AbstractGauge, as_gauge
from .._rows.pullback import PullbackMetric
from ..inverse._base import AbstractInverse
from ._cost import Cost, Setting


class Whitened(eqx.Module):
    """Ã = A R⁻¹: the whitened Jacobian in orthonormal coordinates of the gauge."""

    metric: PullbackMetric
    gauge: AbstractGauge
    dense: Float[Array, "m P"] | None = None
    """The rows without their grading, if a solver has formed them: products with them do not pass
    through the model.
    """
    order: Int[np.ndarray, " P"] | None = None
    """The parameters in the order of the columns of `dense`, if that is not their own: vectors are
    put in order, not the columns.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(m, P)."""
        return self.metric.rows, self.metric.size

    @property
    def scale(self) -> Float[Array, " m"]:
        """The grading e^ℓ of the rows."""
        return jnp.exp(self.metric.log_scale)

    def mv(self, eta: Flat) -> Float[Array, " m"]:
        """Ã η."""
        return self.scale * self.unit_mv(eta)

    def rmv(self, y: Float[Array, " m"]) -> Flat:
        """Ãᵀ y."""
        return self.unit_rmv(self.scale * y)

    def unit_mv(self, eta: Flat) -> Float[Array, " m"]:
        """Ã η without the grading of the rows."""
        if self.dense is None:
            return self.metric.unit_mv(self.gauge.lower(eta))
        return self.dense @ (eta if self.order is None else eta[self.order])

    def unit_rmv(self, y: Float[Array, " m"]) -> Flat:
        """The transpose of `unit_mv`."""
        if self.dense is None:
            return self.gauge.pull(self.metric.unit_rmv(y))
        pulled = self.dense.T @ y
        return (
            pulled
            if self.order is None
            else jnp.zeros_like(pulled).at[self.order].set(pulled, unique_indices=True)
        )

    def unit_rows(self) -> Float[Array, "m P"]:
        """The rows without their grading, dense."""
        if self.dense is None:
            return self.gauge.rows(self.metric.unit_rows())
        return (
            self.dense
            if self.order is None
            else jnp.zeros_like(self.dense).at[:, self.order].set(self.dense, unique_indices=True)
        )

    def gram(self) -> Float[Array, "P P"]:
        """ÃᵀÃ, summed over blocks of samples."""

        def block(rows):
            rows = self.gauge.rows(rows)
            return rows.T @ rows

        return self.metric.sum_blocks(block)


def whiten(metric: PullbackMetric, inverse: AbstractInverse) -> Whitened:
    """The operator that a solver factorises."""
    return Whitened(metric, as_gauge(inverse.gauge, metric.structure, metric.dtype))


class Spectrum(eqx.Module):
    """What a factorisation knows of the singular values of A; NaN and -1 where the solver does not
    compute them.
    """

    rank: Count
    largest: Scalar
    smallest: Scalar
    cutoff: Scalar
    fallback: Array
    """Whether a Cholesky factorisation failed its test and an eigendecomposition took its place."""
    graded: Array
    """Whether these are the singular values of the rows without their grading."""

    @staticmethod
    def of(s: Float[Array, " k"], kept: Array, cutoff: Scalar, graded: bool = False) -> "Spectrum":
        """From singular values, largest first.

        **Arguments:**

        - `s`: the singular values.
        - `kept`: which of them count.
        - `cutoff`: the cut-off used.
        - `graded`: whether they are those of the rows without their grading.
        """
        largest = jnp.max(s, initial=0.0)
        smallest = jnp.min(jnp.where(kept, s, largest), initial=jnp.inf)
        rank = jnp.sum(kept, dtype=jnp.int32)
        smallest = jnp.where(rank > 0, smallest, 0.0)
        return Spectrum(
            rank,
            largest,
            smallest,
            jnp.asarray(cutoff, s.dtype),
            jnp.asarray(False),
            jnp.asarray(graded),
        )

    @staticmethod
    def unknown(dtype: Any, fallback: Array | bool = False) -> "Spectrum":
        """Where nothing is known.

        **Arguments:**

        - `dtype`: the dtype of the linear algebra.
        - `fallback`: whether the factorisation had to fall back.
        """
        nan = jnp.asarray(jnp.nan, dtype)
        return Spectrum(
            jnp.asarray(-1, jnp.int32),
            nan,
            nan,
            jnp.zeros((), dtype),
            jnp.asarray(fallback),
            jnp.asarray(False),
        )


class AbstractFactors(eqx.Module):
    """A decomposition of Ã, in orthonormal coordinates of the gauge."""

    spectrum: eqx.AbstractVar[Spectrum]

    @property
    @abc.abstractmethod
    def resolved(self) -> bool:
        """Whether the row space is known, so that `project` costs two products; otherwise it costs
        a solve, or is NaN if damped.
        """

    @abc.abstractmethod
    def lifted(self, r: Float[Array, " m"]) -> Flat:
        """Ã⁺ (e^ℓ r): the solution for a lifted covector given without its grading.

        **Arguments:**

        - `r`: the lifted covector, its grading divided out.
        """

    @abc.abstractmethod
    def covector(self, g: Flat) -> Flat:
        """(ÃᵀÃ)⁺ g.

        **Arguments:**

        - `g`: a flat covector.
        """

    @abc.abstractmethod
    def project(self, eta: Flat) -> Flat:
        """The orthogonal projection on the row space that is kept.

        **Arguments:**

        - `eta`: a flat vector.
        """


class Factorised(eqx.Module):
    """A factorised pullback metric: solves in the coordinates of the parameters."""

    operator: Whitened
    inverse: AbstractInverse
    factors: AbstractFactors
    solver: str = eqx.field(static=True)

    @property
    def spectrum(self) -> Spectrum:
        """What is known of the singular values."""
        return self.factors.spectrum

    @property
    def rank(self) -> Count:
        """The rank of A as the inverse sees it, -1 if the solver does not compute it."""
        return self.factors.spectrum.rank

    def lifted(self, r: Float[Array, " m"]) -> Flat:
        """A⁺ (e^ℓ r): the solution for a lifted covector given without its grading.

        **Arguments:**

        - `r`: the lifted covector, its grading divided out.
        """
        return self.operator.gauge.lower(self.factors.lifted(r))

    def covector(self, g: Flat) -> Flat:
        """G⁺ g.

        **Arguments:**

        - `g`: a flat covector.
        """
        return self.operator.gauge.lower(self.factors.covector(self.operator.gauge.pull(g)))


class AbstractSolver(eqx.Module):
    """A way to compute. To add one: a file here, a line in the test registry (see CONTRIBUTING)."""

    @abc.abstractmethod
    def check(self, inverse: AbstractInverse) -> None:
        """Refuse, when things are built, an inverse that this solver cannot compute.

        **Arguments:**

        - `inverse`: the inverse asked for.
        """

    @abc.abstractmethod
    def factorise(self, metric: PullbackMetric, inverse: AbstractInverse) -> Factorised:
        """Factorise.

        **Arguments:**

        - `metric`: the pullback metric at a point.
        - `inverse`: which inverse.
        """

    def resolve(self, operator: Whitened, inverse: AbstractInverse) -> "AbstractSolver":
        """The concrete solver that will run.

        **Arguments:**

        - `operator`: what is to be factorised.
        - `inverse`: which inverse.
        """
        return self

    def cost(self, setting: Setting, inverse: AbstractInverse) -> Cost | None:
        """What it would cost; `None` if that is not known.

        **Arguments:**

        - `setting`: the shapes.
        - `inverse`: which inverse.
        """
        return None

    @property
    def name(self) -> str:
        """What to call it in reports."""
        return type(self).__name__
