r"""How far along the natural gradient: backtracking until the decrease is a fair part of the
predicted one, or the best of a grid.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import positive
from ._base import AbstractStep, move


class LineSearch(AbstractStep):
    """Backtracking: t = initial, shrink·initial, ..., until L(θ) - L(θ + t d) ≥ fraction · t ·
    (-g·d), which is what first order predicts.

    A direction along which the loss does not fall to first order (momentum can give one) is asked
    for any decrease.
    """

    initial: float
    shrink: float
    fraction: float
    max_trials: int = eqx.field(static=True)

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
        - `shrink`: by what it is multiplied after a failure, between 0 and 1.
        - `fraction`: of the predicted decrease, between 0 and 1.
        - `max_trials`: after so many failures the step is rejected.
        """
        positive("LineSearch", "initial", initial)
        positive("LineSearch", "shrink", shrink, below=1)
        positive("LineSearch", "fraction", fraction, below=1, zero=True)
        if max_trials < 1:
            raise ValueError(f"LineSearch(max_trials={max_trials}): max_trials must be at least 1.")
        self.initial, self.shrink, self.fraction, self.max_trials = (
            initial,
            shrink,
            fraction,
            max_trials,
        )

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

        first = attempt((jnp.asarray(self.initial, dtype), sub.value, jnp.zeros((), jnp.int32)))
        t, value, trials = jax.lax.while_loop(again, attempt, first)
        return move(sub, curve, t, value, good(t, value), trials), state


class GridSearch(AbstractStep):
    """The best of a grid of lengths; rejected if none is better than staying."""

    rates: tuple[float, ...]

    def __init__(self, rates: tuple[float, ...] | None = None):
        """Choose the grid.

        **Arguments:**

        - `rates`: the lengths; 1, 1/2, 1/4, ..., 2⁻³⁰ if left out.
        """
        rates = (
            tuple(2.0**-k for k in range(31))
            if rates is None
            else tuple(float(rate) for rate in rates)
        )
        if not rates:
            raise ValueError(
                "GridSearch(rates=()): give at least one length, e.g. GridSearch((1.0, 0.5, 0.25))."
            )
        for rate in rates:
            positive("GridSearch", "rates", rate)
        self.rates = rates

    def step(self, sub, state):
        curve = sub.curve(sub.direction())
        rates = jnp.asarray(self.rates, sub.dtype)
        values: Float[Array, " k"] = jax.lax.map(lambda t: sub.value_at(curve(t)), rates)
        best = jnp.argmin(values)
        return move(
            sub, curve, rates[best], values[best], values[best] < sub.value, rates.size
        ), state
