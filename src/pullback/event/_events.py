"""Events that stop a flow: a number that changes sign, located on the dense output, or a condition
that becomes true, noticed at the end of a step.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import positive
from .._base.tree import structure
from .._base.types import Params, Scalar
from .._problem.composite import Batch, Composite


class AbstractEvent(eqx.Module):
    """A reason to stop."""

    @abc.abstractmethod
    def condition(self, t: Scalar, params: Params, problem: Composite, batch: Batch) -> Array:
        """A real number whose fall through zero is the event, or a boolean.

        **Arguments:**

        - `t`: the time.
        - `params`: the parameters.
        - `problem`, `batch`: the problem.
        """

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """What happened, for the message."""


class LossBelow(AbstractEvent):
    """The loss falls to a level.

    **Arguments:**

    - `level`: the level, positive.
    """

    level: float

    def __check_init__(self):
        positive("LossBelow", "level", self.level)

    def condition(self, t, params, problem, batch):
        return _log_ratio(problem.value(problem.outputs(params, batch.inputs), batch), self.level)

    @property
    def description(self):
        return f"the loss fell to {self.level:g}"


class GradientBelow(AbstractEvent):
    """The Euclidean norm of the gradient falls to a level.

    **Arguments:**

    - `level`: the level, positive.
    """

    level: float

    def __check_init__(self):
        positive("GradientBelow", "level", self.level)

    def condition(self, t, params, problem, batch):
        def value(moving):
            return problem.value(problem.outputs(eqx.combine(moving, carried), batch.inputs), batch)

        moving, carried = eqx.partition(params, eqx.is_inexact_array)
        return _log_ratio(
            jnp.linalg.norm(structure(params).ravel(jax.grad(value)(moving))), self.level
        )

    @property
    def description(self):
        return f"the norm of the gradient fell to {self.level:g}"


class When(AbstractEvent):
    """A condition of your own.

    **Arguments:**

    - `function`: `function(t, params)`, a real number whose fall through zero stops the flow, or a
        boolean.
    - `name`: what to call it in the message.
    """

    function: Callable[[Scalar, Params], Any]
    name: str = eqx.field(static=True, default="the condition")

    def condition(self, t, params, problem, batch):
        return jnp.asarray(self.function(t, params))

    @property
    def description(self):
        return f"{self.name} was met"


class RankChange(eqx.Module):
    """The rank that the inverse sees changes, or the smallest kept singular value collapses on its
    way to zero.

    A natural (or Newton) field is discontinuous, often unbounded, where the rank changes. A flow
    that runs into such a point gets there in finite time with ever smaller steps; it is stopped
    before.

    **Arguments:**

    - `collapse`: the factor by which the ratio of smallest to largest singular value falls below
        that of the start.
    """

    collapse: float = 1e-6

    def __check_init__(self):
        if not 0 <= self.collapse < 1:
            raise ValueError(
                f"RankChange(collapse={self.collapse}): a factor in [0, 1), e.g. RankChange(1e-6)."
            )


def _log_ratio(value: Scalar, level: Any) -> Scalar:
    """log(value/level): nearly linear in time, so that the root is found at once."""
    tiny = jnp.finfo(value.dtype).tiny
    return jnp.log(jnp.maximum(value, tiny)) - jnp.log(jnp.asarray(level, value.dtype))
