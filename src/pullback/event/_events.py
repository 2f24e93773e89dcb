"""Events that stop a flow: conditions on the time and the parameters.

A condition is a real number, whose fall through zero is located on the dense output, or a boolean,
which stops the flow at the end of the step in which it becomes true.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from .._base.checks import function, positive
from .._base.show import settings
from .._base.tree import structure
from .._base.types import Params, Scalar
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem


class AbstractEvent(eqx.Module):
    """A reason to stop. To write one, give `condition` and `description`:

    class Small(pullback.event.AbstractEvent):
        level: float

        def condition(self, t, params, problem, batch):
            return jnp.max(jnp.abs(params)) - self.level

        @property
        def description(self):
            return f"all parameters fell below {self.level:g}"
    """

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def condition(
        self, t: Scalar, params: Params, problem: AbstractProblem, batch: AnyBatch
    ) -> Array:
        """Return a real number whose fall through zero is the event, or a boolean.

        **Arguments:**

        - `t`: the time.
        - `params`: the parameters at that time.
        - `problem`, `batch`: the problem; `problem.at(batch).value(params)` is the loss.
        """

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """What happened, for the message of the trajectory."""


class LossBelow(AbstractEvent):
    """The loss falls to a level: `flow(..., events=[LossBelow(1e-6)])`.

    **Arguments:**

    - `level`: the level, positive.
    """

    level: float | Scalar

    def __check_init__(self):
        positive("LossBelow", "level", self.level)

    def condition(self, t, params, problem, batch):
        return _log_ratio(problem.at(batch).value(params), self.level)

    @property
    def description(self):
        return f"the loss fell to {self.level:g}"


class GradientBelow(AbstractEvent):
    """The Euclidean norm of the gradient falls to a level.

    **Arguments:**

    - `level`: the level, positive.
    """

    level: float | Scalar

    def __check_init__(self):
        positive("GradientBelow", "level", self.level)

    def condition(self, t, params, problem, batch):
        _, gradient = problem.at(batch).differential(params)
        return _log_ratio(jnp.linalg.norm(structure(params).ravel(gradient)), self.level)

    @property
    def description(self):
        return f"the norm of the gradient fell to {self.level:g}"


class When(AbstractEvent):
    """A condition of your own: `When(lambda t, params: params[0] - 1.0, "params[0] = 1")`.

    **Arguments:**

    - `function`: `function(t, params)`, a real number whose fall through zero stops the flow, or a
        boolean.
    - `name`: the name of the condition in the message.
    """

    function: Callable[[Scalar, Params], ArrayLike]
    name: str = eqx.field(static=True, default="the condition")

    def __check_init__(self):
        function("When", "function", self.function, "When(lambda t, params: params[0] - 1.0)")

    def condition(self, t, params, problem, batch):
        return jnp.asarray(self.function(t, params))

    @property
    def description(self):
        return f"{self.name} was met"


def _log_ratio(value: Scalar, level: float | Scalar) -> Scalar:
    """Return log(value/level): nearly linear in time, so that its root is found at once."""
    tiny = jnp.finfo(value.dtype).tiny
    return jnp.log(jnp.maximum(value, tiny)) - jnp.log(jnp.asarray(level, value.dtype))
