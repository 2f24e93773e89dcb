r"""How far along the natural gradient: backtracking, or the best of a grid of lengths.

Backtracking tries \(t = t_0, \beta t_0, \beta^2 t_0, \dots\) until the loss falls by a fraction of
what first order predicts,

\[ L(\theta) - L(\theta + t d) \ge c\,t\,(-g^\top d) . \]
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import error, integer, positive
from ._base import AbstractStep, move


class LineSearch(AbstractStep):
    """Backtracking from a first length until the loss falls by a fraction of the prediction.

    Along a direction of ascent, which momentum can give, any decrease suffices.

    ```python
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LineSearch())
    ```
    """

    initial: float
    shrink: float
    fraction: float
    max_trials: int = eqx.field(static=True)
    numbers_are_data: ClassVar[bool] = True

    def __init__(
        self,
        initial: float = 1.0,
        shrink: float = 0.5,
        fraction: float = 1e-4,
        max_trials: int = 30,
    ):
        """Choose the search.

        **Arguments:**

        - `initial`: the first length; 1 is the whole natural gradient.
        - `shrink`: the factor of the length after each failure, between 0 and 1.
        - `fraction`: the fraction of the predicted decrease to reach, at least 0 and below 1.
        - `max_trials`: how many lengths are tried; if none is accepted, the step is rejected.
        """
        positive("LineSearch", "initial", initial)
        positive("LineSearch", "shrink", shrink, below=1)
        positive("LineSearch", "fraction", fraction, below=1, zero=True)
        integer("LineSearch", "max_trials", max_trials, least=1)
        self.initial = initial
        self.shrink = shrink
        self.fraction = fraction
        self.max_trials = max_trials

    def step(self, sub, state):
        curve = sub.curve(sub.direction())
        slope = jnp.maximum(sub.slope(curve.velocity), 0.0)
        dtype = sub.dtype

        def good(t, value):
            return (sub.value - value >= self.fraction * t * slope) & (value <= sub.value)

        def attempt(carry):
            t, _, trials = carry
            t = jnp.where(trials == 0, t, t * jnp.asarray(self.shrink, dtype))
            return t, sub.value_at(curve(t)), trials + 1

        def again(carry):
            t, value, trials = carry
            return (trials < self.max_trials) & ~good(t, value)

        start = curve.within(jnp.asarray(self.initial, dtype))
        first = attempt((start, sub.value, jnp.zeros((), jnp.int32)))
        t, value, trials = jax.lax.while_loop(again, attempt, first)
        return move(sub, curve, t, value, good(t, value), trials), state


class GridSearch(AbstractStep):
    """The best of a grid of lengths; the step is rejected if none lowers the loss."""

    rates: tuple[float, ...]

    def __init__(self, rates: tuple[float, ...] | None = None):
        """Choose the grid.

        **Arguments:**

        - `rates`: the lengths; defaults to 1, 1/2, 1/4, ..., 2⁻³⁰.
        """
        rates = tuple(2.0**-k for k in range(31)) if rates is None else tuple(rates)
        example = "GridSearch((1.0, 0.5, 0.25))"
        if not rates:
            raise error("GridSearch", "rates", rates, "at least one length", example)
        for rate in rates:
            positive("GridSearch", "rates", rate, example=example)
        self.rates = tuple(float(rate) for rate in rates)

    def step(self, sub, state):
        curve = sub.curve(sub.direction())
        rates = jnp.asarray(self.rates, sub.dtype)
        values: Float[Array, " k"] = jax.lax.map(lambda t: sub.value_at(curve(t)), rates)
        best = jnp.argmin(values)
        better = values[best] < sub.value
        return move(sub, curve, rates[best], values[best], better, rates.size), state
