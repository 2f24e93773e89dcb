r"""How far: a step rule takes the loss near a point and a way to aim, and returns a displacement
that it accepts or rejects.

A rule decides on the length or the damping of the step; which inverse, which momentum and which
constraint are not its business, so that rules, inverses and momenta combine freely. A rule never
returns a point where the loss is not finite.
"""

import abc
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._base.types import Count, Flat, Scalar
from .._natural.subproblem import Curve, Local
from ..inverse._base import AbstractInverse

Aim: TypeAlias = Callable[[Local], Flat]
"""Local ↦ d: the natural gradient step, or what a momentum makes of it."""


class Move(eqx.Module):
    """What a rule proposes."""

    displacement: Flat
    direction: Flat
    """d, of which the displacement is a part."""
    value: Scalar
    """The loss there."""
    rate: Scalar
    """Which part of d, 1 for all of it."""
    damping: Scalar
    """λ with which d was found; NaN if the rule has none of its own."""
    gain: Scalar
    """The decrease of the loss over the predicted one."""
    curvature: Scalar
    """‖a‖/‖d‖ of a bent curve, 0 of a straight one."""
    trials: Count
    """How many points were tried."""
    accepted: Array


class AbstractStep(eqx.Module):
    """A step rule. Its state has a fixed structure and fixed dtypes."""

    @property
    def damps(self) -> bool:
        """Whether the rule damps the inverse itself, so that it must be given an undamped one."""
        return False

    @property
    def bend(self) -> float | None:
        """Up to which ‖a‖/‖d‖ curves are bent; `None` for straight lines."""
        return None

    def check(self, problem: Any, inverse: AbstractInverse) -> None:
        """Refuse, when things are built, a problem or an inverse that this rule cannot work with.

        **Arguments:**

        - `problem`: the problem.
        - `inverse`: which inverse.
        """

    @abc.abstractmethod
    def init(self, dtype: Any) -> Any:
        """The state before the first step.

        **Arguments:**

        - `dtype`: the dtype of its numbers.
        """

    @abc.abstractmethod
    def step(self, local: Local, aim: Aim, state: Any) -> tuple[Move, Any]:
        """One step.

        **Arguments:**

        - `local`: the loss near the point.
        - `aim`: the direction, as a function of `local`.
        - `state`: the state of the rule.
        """


def move(
    local: Local,
    curve: Curve,
    rate: Any,
    value: Scalar,
    accepted: Array,
    trials: Any,
    damping: Any = jnp.nan,
) -> Move:
    """A `Move` along a curve."""
    dtype = local.metric.dtype
    displacement = curve(rate)
    bent = curve.acceleration
    return Move(
        displacement=displacement,
        direction=curve.velocity,
        value=value,
        rate=jnp.asarray(rate, dtype),
        damping=jnp.asarray(damping, dtype),
        # A bent curve takes the outputs where the straight part alone was predicted to.
        gain=gain(local, jnp.asarray(rate, dtype) * curve.velocity, value),
        curvature=jnp.zeros((), dtype) if bent is None else local.curvature(curve.velocity, bent),
        trials=jnp.asarray(trials, jnp.int32),
        accepted=accepted & jnp.isfinite(value) & jnp.all(jnp.isfinite(displacement)),
    )


def gain(local: Local, d: Flat, value: Scalar) -> Scalar:
    """The decrease of the loss over the predicted one; 1 if both are zero (nothing is left to do),
    NaN if an increase was predicted.
    """
    expected, found = local.predicted(d), local.value - value
    nothing = (expected == 0) & (found == 0)
    return jnp.where(
        nothing,
        1.0,
        jnp.where(expected > 0, found / jnp.where(expected > 0, expected, 1.0), jnp.nan),
    )
