"""Any method of optimisation as one thing: parameters and state in, a displacement and a new state
out.

Four kinds are understood, by their shape and not by their origin: a generalised inverse (the
natural gradient with it), a function `direction(problem, params, batch)` (steps go against it), an
Optax transformation (`init`, `update`), and an optimiser that holds its problem (`problem`,
`init(params)`, `step(params, state, batch) -> (params, state, record)`).
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from .._base.tree import split, structure
from .._base.types import Flat, Params
from .._natural.natural_gradient import compute
from .._natural.outcome import raise_failure
from .._problem.composite import Batch, Composite, presented
from .._rows.pullback import MEMORY
from ..inverse._base import AbstractInverse
from ..solver import SVD


class AbstractMethod(eqx.Module):
    """A method of optimisation, independent of the problem."""

    @abc.abstractmethod
    def init(self, problem: Composite, params: Params) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def displacement(
        self, problem: Composite, params: Params, batch: Batch, state: Any
    ) -> tuple[Flat, Any]:
        """The displacement of one step, flat, and the next state."""


class Natural(AbstractMethod):
    """The natural gradient with some inverse."""

    inverse: AbstractInverse

    def init(self, problem, params):
        return None

    def displacement(self, problem, params, batch, state):
        vector, result = _natural(problem, params, batch, self.inverse)
        raise_failure(result, problem, params, batch, None)
        return -structure(params).ravel(vector), None


@eqx.filter_jit
def _natural(problem, params, batch, inverse):
    ng = compute(problem, params, batch, None, inverse, SVD(), MEMORY, False)
    return ng.vector, ng.result


class Direction(AbstractMethod):
    """A function that gives a direction of ascent."""

    function: Callable

    def init(self, problem, params):
        return None

    def displacement(self, problem, params, batch, state):
        given = _raw(batch)
        vector = self.function(problem, params, given)
        return -structure(params).ravel(vector), None


class Optax(AbstractMethod):
    """An Optax transformation, its updates as they are (the learning rate included)."""

    transformation: Any

    def init(self, problem, params):
        return optax.with_extra_args_support(self.transformation).init(split(params)[0])

    def displacement(self, problem, params, batch, state):
        return _optax_update(self.transformation, problem, params, batch, state)


@eqx.filter_jit
def _optax_update(transformation, problem, params, batch, state):
    moving, carried = split(params)
    batch = presented(problem, batch)

    def value_fn(moving):
        return problem.value(problem.outputs(eqx.combine(moving, carried), batch.inputs), batch)

    value, g = jax.value_and_grad(value_fn)(moving)
    transformation = optax.with_extra_args_support(transformation)
    # Optax is not written for strict promotion, which a user may have switched on.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        updates, state = transformation.update(
            g, state, moving, value=value, grad=g, value_fn=value_fn
        )
    return structure(params).ravel(updates), state


class Optimiser(AbstractMethod):
    """An optimiser that holds its problem; the problem is exchanged."""

    optimiser: Any

    def init(self, problem, params):
        return self._with(problem).init(params)

    def displacement(self, problem, params, batch, state):
        like = structure(params)
        moved, state, *_ = self._with(problem).step(params, state, _raw(batch))
        return like.ravel(moved) - like.ravel(params), state

    def _with(self, problem):
        return eqx.tree_at(lambda o: o.problem, self.optimiser, problem)


def _raw(batch: Batch) -> Any:
    """A batch as the user writes it."""
    if batch.inputs is None:
        return None
    return (batch.inputs,) if batch.targets is None else (batch.inputs, batch.targets)


def as_method(method: Any) -> AbstractMethod:
    """The method a user means."""
    if isinstance(method, AbstractMethod):
        return method
    if isinstance(method, AbstractInverse):
        # Numbers become arrays, as everywhere: another damping is another input.
        return Natural(
            jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, method)
        )
    if hasattr(method, "init") and hasattr(method, "update"):
        return Optax(method)
    if hasattr(method, "init") and hasattr(method, "step"):
        if not hasattr(method, "problem"):
            raise ValueError(
                f"{type(method).__name__} has init and step, but no attribute problem to exchange for the reparametrised one. "
                "Give a function instead: method=lambda problem, params, batch: direction."
            )
        return Optimiser(method)
    if callable(method):
        return Direction(method)
    raise ValueError(
        "method must be an inverse (MoorePenrose()), an Optax transformation (optax.adam(1e-3)), an optimiser with problem, init and step, or a "
        f"function direction(problem, params, batch), got {type(method).__name__}."
    )
