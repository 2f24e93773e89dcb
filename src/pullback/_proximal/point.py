"""What the steps of this room share: a problem on flat parameters, and the record of a step."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._base.results import RESULTS, describe, failed, outcome
from .._base.show import applies, number, several, table
from .._base.tree import Structure, split, structure
from .._base.types import Count, Flat, Params, Scalar
from .._natural.outcome import first, unusable
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractObjective, AbstractProblem
from .._problem.validate import check_batch, is_traced


class ProximalStep(eqx.Module):
    """A step and its certificate. Numbers that do not apply are NaN.

    step = pullback.proximal_step(problem, params, (x, y), weight=10.0)
    step.params, step.residual
    """

    params: Params
    """The new point."""
    value: Scalar
    """The loss there."""
    residual: Scalar
    """The norm of what must vanish (the gradient of the inner problem), relative to the gradient of
    the loss at the old point; both in units of the parameters that fit the inner problem."""
    least: Scalar
    """The least eigenvalue of the Hessian of the inner problem, relative to the largest: not
    negative at a minimum."""
    steps: Count
    """The number of inner steps."""
    result: RESULTS
    """A code that is data; `RESULTS[result]` is its message."""

    def __repr__(self) -> str:
        found = ", ".join(f"{name} {text}" for name, text in self._numbers())
        return f"ProximalStep({several(self.value)}{found}, {outcome(self.result)})"

    def __str__(self) -> str:
        return "\n".join(f"{name:<18}{text}" for name, text in self._lines())

    def _repr_html_(self) -> str:
        return table(self._lines())

    @property
    def message(self) -> str:
        """The name of the result, and what to do about it if it is a failure."""
        return describe(self.result)

    def _lines(self) -> list[tuple[str, str]]:
        return [*self._numbers(), ("result", self.message)]

    def _numbers(self) -> list[tuple[str, str]]:
        numbers = (("residual", self.residual, ".1e"), ("least eigenvalue", self.least, ".3g"))
        return [
            ("loss", number(self.value, ".6g")),
            *((name, number(x, how)) for name, x, how in numbers if applies(x)),
            *((("inner steps", number(self.steps, "d")),) if applies(self.steps) else ()),
        ]


class Point(eqx.Module):
    """A problem on a batch, as a function of flat parameters near a point."""

    objective: AbstractObjective
    params: Params
    like: Structure = eqx.field(static=True)

    def __init__(self, problem: AbstractProblem, params: Params, batch: AnyBatch):
        check_batch(problem, params, batch)
        self.objective = problem.at(batch)
        self.params = params
        self.like = structure(params)

    @property
    def flat(self) -> Flat:
        """The point itself."""
        return self.like.ravel(self.params)

    @property
    def nan(self) -> Scalar:
        """A number that does not apply."""
        return jnp.asarray(jnp.nan, self.like.dtype)

    def whole(self, flat: Flat) -> Params:
        """Return the parameters of a flat vector."""
        return eqx.combine(self.like.unravel(flat), split(self.params)[1])

    def value(self, flat: Flat) -> Scalar:
        """Return the loss at a flat vector."""
        return self.objective.value(self.whole(flat))

    def step(
        self, flat: Flat, residual: Scalar, least: Scalar, steps: Count | int, result: Any
    ) -> ProximalStep:
        """Return the record of a step to a flat vector."""
        steps = jnp.asarray(steps, jnp.int32)
        # What the old point is made of comes before what was made of it.
        here = first(
            unusable(self.objective, self.params, self.objective.outputs(self.params)), None
        )
        result = RESULTS.where(here == RESULTS.successful, result, here)
        return ProximalStep(self.whole(flat), self.value(flat), residual, least, steps, result)


def raised(step: ProximalStep, throw: bool) -> ProximalStep:
    """Return the step; raise a `RuntimeError` if it failed, `throw` is set and it is concrete."""
    if throw and not is_traced(step) and bool(failed(step.result)):
        raise RuntimeError(
            f"{RESULTS[step.result]} (residual {float(step.residual):.1e}; throw=False returns the "
            "state.)"
        )
    return step
