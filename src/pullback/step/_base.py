r"""How far: a step rule is a pure function of the problem near a point and of its own state.

A rule decides on the length or the damping of the step. Inverse, momentum and constraint are
settled in the `Subproblem` that it receives, so that rules, inverses and momenta combine freely. A
rule never returns a point where the loss is not finite.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.show import facts, settings, several
from .._base.types import Count, Flat, Scalar
from .._natural.curve import Curve
from .._natural.factorised import SecondSolve
from .._natural.subproblem import Subproblem
from .._problem.problem import AbstractProblem
from ..inverse._base import AbstractInverse


class Move(eqx.Module):
    """What a rule proposes. Made by `move`."""

    displacement: Flat
    direction: Flat
    """d, of which the displacement is a part."""
    solution: Flat
    """δ, the solution behind the direction: what is certified."""
    value: Scalar
    """The loss there."""
    rate: Scalar
    """The part of d that is taken, 1 for all of it."""
    damping: Scalar
    """λ with which d was found; NaN if it is undamped."""
    gain: Scalar
    """The decrease of the loss over the predicted one."""
    curvature: Scalar
    """‖a‖/‖d‖ of a bent curve, 0 of a straight one, NaN where a is not finite."""
    trials: Count
    """How many points were tried."""
    accepted: Array
    second: SecondSolve | None = None
    """The solve of a momentum that corrects the last step; `None` if it does not."""
    bend: SecondSolve | None = None
    """The solve of a bent curve; `None` for straight ones."""

    def __repr__(self) -> str:
        found = facts(loss=self.value, rate=self.rate, damping=self.damping, gain=self.gain)
        taken = facts(trials=self.trials, accepted=self.accepted)
        return f"Move({several(self.value)}{', '.join(found + taken)})"

    @staticmethod
    def untried(sub: Subproblem) -> "Move":
        """Return a rejected move without a trial, for a loop to begin with.

        **Arguments:**

        - `sub`: the problem near the point.
        """
        vector = jnp.zeros(sub.evaluation.rows.shape[1], sub.dtype)
        zero = jnp.zeros((), sub.dtype)
        none = SecondSolve(vector, jnp.zeros(sub.factorised.rows.shape[0], sub.dtype))
        return Move(
            displacement=vector,
            direction=vector,
            solution=vector,
            value=zero,
            rate=zero,
            damping=zero,
            gain=zero,
            curvature=zero,
            trials=jnp.zeros((), jnp.int32),
            accepted=jnp.asarray(False),
            second=None if sub.previous is None else none,
            bend=None if sub.bend is None else none,
        )

    @property
    def solves(self) -> tuple[SecondSolve, ...]:
        """The solves of the move besides that of the natural gradient."""
        return tuple(x for x in (self.second, self.bend) if x is not None)


class AbstractStep(eqx.Module):
    """A step rule. To write one, give `step`, and `init` if it has a state.

    The state has a fixed structure and fixed dtypes.

    ```python
    class Halving(pb.step.AbstractStep):
        def step(self, sub, state):
            curve = sub.curve(sub.direction())
            return pb.step.move(sub, curve, 0.5), state
    ```
    """

    numbers_are_data: ClassVar[bool] = False
    """Whether fields that are floats may be traced; another number then compiles nothing.

    A rule that decides in Python by such a number leaves this as it is."""

    def __repr__(self) -> str:
        return settings(self, first=True)

    def check(self, problem: AbstractProblem, inverse: AbstractInverse) -> None:
        """Raise a `ValueError`, when things are built, for what this rule cannot work with.

        **Arguments:**

        - `problem`: the problem.
        - `inverse`: which inverse.
        """

    def factorises(self, inverse: AbstractInverse) -> AbstractInverse:
        """Return the inverse to factorise with; a rule that damps returns `Dampable(inverse)`.

        **Arguments:**

        - `inverse`: the one that the optimiser was given.
        """
        return inverse

    def least_damping(self, state: Any) -> Scalar | None:
        """Return the least λ that the next step will damp with; `None` if that is not known.

        A rule that tries a few dampings declares it: each is then a Cholesky factorisation, where
        λ is large enough, in place of one decomposition for all. A smaller λ returns NaN.

        **Arguments:**

        - `state`: the state of the rule before the step.
        """
        return None

    def init(self, dtype: Any) -> Any:
        """Return the state before the first step; defaults to none.

        **Arguments:**

        - `dtype`: the dtype of its numbers.
        """
        return None

    @abc.abstractmethod
    def step(self, sub: Subproblem, state: Any) -> tuple[Move, Any]:
        """Return what to do, and the next state.

        **Arguments:**

        - `sub`: the problem near the point: `direction`, `curve`, `value_at`, `damped`, ...
        - `state`: the state of the rule.
        """


def move(
    sub: Subproblem,
    curve: Curve,
    rate: Any,
    value: Scalar | None = None,
    accepted: Array | bool = True,
    trials: Any = 1,
) -> Move:
    """Return a `Move` along a curve; it is accepted only where the loss is finite.

    **Arguments:**

    - `sub`: the problem near the point, damped as the direction is.
    - `curve`: what `sub.curve` returned.
    - `rate`: how far along it; at most `curve.limit`, if a momentum bounds the step.
    - `value`: the loss there; defaults to an evaluation.
    - `accepted`: whether to go there.
    - `trials`: how many points were tried.
    """
    dtype = sub.dtype
    rate = curve.within(rate).astype(dtype)
    displacement = curve(rate)
    value = sub.value_at(displacement) if value is None else value
    return Move(
        displacement=displacement,
        direction=curve.velocity,
        solution=sub.solution,
        value=value,
        rate=rate,
        damping=jnp.asarray(jnp.nan if sub.damping is None else sub.damping, dtype),
        # A bent curve takes the outputs where the straight part alone was predicted to.
        gain=gain(sub, rate * curve.velocity, value),
        curvature=jnp.zeros((), dtype) if curve.curvature is None else curve.curvature,
        trials=jnp.asarray(trials, jnp.int32),
        accepted=accepted & jnp.isfinite(value) & jnp.all(jnp.isfinite(displacement)),
        second=sub.second,
        bend=curve.bend,
    )


def gain(sub: Subproblem, d: Flat, value: Scalar) -> Scalar:
    """Return the decrease of the loss over the predicted one.

    1 if both are zero (nothing is left to do), NaN if an increase was predicted.
    """
    expected, found = sub.predicted(d), sub.value - value
    nothing = (expected == 0) & (found == 0)
    ratio = jnp.where(expected > 0, found / jnp.where(expected > 0, expected, 1.0), jnp.nan)
    return jnp.where(nothing, 1.0, ratio)


def first_state(rule: AbstractStep, dtype: Any) -> Any:
    """Return the state of a rule before the first step, its numbers as arrays."""
    return _as_arrays(rule.init(dtype))


def _as_arrays(state: Any) -> Any:
    """Return a state with its numbers as arrays."""
    convert = lambda x: jnp.asarray(np.asarray(x)) if isinstance(x, bool | int | float) else x
    return jax.tree.map(convert, state)


def proceed(rule: AbstractStep, sub: Subproblem, state: Any) -> tuple[Move, Any]:
    """Return what a rule does next and its next state; raise a `ValueError` for anything else.

    A rate of several numbers, or a state of another kind, would be broadcast or cast in silence.
    """
    owner, made = type(rule).__name__, rule.step(sub, state)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Move):
        raise ValueError(
            f"{owner}.step(sub, state) must return a Move and the next state, e.g. "
            f"return pullback.step.move(sub, curve, 0.5), state; got {type(made).__name__}."
        )
    flat = (sub.evaluation.rows.shape[1],)
    for name in Move.__dataclass_fields__:
        if name in ("second", "bend"):
            continue
        wanted = flat if name in ("displacement", "direction", "solution") else ()
        if (found := jnp.shape(getattr(made[0], name))) != wanted:
            raise ValueError(
                f"{owner}.step: `{name}` of the Move must be of shape {wanted}, got {found}. A "
                "rate and a value are one number each."
            )
        if jnp.issubdtype(jnp.result_type(getattr(made[0], name)), jnp.complexfloating):
            raise ValueError(f"{owner}.step: `{name}` of the Move is complex, and must be real.")
    whole(owner, made[0], "second" if sub.previous is not None else None)
    new = _as_arrays(made[1])
    if (was := _described(state)) != (found := _described(new)):
        raise ValueError(
            f"{owner}.step must return a state like that of {owner}.init(dtype), {was}, got "
            f"{found}."
        )
    return jax.tree.map(jnp.asarray, made[0]), new


def whole(owner: str, made: Move, solve: str | None) -> None:
    """Raise a `ValueError` if a Move lacks a solve that is to be certified."""
    if solve is not None and getattr(made, solve) is None:
        raise ValueError(
            f"{owner}.step: the Move lacks a solve behind its direction, which is certified with "
            "the step: make it with pullback.step.move(sub, curve, rate)."
        )


def _described(state: Any) -> str:
    """Return structure, shapes and kinds of a state in words; the precision may differ."""
    kind = lambda x: "float" if jnp.issubdtype(x.dtype, jnp.floating) else str(x.dtype)
    show = lambda x: f"{kind(x)}{list(x.shape)}" if eqx.is_array(x) else repr(x)
    return str(jax.tree.map(show, state))
