"""`Geodesic`: second order; any rule, on curves along which the outputs move straight.

It takes one more product with the second derivative of the model and uses the same factors
(`Subproblem.curve`).
"""

from collections.abc import Callable
from typing import ClassVar

from .._base.checks import positive
from .._base.types import Scalar
from ._base import AbstractStep, Move, whole
from ._fixed import as_rule


class Geodesic(AbstractStep):
    """Another rule on bent curves.

    The solve for the bend is certified as that of the natural gradient is: one that is not a
    solution makes the record `unconverged`, and `stats.residual` is the larger of the two. A bend
    that is too long, or not finite, is not used: the step is straight, and `Record.curvature` is 0
    or NaN.
    """

    step_rule: AbstractStep
    bound: float | Scalar
    numbers_are_data: ClassVar[bool] = True

    def __init__(
        self, step_rule: AbstractStep | float | Scalar | Callable, bound: float | Scalar = 1.0
    ):
        """Choose the rule to bend.

        **Arguments:**

        - `step_rule`: how far along the curve, e.g. `LineSearch()`; a number or a
            schedule is `Fixed(...)`.
        - `bound`: the largest ‖a‖/‖d‖ with which the second order is used; where the ratio is
            larger the Taylor series says nothing, and the step is straight. `Record.curvature` has
            what was used.
        """
        rule = as_rule(step_rule)
        if not isinstance(rule, AbstractStep) or isinstance(rule, Geodesic):
            raise ValueError(
                "Geodesic takes another step rule, e.g. Geodesic(LineSearch()), a number or a "
                f"schedule, got {step_rule!r}."
            )
        positive("Geodesic", "bound", bound)
        self.step_rule = rule
        self.bound = bound

    def check(self, problem, inverse):
        self.step_rule.check(problem, inverse)

    def factorises(self, inverse):
        return self.step_rule.factorises(inverse)

    def least_damping(self, state):
        return self.step_rule.least_damping(state)

    def init(self, dtype):
        return self.step_rule.init(dtype)

    def step(self, sub, state):
        made = self.step_rule.step(sub.bent(self.bound), state)
        if isinstance(made, tuple) and made and isinstance(made[0], Move):
            whole(type(self.step_rule).__name__, made[0], "bend")
        return made  # Anything else is refused by `proceed`.
