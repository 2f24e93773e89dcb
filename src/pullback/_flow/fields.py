r"""The fields: \(-G^+g\) (natural), \(-g\) (Euclidean), \(-H^+g\) (Newton), with \(g = \nabla J\)
and \(H = \nabla^2 J\).

Each returns \(e^{a}\) times itself, with \(a\) the logarithm of the rate of the clock. A field may
be far below the smallest float, and the rate of a clock far above the largest: their exponents are
added before anything is exponentiated.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import function, positive
from .._base.pairs import real_outputs
from .._base.results import RESULTS, successful_if
from .._base.show import settings
from .._base.tree import all_finite, as_data, split, structure
from .._base.types import Flat, Params, Scalar
from .._natural.outcome import present_finite
from .._natural.stats import Stats
from .._natural.subproblem import Subproblem, subproblem
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractObjective, AbstractProblem
from ..event import Inspection
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractSolver
from ..solver._strategy import Strategy
from .log_loss import closed_form, total_log_loss


class AbstractFlow(eqx.Module):
    """A field on the parameters. To write one, give `velocity` and `inspect`."""

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def velocity(
        self, problem: AbstractProblem, params: Params, batch: AnyBatch, log_rate: Scalar
    ) -> Flat:
        """Return the velocity times e^log_rate, as a flat vector.

        **Arguments:**

        - `problem`, `params`, `batch`: the problem at a point.
        - `log_rate`: the logarithm of the rate of the clock.
        """

    @abc.abstractmethod
    def inspect(
        self, problem: AbstractProblem, params: Params, batch: AnyBatch, check: bool = False
    ) -> Inspection:
        """Return whether the field can be computed, and how close it is to a change of rank.

        **Arguments:**

        - `problem`, `params`, `batch`: the problem at a point.
        - `check`: whether to compare the batched outputs with those of single samples.
        """

    def as_data(self) -> "AbstractFlow":
        """Return the flow with its numbers as arrays: other numbers then compile nothing."""
        return as_data(self)


class NaturalFlow(AbstractFlow):
    """The natural gradient flow, dθ/dt = -G⁺g, with any inverse.

    Saturated models are ordinary input if the loss is the metric's own.

        sol = pullback.flow(problem, params, batch, t1=1.0, kind=pullback.NaturalFlow())
    """

    strategy: Strategy

    def __init__(
        self, inverse: AbstractInverse | None = None, solver: AbstractSolver | None = None
    ):
        """Choose the natural flow.

        **Arguments:**

        - `inverse`: which generalised inverse; defaults to `MoorePenrose()`.
        - `solver`: how it is computed; defaults to `solver.Auto()`.
        """
        self.strategy = Strategy(inverse, solver)
        self.strategy.need_whole("NaturalFlow(...)")

    def __repr__(self) -> str:
        return f"NaturalFlow({self.strategy!r})"

    def velocity(self, problem, params, batch, log_rate):
        sub = subproblem(problem, params, batch, self.strategy)
        return jnp.exp(log_rate) * sub.direction().astype(log_rate.dtype)

    def inspect(self, problem, params, batch, check=False):
        sub = subproblem(problem, params, batch, self.strategy)
        stats, result = sub.judge(check)
        # A damped inverse is continuous where the rank of A changes, and bounds what it amplifies.
        damped = self.strategy.inverse.damping is not None
        rank = jnp.asarray(-1, jnp.int32) if damped else stats.rank
        condition = stats.smallest / jnp.where(stats.largest > 0, stats.largest, 1.0)
        spread = jnp.zeros_like(condition) if damped else _log_spread(sub, stats)
        return Inspection(result, rank, condition, stats.smallest, spread)

    def as_data(self):
        return eqx.tree_at(lambda flow: flow.strategy, self, self.strategy.as_data())


class EuclideanFlow(AbstractFlow):
    """The gradient flow, dθ/dt = -g; the curve depends on the parametrisation.

    For separable problems the loss tends to zero. With its logarithm nothing underflows.

        sol = pullback.flow(
            problem, params, batch, t1=1e6, kind=pullback.EuclideanFlow(), clock=pullback.LogTime()
        )
    """

    log_loss: Callable | None

    def __init__(self, log_loss: Callable | None = None):
        """Choose the Euclidean flow.

        **Arguments:**

        - `log_loss`: `log_loss(outputs, targets)`, the logarithms of the losses of the samples.
            Defaults to a closed form where the loss is the metric's own (`Bernoulli`,
            `Categorical`); otherwise the loss itself is differentiated.
        """
        if log_loss is not None:
            example = "EuclideanFlow(lambda outputs, targets: ...)"
            function("EuclideanFlow", "log_loss", log_loss, example)
        self.log_loss = log_loss

    def velocity(self, problem, params, batch, log_rate):
        objective = problem.at(batch)
        like = structure(params)
        per_sample = self._log_loss(problem)
        if per_sample is None:
            _, slope = objective.differential(params)
            return -jnp.exp(log_rate) * like.ravel_covector(slope)
        moving, carried = split(params)

        def log_value(moving):
            outputs = objective.outputs(eqx.combine(moving, carried))
            return total_log_loss(objective, per_sample, outputs)

        level, slope = jax.value_and_grad(log_value)(moving)
        return -jnp.exp(log_rate + level) * like.ravel_covector(slope)

    def inspect(self, problem, params, batch, check=False):
        velocity = self.velocity(problem, params, batch, jnp.zeros((), structure(params).dtype))
        one = jnp.ones((), velocity.dtype)
        result = _judge(problem.at(batch), params, velocity)
        return Inspection(result, jnp.asarray(-1, jnp.int32), one, one)

    def _log_loss(self, problem: AbstractProblem) -> Callable[..., Array] | None:
        """Return the logarithms of the losses as a function of outputs and targets, if known."""
        if self.log_loss is not None:
            return self.log_loss
        one = closed_form(problem)
        return None if one is None else lambda z, y: jax.vmap(one)(*real_outputs(z, y))


class NewtonFlow(AbstractFlow):
    """The Newton flow, dθ/dt = -H⁺g; the Hessian is dense, P × P.

    Along it the gradient shrinks as e^-t, so it tends to critical points of any kind.
    """

    rtol: float | Scalar | None

    def __init__(self, rtol: float | Scalar | None = None):
        """Choose the Newton flow.

        **Arguments:**

        - `rtol`: eigenvalues at or below `rtol` times the largest, in absolute value, count as
            zero; defaults to P · eps.
        """
        if rtol is not None:
            positive("NewtonFlow", "rtol", rtol, zero=True, example="NewtonFlow(rtol=1e-10)")
        self.rtol = rtol

    def velocity(self, problem, params, batch, log_rate):
        found = self._decompose(problem.at(batch), params)
        inverse = jnp.where(found.kept, 1 / jnp.where(found.kept, found.values, 1.0), 0.0)
        solution = found.vectors @ (inverse * (found.vectors.T @ found.gradient))
        return -jnp.exp(log_rate) * solution

    def inspect(self, problem, params, batch, check=False):
        objective = problem.at(batch)
        found = self._decompose(objective, params)
        size = jnp.abs(found.values)
        largest = jnp.max(size)
        smallest = jnp.min(jnp.where(found.kept, size, largest))
        rank = jnp.sum(found.kept, dtype=jnp.int32)
        condition = smallest / jnp.where(largest > 0, largest, 1.0)
        result = _judge(objective, params, (found.gradient, found.values))
        return Inspection(result, rank, condition, smallest)

    def _decompose(self, objective: AbstractObjective, params: Params) -> "_Decomposition":
        """Return the gradient, and the Hessian by its eigenvalues and eigenvectors."""
        like = structure(params)
        carried = split(params)[1]
        value = lambda flat: objective.value(eqx.combine(like.unravel(flat), carried))
        flat = like.ravel(params)
        values, vectors = jnp.linalg.eigh(jax.hessian(value)(flat))
        rtol = like.size * jnp.finfo(like.dtype).eps if self.rtol is None else self.rtol
        cutoff = jnp.asarray(rtol, like.dtype) * jnp.max(jnp.abs(values))
        return _Decomposition(jax.grad(value)(flat), values, vectors, jnp.abs(values) > cutoff)


def _log_spread(sub: Subproblem, stats: Stats) -> Scalar:
    """Return the logarithm of the heaviest over the lightest weight of the rows that decide.

    Where the factors do not have it: that of the condition number of G, but no more than that of
    the weights of all rows.
    """
    rows, found = sub.factorised.rows, sub.factorised.factors.log_spread
    if found is not None:
        return found
    largest = jnp.max(jnp.where(rows.active, rows.log_scale, -jnp.inf))
    weights = largest - jnp.min(jnp.where(rows.active, rows.log_scale, jnp.inf))
    condition = jnp.where(stats.graded | ~(stats.smallest > 0), 1.0, stats.condition)
    return 2 * jnp.minimum(jnp.log(condition), jnp.where(jnp.isfinite(weights), weights, 0.0))


class _Decomposition(NamedTuple):
    """The gradient and the eigendecomposition of the Hessian at a point."""

    gradient: Flat
    values: Float[Array, " P"]
    vectors: Float[Array, "P P"]
    kept: Array


def _judge(objective: AbstractObjective, params: Params, field: Any) -> RESULTS:
    """Return the code of a field without factors: the first of its inputs that is not finite."""
    result: Any = successful_if(all_finite(field), RESULTS.nonfinite_field)
    result = RESULTS.where(
        present_finite(objective, objective.batch.parts), result, RESULTS.nonfinite_batch
    )
    return RESULTS.where(all_finite(params), result, RESULTS.nonfinite_params)
