r"""Levenberg-Marquardt: \(d = -(G + λW)^{-1} g\), with λ by how well the last step was predicted.

The gain is the decrease of the loss over that of \(q(d) = g^\top d + \tfrac12\|Ad\|^2\), in which
the metric stands for the Hessian. A step with too little gain is rejected and tried again with more
damping, from the same factors; a good one earns less damping for the next.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import error, integer, is_concrete, positive
from .._base.functions import canonical
from .._base.types import Count, Scalar
from ..inverse._dampable import Dampable
from ._base import AbstractStep, Move, move
from ._damping_search import refuse_damped


class Damping(NamedTuple):
    """What `LevenbergMarquardt` keeps."""

    value: Scalar
    """λ of the next trial."""
    growth: Scalar
    """By what λ grows after the next rejection."""
    count: Count
    """The number of steps made, for a scheduled rate."""


class LevenbergMarquardt(AbstractStep):
    r"""Damping by the gain ρ of the last step (Nielsen, 1999).

    After a step λ is multiplied by \(\max(\text{decrease}, 1 - (2\rho - 1)^3)\), after a
    rejection by `increase`, after a second one in a row by twice that, and so on. λ = 0 is the
    Moore-Penrose inverse.

    Where every step draws new samples, each step fits its own batch. A decaying rate averages over
    roughly the last 1/rate batches. The gain ratio sees only one batch and will let λ shrink to
    zero, so set `minimum`.
    """

    damping: float | Scalar
    accept: float
    increase: float
    decrease: float
    max_trials: int = eqx.field(static=True)
    rate: float | Scalar | Callable
    minimum: float | Scalar
    numbers_are_data: ClassVar[bool] = True

    def __init__(
        self,
        damping: float | Scalar = 1e-2,
        accept: float = 1e-4,
        increase: float = 2.0,
        decrease: float = 1 / 3,
        max_trials: int = 10,
        rate: float | Scalar | Callable = 1.0,
        minimum: float | Scalar = 0.0,
    ):
        """Choose the rule.

        **Arguments:**

        - `damping`: λ of the first trial, at least 0.
        - `accept`: the gain below which a step is rejected.
        - `increase`: by what λ is multiplied after a rejection; more after several in a row.
        - `decrease`: the least that λ is multiplied by after a good step.
        - `max_trials`: how many dampings are tried in one step; if none is accepted, the parameters
            stay.
        - `rate`: which part of the step is tried and taken: a positive number, or a schedule, a
            function of the number of steps made so far.
        - `minimum`: λ does not fall below this.
        """
        positive("LevenbergMarquardt", "damping", damping, zero=True)
        positive("LevenbergMarquardt", "minimum", minimum, zero=True)
        if not callable(rate):
            positive("LevenbergMarquardt", "rate", rate)
        positive("LevenbergMarquardt", "accept", accept, below=0.25, zero=True)
        positive("LevenbergMarquardt", "decrease", decrease, below=1)
        example = "LevenbergMarquardt(increase=2.0)"
        positive("LevenbergMarquardt", "increase", increase, example=example)
        if is_concrete(increase) and not increase > 1:
            raise error("LevenbergMarquardt", "increase", increase, "above 1", example)
        integer("LevenbergMarquardt", "max_trials", max_trials, least=1)
        self.damping = damping
        self.accept = accept
        self.increase = increase
        self.decrease = decrease
        self.max_trials = max_trials
        self.rate = canonical(rate)
        self.minimum = minimum

    def check(self, problem, inverse):
        refuse_damped("LevenbergMarquardt", inverse)

    def factorises(self, inverse):
        return Dampable(inverse)

    def least_damping(self, state):
        return state.value  # Within a step λ only grows.

    def init(self, dtype):
        return Damping(
            jnp.asarray(self.damping, dtype),
            jnp.asarray(self.increase, dtype),
            jnp.zeros((), jnp.int32),
        )

    def step(self, sub, state):
        dtype = state.value.dtype
        rate = self.rate(state.count) if callable(self.rate) else self.rate
        # A rejection at λ = 0 must lead somewhere: the smallest damping that the spectrum can feel.
        largest = sub.factorised.spectrum.largest
        floor = jnp.finfo(dtype).eps * jnp.where(largest > 0, largest * largest, 1.0).astype(dtype)
        ceiling = jnp.sqrt(jnp.finfo(dtype).max)

        def rejected(state: Damping) -> Damping:
            value = jnp.minimum(jnp.maximum(state.value, floor) * state.growth, ceiling)
            return Damping(value, jnp.minimum(2 * state.growth, ceiling), state.count)

        def attempt(carry: tuple[Damping, Move, Array]) -> tuple[Damping, Move, Array]:
            state, last, _ = carry
            state = _where(last.trials == 0, state, rejected(state))
            damped = sub.damped(state.value)
            curve = damped.curve(damped.direction())
            value = sub.value_at(curve(rate))
            tried = move(damped, curve, rate, value, value <= sub.value, last.trials + 1)
            enough = tried.accepted & (tried.gain > self.accept)
            slope = jnp.abs(rate * damped.slope(curve.velocity))
            unseen = ~enough & (slope <= jnp.finfo(sub.dtype).eps * jnp.abs(sub.value))
            return state, eqx.tree_at(lambda m: m.accepted, tried, enough), unseen

        def again(carry: tuple[Damping, Move, Array]):
            _, last, unseen = carry
            return ~last.accepted & ~unseen & (last.trials < self.max_trials)

        # The first trial is one of the loop, so that the solve is compiled once.
        untried = Move.untried(sub)
        before = state
        state, best, unseen = jax.lax.while_loop(
            again, attempt, (state, untried, jnp.zeros_like(untried.accepted))
        )
        factor = jnp.clip(1 - (2 * best.gain.astype(dtype) - 1) ** 3, self.decrease, self.increase)
        good = Damping(
            jnp.maximum(state.value * factor, jnp.asarray(self.minimum, dtype)),
            jnp.full_like(state.growth, self.increase),
            state.count,
        )
        # Below the rounding of the loss no damping is better than another. Raised in every step of
        # a run that has converged, λ would become too large for any step, on other samples too.
        new = _where(best.accepted, good, _where(unseen, before, rejected(state)))
        return best, new._replace(count=state.count + 1)


def _where(condition, a: Damping, b: Damping) -> Damping:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), a, b)
