r"""The fields: \(-G^+g\) (natural), \(-g\) (Euclidean), \(-H^+g\) (Newton), with \(g = \nabla J\)
and \(H = \nabla^2 J\).

Each is asked for \(e^{a}\) times itself, \(a\) the logarithm of the rate of the clock, so that a
field far below the smallest float and a clock far beyond the largest one meet in their exponents.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.results import RESULTS, successful_if
from .._base.tree import all_finite, structure
from .._base.types import Count, Flat, Params, Scalar
from .._natural.natural_gradient import compute
from .._problem.composite import Batch, Composite
from .._rows.pullback import MEMORY
from ..inverse._base import AbstractInverse, MoorePenrose, Tikhonov
from ..solver._auto import Auto
from ..solver._base import AbstractSolver
from .log_loss import closed_form, total_log_loss


class Inspection(eqx.Module):
    """What is known of a field at a point."""

    result: RESULTS
    """Whether the field could be computed."""
    rank: Count
    """The rank the inverse sees; -1 if the field cannot change its rank."""
    condition: Scalar
    """The inverse condition of what is kept, smallest/largest singular value."""
    smallest: Scalar
    """The smallest singular value that is kept."""


class AbstractFlow(eqx.Module):
    """A field on the parameters."""

    @abc.abstractmethod
    def velocity(self, problem: Composite, params: Params, batch: Batch, log_rate: Scalar) -> Flat:
        """The velocity times e^log_rate, flat.

        **Arguments:**

        - `problem`, `params`, `batch`: the problem at a point.
        - `log_rate`: the logarithm of the rate of the clock.
        """

    @abc.abstractmethod
    def inspect(
        self, problem: Composite, params: Params, batch: Batch, check: bool = False
    ) -> Inspection:
        """Whether the field can be computed, and how close it is to a change of rank.

        **Arguments:**

        - `problem`, `params`, `batch`: the problem at a point.
        - `check`: whether to compare the batched outputs with those of single samples.
        """


class NaturalFlow(AbstractFlow):
    """The natural gradient flow, in any inverse; saturated models are ordinary input if the loss is
    the metric's own.
    """

    inverse: AbstractInverse
    solver: AbstractSolver

    def __init__(
        self, inverse: AbstractInverse | None = None, solver: AbstractSolver | None = None
    ):
        """Choose the natural flow.

        **Arguments:**

        - `inverse`: which generalised inverse; `MoorePenrose()` if left out.
        - `solver`: how it is computed; `solver.Auto()` if left out.
        """
        self.inverse = MoorePenrose() if inverse is None else inverse
        self.solver = Auto() if solver is None else solver
        self.solver.check(self.inverse)

    def velocity(self, problem, params, batch, log_rate):
        ng = compute(problem, params, batch, None, self.inverse, self.solver, MEMORY, False)
        return -jnp.exp(log_rate) * structure(params).ravel(ng.vector)

    def inspect(self, problem, params, batch, check=False):
        ng = compute(problem, params, batch, None, self.inverse, self.solver, MEMORY, check)
        stats = ng.stats
        rank = jnp.asarray(-1, jnp.int32) if isinstance(self.inverse, Tikhonov) else stats.rank
        condition = stats.smallest / jnp.where(stats.largest > 0, stats.largest, 1.0)
        return Inspection(ng.result, rank, condition, stats.smallest)


class EuclideanFlow(AbstractFlow):
    """The gradient flow; what it follows depends on the parametrisation.

    For separable problems the loss tends to zero: give its logarithm, and nothing underflows.
    """

    log_loss: Callable | None

    def __init__(self, log_loss: Callable | None = None):
        """Choose the Euclidean flow.

        **Arguments:**

        - `log_loss`: `log_loss(outputs, targets)`, the logarithms of the losses of the samples. If
            left out, a closed form where the loss is the metric's own (`Bernoulli`, `Categorical`),
            else the loss itself is differentiated.
        """
        if log_loss is not None and not callable(log_loss):
            raise ValueError(
                f"log_loss must be callable, log_loss(outputs, targets), got {type(log_loss).__name__}."
            )
        self.log_loss = log_loss

    def velocity(self, problem, params, batch, log_rate):
        like, static = structure(params), eqx.filter(params, eqx.is_inexact_array, inverse=True)
        one = closed_form(problem) if self.log_loss is None else None
        per_sample = self.log_loss if one is None else jax.vmap(one)

        def log_value(flat):
            outputs = problem.outputs(eqx.combine(like.unravel(flat), static), batch.inputs)
            return total_log_loss(problem, per_sample, outputs, batch)  # pyright: ignore[reportArgumentType]

        def value(flat):
            return problem.value(
                problem.outputs(eqx.combine(like.unravel(flat), static), batch.inputs), batch
            )

        if per_sample is None:
            return -jnp.exp(log_rate) * jax.grad(value)(like.ravel(params))
        level, slope = jax.value_and_grad(log_value)(like.ravel(params))
        return -jnp.exp(log_rate + level) * slope

    def inspect(self, problem, params, batch, check=False):
        velocity = self.velocity(problem, params, batch, jnp.zeros((), structure(params).dtype))
        one = jnp.ones((), velocity.dtype)
        return Inspection(_judge(params, batch, velocity), jnp.asarray(-1, jnp.int32), one, one)


class NewtonFlow(AbstractFlow):
    """The Newton flow: along it ∇J shrinks as e^-t, and so it tends to critical points of any kind.

    The Hessian is dense, P × P. Eigenvalues below `rtol` times the largest one are left out.
    """

    rtol: float | None

    def __init__(self, rtol: float | None = None):
        """Choose the Newton flow.

        **Arguments:**

        - `rtol`: the cut-off of eigenvalues in absolute value, relative to the largest; P · eps if
            left out.
        """
        self.rtol = rtol

    def velocity(self, problem, params, batch, log_rate):
        slope, values, vectors, kept, _ = self._decompose(problem, params, batch)
        inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1.0), 0.0)
        return -jnp.exp(log_rate) * (vectors @ (inverse * (vectors.T @ slope)))

    def inspect(self, problem, params, batch, check=False):
        slope, values, _, kept, largest = self._decompose(problem, params, batch)
        smallest = jnp.min(jnp.where(kept, jnp.abs(values), largest))
        rank = jnp.sum(kept, dtype=jnp.int32)
        finite = jnp.where(jnp.all(jnp.isfinite(values)), slope, jnp.nan)
        return Inspection(
            _judge(params, batch, finite),
            rank,
            smallest / jnp.where(largest > 0, largest, 1.0),
            smallest,
        )

    def _decompose(self, problem: Composite, params: Params, batch: Batch) -> Any:
        like, static = structure(params), eqx.filter(params, eqx.is_inexact_array, inverse=True)

        def value(flat):
            return problem.value(
                problem.outputs(eqx.combine(like.unravel(flat), static), batch.inputs), batch
            )

        flat = like.ravel(params)
        values, vectors = jnp.linalg.eigh(jax.hessian(value)(flat))
        largest = jnp.max(jnp.abs(values))
        rtol = like.size * jnp.finfo(like.dtype).eps if self.rtol is None else self.rtol
        return jax.grad(value)(flat), values, vectors, jnp.abs(values) > rtol * largest, largest


def _judge(params: Params, batch: Batch, velocity: Flat) -> RESULTS:
    result: Any = successful_if(all_finite(velocity), RESULTS.nonfinite_field)
    result = RESULTS.where(all_finite(batch), result, RESULTS.nonfinite_batch)
    return RESULTS.where(all_finite(params), result, RESULTS.nonfinite_params)
