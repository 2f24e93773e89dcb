"""Why a flow stops before its end: the conditions that diffrax checks, and the result they give.

At the end of every step diffrax calls each condition. It offers a condition the state but not the
stage that was computed there, so the field is computed once more at the end of each step.
"""

import math
from typing import Any, NamedTuple

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._base.results import RESULTS, failed, successful_if
from .._base.types import Flat, Scalar
from ..constraint import AbstractConstraint
from ..event import AbstractEvent, Inspection, RankChange
from .equation import Equation, inspect

AMPLIFIED, LEAST = 1e-3, 1e2
"""The relative error at which a flow that amplifies errors stops; and the least growth for that."""


class Conditions(NamedTuple):
    """One entry per condition: the functions for diffrax, or its mask of what happened.

    Where two booleans become true in one step, the first one counts.
    """

    field: Any
    constraint: tuple[Any, ...]
    """One entry, or none without a constraint."""
    events: tuple[Any, ...]

    def event(self) -> Int[Array, ""]:
        """Return which event of a mask happened, -1 if none."""
        if not self.events:
            return jnp.asarray(-1, jnp.int32)
        mask = jnp.stack([jnp.asarray(x) for x in self.events])
        return jnp.where(jnp.any(mask), jnp.argmax(mask), -1).astype(jnp.int32)


class Stops(eqx.Module):
    """The reasons to stop that a flow was given."""

    rank: RankChange | None
    constraint: AbstractConstraint | None
    events: tuple[AbstractEvent, ...]

    @property
    def locatable(self) -> bool:
        """Whether a reason may be a real number, whose root is located within a step."""
        return self.constraint is not None or bool(self.events)

    def conditions(self, start: Inspection, tolerance: Scalar) -> Conditions:
        """Return the functions that diffrax calls, given the field at the start."""
        return Conditions(
            _Halts(start, self.rank, tolerance),
            () if self.constraint is None else (_Leaves(self.constraint),),
            tuple(_Meets(event) for event in self.events),
        )

    def result(
        self,
        found: dfx.RESULTS,
        mask: Conditions,
        start: Inspection,
        now: Inspection,
        tolerance: Scalar,
    ) -> RESULTS:
        """Return our result from diffrax's and the condition that was met."""
        stalled: Any = RESULTS.flow_stalled
        endless: Any = RESULTS.flow_max_steps
        halted: Any = now.result
        if self.rank is not None:
            changed: Any = RESULTS.rank_changed
            # Steps that shrink to nothing while the smallest singular value does so too: the flow
            # ran into a change of rank.
            stalled = RESULTS.where(self.rank.approached(start, now, 1e-3), changed, stalled)
            endless = RESULTS.where(self.rank.approached(start, now, 1e-6), changed, endless)
            halted = RESULTS.where(failed(now.result), now.result, changed)
        hidden = amplified(start, now, tolerance) & ~failed(now.result)
        halted = RESULTS.where(hidden, RESULTS.flow_unstable, halted)
        result: Any = RESULTS.where(found == dfx.RESULTS.max_steps_reached, endless, stalled)
        result = successful_if(found == dfx.RESULTS.successful, result)
        result = RESULTS.where(mask.event() >= 0, RESULTS.flow_event, result)
        for left in mask.constraint:
            result = RESULTS.where(left, RESULTS.left_constraint, result)
        result = RESULTS.where(mask.field, halted, result)
        # Where the flow starts more is checked than where it ends.
        return RESULTS.where(failed(start.result), start.result, result)


def amplified(start: Inspection, now: Inspection, tolerance: Scalar) -> Array:
    r"""Return whether the flow has amplified errors of its steps beyond `AMPLIFIED`.

    Where G is the Hessian, \(\delta\theta_t = e^{-t} G_t^{-1} G_0\,\delta\theta_0\): the heaviest
    rows weigh \(e^{-t}\), and where lighter ones decide, errors have grown by the ratio.
    """
    growth = jnp.asarray(now.log_spread) - start.log_spread
    return growth > jnp.maximum(math.log(AMPLIFIED) - jnp.log(tolerance), math.log(LEAST))


class _Halts(eqx.Module):
    """The field cannot be computed, or its rank changes, or it amplifies errors."""

    start: Inspection
    rank: RankChange | None
    tolerance: Scalar

    def __call__(self, t: Scalar, y: Flat, args: Equation, **kwargs) -> Array:
        now = inspect(y, args)
        bad = failed(now.result) | amplified(self.start, now, self.tolerance)
        return bad if self.rank is None else bad | self.rank.happened(self.start, now)


class _Leaves(eqx.Module):
    """The boundary of a constraint is reached."""

    constraint: AbstractConstraint

    def __call__(self, t: Scalar, y: Flat, args: Equation, **kwargs) -> Scalar:
        return self.constraint.slack(args.params(y)).astype(y.dtype)


class _Meets(eqx.Module):
    """The condition of an event."""

    event: AbstractEvent

    def __call__(self, t: Scalar, y: Flat, args: Equation, **kwargs) -> Array:
        value = self.event.condition(args.time(t), args.params(y), args.problem, args.batch)
        return value if jnp.issubdtype(value.dtype, jnp.bool_) else value.astype(y.dtype)
