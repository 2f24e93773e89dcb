"""Any method of optimisation in one form: parameters and state in, a displacement and a new state
out.

Four kinds are recognised, by their methods and not by their origin: a generalised inverse (the
natural gradient with it), a function `direction(problem, params, batch)` (steps go against it), an
Optax transformation (`init`, `update`), and an optimiser with its problem (`ProblemOptimiser`).
"""

import abc
from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import optax
from jaxtyping import PyTree

from .._base.pairs import conjugate
from .._base.results import RESULTS
from .._base.tree import split, structure
from .._base.types import Flat, Params, Vector
from .._compat.xla import jit
from .._natural.failure import raise_failure
from .._natural.natural_gradient import compute
from .._problem.batch import AnyBatch, Batches
from .._problem.problem import AbstractProblem
from ..inverse._base import AbstractInverse
from ..solver._strategy import Strategy
from ..solver._svd import SVD


class ProblemOptimiser(Protocol):
    """An optimiser with its problem as a field, a pytree, e.g. `NaturalGradientDescent`."""

    problem: AbstractProblem

    def init(self, params: Params) -> Any:
        """Return the state before the first step."""
        ...

    def step(self, params: Params, state: Any, batch: Any) -> tuple[Params, Any, Any]:
        """Return the new parameters, the new state and a record of the step."""
        ...


class AbstractMethod(eqx.Module):
    """A method of optimisation, independent of the problem."""

    @abc.abstractmethod
    def init(self, problem: AbstractProblem, params: Params) -> Any:
        """Return the state before the first step."""

    @abc.abstractmethod
    def displacement(
        self, problem: AbstractProblem, params: Params, batch: AnyBatch, state: Any
    ) -> tuple[Flat, Any]:
        """Return the displacement of one step, flat, and the next state."""

    def in_gauge(self, gauge: Any) -> "AbstractMethod | None":
        """Return the method with another inner product on the parameters; `None` if it has none."""
        return None


class Natural(AbstractMethod):
    """The natural gradient with some inverse."""

    strategy: Strategy

    def init(self, problem, params):
        return None

    def displacement(self, problem, params, batch, state):
        vector, result = _natural(problem, params, batch, self.strategy)
        raise_failure(result, problem, params, batch)
        return -structure(params).ravel(vector), None

    def in_gauge(self, gauge):
        inverse = self.strategy.inverse
        if inverse.gauge is not None:
            return None
        inverse = eqx.tree_at(lambda i: i.gauge, inverse, gauge, is_leaf=lambda x: x is None)
        return Natural(self.strategy.with_inverse(inverse))


@jit
def _natural(
    problem: AbstractProblem, params: Params, batch: AnyBatch, strategy: Strategy
) -> tuple[Vector, RESULTS]:
    ng = compute(problem, params, batch, strategy)
    return ng.vector, ng.result


class Direction(AbstractMethod):
    """A function that returns a direction of ascent."""

    function: Callable[[AbstractProblem, Params, Any], Vector]

    def init(self, problem, params):
        return None

    def displacement(self, problem, params, batch, state):
        vector = self.function(problem, params, _as_given(batch))
        return -structure(params).ravel(vector), None


class Optax(AbstractMethod):
    """An Optax transformation, its updates as they are (the learning rate included)."""

    transformation: optax.GradientTransformation

    def init(self, problem, params):
        return optax.with_extra_args_support(self.transformation).init(split(params)[0])

    def displacement(self, problem, params, batch, state):
        return _optax_update(self.transformation, problem, params, batch, state)


@jit
def _optax_update(
    transformation: optax.GradientTransformation,
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    state: PyTree,
) -> tuple[Flat, PyTree]:
    moving, carried = split(params)
    objective = problem.at(batch)
    value, g = objective.differential(params)
    # Optax subtracts gradients from parameters: steepest ascent, not the covector of `jax.grad`.
    g = conjugate(g)
    extended = optax.with_extra_args_support(transformation)
    value_fn = lambda p: objective.value(eqx.combine(p, carried))
    # Optax is not written for strict promotion, which a user may have switched on.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        updates, state = extended.update(g, state, moving, value=value, grad=g, value_fn=value_fn)
    return structure(params).ravel(updates), state


class Optimiser(AbstractMethod):
    """An optimiser that holds its problem; the problem is exchanged."""

    optimiser: ProblemOptimiser

    def init(self, problem, params):
        return self._with(problem).init(params)

    def displacement(self, problem, params, batch, state):
        like = structure(params)
        moved, state, *_ = self._with(problem).step(params, state, _as_given(batch))
        return like.ravel(moved) - like.ravel(params), state

    def _with(self, problem: AbstractProblem) -> ProblemOptimiser:
        return eqx.tree_at(lambda o: o.problem, self.optimiser, problem)


def _as_given(batch: AnyBatch) -> Any:
    """Return a batch as the user writes it."""
    if isinstance(batch, Batches):
        return batch.form.pack([_as_given(part) for part in batch.parts])
    if batch.inputs is None and batch.targets is None:
        return None
    return (batch.inputs,) if batch.targets is None else (batch.inputs, batch.targets)


def as_method(method: Any) -> AbstractMethod:
    """Return the method that a user means."""
    if isinstance(method, AbstractMethod):
        return method
    if isinstance(method, AbstractInverse):
        # Numbers become arrays, as everywhere: another damping is another input.
        return Natural(Strategy(method, SVD()).as_data())
    if hasattr(method, "init") and hasattr(method, "update"):
        return Optax(method)
    if hasattr(method, "init") and hasattr(method, "step"):
        return Optimiser(_exchangeable(method))
    if callable(method) and not _makes_one(method):
        return Direction(method)
    raise ValueError(
        "method must be an inverse (MoorePenrose()), an Optax transformation (optax.adam(1e-3)), "
        "an optimiser with problem, init and step, or a function direction(problem, params, "
        f"batch), got {_described(method)}."
    )


def _makes_one(method: Any) -> bool:
    """Return whether it is a class, or a function of Optax (`optax.adam`), that makes a method."""
    return isinstance(method, type) or getattr(method, "__module__", "").startswith("optax.")


def _described(method: Any) -> str:
    name = type(method).__name__
    return f"{method.__name__} itself: call it" if _makes_one(method) else name


def _exchangeable(optimiser: Any) -> ProblemOptimiser:
    """Return the optimiser; raise a `ValueError` if its problem cannot be exchanged."""
    name = type(optimiser).__name__
    cure = "Give a function instead: method=lambda problem, params, batch: direction."
    if not hasattr(optimiser, "problem"):
        raise ValueError(
            f"{name} has init and step, but no attribute problem to exchange for the "
            f"reparametrised one. {cure}"
        )
    if jax.tree_util.all_leaves([optimiser]):
        raise ValueError(
            f"{name} is not a pytree, so that its problem cannot be exchanged for the "
            f"reparametrised one: derive it from equinox.Module. {cure}"
        )
    return optimiser
