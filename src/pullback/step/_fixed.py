r"""`Fixed`: a fixed or scheduled length, \(\theta - \eta_k\,\delta\)."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from .._base.checks import positive
from .._base.functions import canonical
from .._base.types import Scalar
from ._base import AbstractStep, move


class Fixed(AbstractStep):
    """Go a fixed part of the natural gradient.

    The loss may rise; a step after which it is not finite is not taken.
    """

    rate: float | Scalar | Callable
    numbers_are_data: ClassVar[bool] = True

    def __init__(self, rate: float | Scalar | Callable = 1.0):
        """Choose the length.

        **Arguments:**

        - `rate`: a positive number, or a schedule: a function of the number of steps taken so far
            (Optax's are such).
        """
        if not callable(rate):
            positive("Fixed", "rate", rate)
        self.rate = canonical(rate)

    def init(self, dtype):
        return jnp.zeros((), jnp.int32)

    def step(self, sub, state):
        rate = self.rate(state) if callable(self.rate) else self.rate
        return move(sub, sub.curve(sub.direction()), rate), state + 1


def as_rule(rule: Any) -> Any:
    """Return `Fixed(rate)` for a number or a schedule, and anything else as it is."""
    if isinstance(rule, AbstractStep | type | bool):
        return rule
    return Fixed(rule) if callable(rule) or eqx.is_array_like(rule) else rule
