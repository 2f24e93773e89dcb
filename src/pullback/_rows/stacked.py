r"""The rows of several terms, one below the other.

\[ A = \begin{pmatrix} \sqrt{\omega_1}\, A_1 \\ \sqrt{\omega_2}\, A_2 \\ \vdots \end{pmatrix},
   \qquad A\eta = (\sqrt{\omega_k} A_k\eta)_k, \qquad
   A^\top y = \sum_k \sqrt{\omega_k} A_k^\top y_k . \]

Each term has a linearisation, a root and a number of samples of its own; all have the parameters,
the gauge and the dtype in common.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._base.tree import Structure, split, structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params, Scalar
from .._base.vector import norm
from .._problem.problem import AbstractObjective
from .base import AbstractRows
from .gauge import AbstractGauge, as_gauge
from .linearise import Linearisation


class StackedLinearisation(eqx.Module):
    """The models of several terms, linearised."""

    objective: AbstractObjective
    parts: tuple[Linearisation, ...]

    @property
    def outputs(self) -> Outputs:
        """z, the outputs of all terms, by name or by place."""
        return self.objective.pack(tuple(part.outputs for part in self.parts))

    @property
    def state(self) -> None:
        """Terms have no state."""
        return None

    @property
    def params(self) -> Structure:
        """How the parameters lie in a flat vector."""
        return self.parts[0].params

    @property
    def like(self) -> Structure:
        """How the outputs lie in a flat vector."""
        return structure(split(self.outputs)[0])

    def pushforward(self, v: Flat) -> OutputVector:
        """J v."""
        return self.objective.pack(tuple(part.pushforward(v) for part in self.parts))

    def push(self, tangent: PyTree) -> OutputVector:
        """J v of a tree v."""
        return self.objective.pack(tuple(part.push(tangent) for part in self.parts))

    def own(self, outputs: Outputs) -> Outputs:
        """Outputs, or a vector there, as the models return them: complex where they do."""
        both = zip(self.parts, self.objective.parts(outputs), strict=True)
        return self.objective.pack(tuple(part.own(own) for part, own in both))

    def real(self, vector: OutputVector) -> OutputVector:
        """The inverse of `own`."""
        both = zip(self.parts, self.objective.parts(vector), strict=True)
        return self.objective.pack(tuple(part.real(own) for part, own in both))

    def pull(self, c: OutputCovector) -> Flat:
        """Jᵀ c, of the terms that are present."""
        pulled = []
        for part, weight, own in zip(
            self.parts, self.objective.weights, self.objective.parts(c), strict=True
        ):
            g = part.pull(own)
            pulled.append(g if weight is None else jnp.where(weight == 0, 0.0, g))
        return reduce(jnp.add, pulled)


class StackedRows(AbstractRows):
    """Ã of several terms."""

    objective: AbstractObjective
    terms: tuple[Any, ...]
    dense: Float[Array, "m P"] | None = None
    order: Int[np.ndarray, " P"] | None = None

    @property
    def params(self) -> Params:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.terms[0].params

    @property
    def linear(self) -> StackedLinearisation:  # pyright: ignore[reportIncompatibleVariableOverride]
        return StackedLinearisation(self.objective, tuple(term.linear for term in self.terms))

    @property
    def log_scale(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return jnp.concatenate([term.log_scale for term in self.terms], axis=-1)

    @property
    def gauge(self) -> AbstractGauge:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.terms[0].gauge

    @property
    def graded(self) -> bool:
        return any(term.graded for term in self.terms)

    @property
    def centred(self) -> bool:
        return any(term.centred for term in self.terms)

    @property
    def removed(self) -> Scalar:
        found = [term.removed for term in self.terms if term.centred]
        return norm(jnp.stack(found)) if found else jnp.zeros((), self.dtype)

    @property
    def by_sample(self) -> bool:
        return all(term.by_sample for term in self.terms)

    # ---- other rows of the same problem ---------------------------------------------------------

    def divided_by(self, log_factor: Scalar) -> "StackedRows":
        return self._each(lambda term: term.divided_by(log_factor))

    def resolved(self) -> "StackedRows":
        return self._each(lambda term: term.resolved()) if self.centred else self

    def in_gauge(self, gauge: Any) -> "StackedRows":
        gauge = as_gauge(gauge, self.structure, self.dtype)
        return self._each(lambda term: term.in_gauge(gauge))

    def formed(self, dense: Array, order: np.ndarray | None = None) -> "StackedRows":
        return replace(self, dense=dense, order=order)

    def widened(self, dtype: Any) -> "StackedRows":
        return self._each(lambda term: term.widened(dtype))

    def with_terms(self, terms: tuple[Any, ...]) -> "StackedRows":
        return StackedRows(self.objective, terms)

    def _each(self, function: Callable[[Any], Any]) -> "StackedRows":
        return self.with_terms(tuple(function(term) for term in self.terms))

    # ---- products -------------------------------------------------------------------------------

    def unit_output(self, v: OutputVector) -> Float[Array, " m"]:
        parts = zip(self.terms, self.objective.parts(v), strict=True)
        return jnp.concatenate([term.unit_output(own) for term, own in parts])

    def unit_pull(self, y: Float[Array, " m"]) -> Flat:
        parts = zip(self.terms, self.split(y), strict=True)
        return reduce(jnp.add, [term.unit_pull(own) for term, own in parts])

    def pull_output(self, c: OutputCovector) -> Flat:
        parts = zip(self.terms, self.objective.parts(c), strict=True)
        return reduce(jnp.add, [term.pull_output(own) for term, own in parts])

    # ---- dense blocks ---------------------------------------------------------------------------

    def unit_rows(self) -> Float[Array, "m P"]:
        if self.dense is not None and self.order is None:
            return self.dense
        return jnp.concatenate([term.unit_rows() for term in self.terms])

    def sum_blocks(self, function: Callable[[Float[Array, "b P"]], Array]) -> Array:
        return reduce(jnp.add, [term.sum_blocks(function) for term in self.terms])

    def sample_blocks(self, function: Callable[[Float[Array, "q P"]], Array]) -> Array:
        found = [term.sample_blocks(function) for term in self.terms]
        if len({x.shape[1:] for x in found}) > 1:
            raise ValueError(
                "sample_blocks: the samples of different terms have different numbers of rows, "
                "and what is made of them has no common shape; go through rows.terms."
            )
        return jnp.concatenate(found)
