r"""Levenberg-Marquardt: \(d = -(G + λW)^{-1} g\), with λ by how well the last step was predicted.

The gain is the decrease of the loss over that of \(q(d) = g^\top d + \tfrac12\|Ad\|^2\), in which
the metric stands for the Hessian. A step with too little gain is rejected and tried again with more
damping, from the same factors; a good one earns less damping for the next.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.checks import positive
from .._base.types import Count, Scalar
from ..inverse._base import Tikhonov
from ._base import AbstractStep, Move, move
from ._damping import redamp


def _refuse_damped(owner: str, inverse: Any) -> None:
    if isinstance(inverse, Tikhonov):
        raise ValueError(
            f"step={owner}() finds its own damping, and inverse=Tikhonov({inverse.damping}) gives another. Leave inverse= out "
            "(or give MoorePenrose(rtol, gauge) for the cut-off and the gauge)."
        )


class Damping(NamedTuple):
    """What `LevenbergMarquardt` keeps."""

    value: Scalar
    """λ of the next trial."""
    growth: Scalar
    """By what λ grows after the next rejection."""
    count: Count
    """The number of steps made, for a scheduled rate."""


class LevenbergMarquardt(AbstractStep):
    r"""Damping by the gain (Nielsen, 1999): after a step of gain ρ it is multiplied by
    \(\max(\text{decrease}, 1 - (2\rho - 1)^3)\), after a rejection by `increase`, after a second
    one in a row by twice that, and so on. At λ = 0 it is Moore-Penrose, which λ → 0 leads to.

    Where every step draws new samples, each step fits its own, and the error stays at what one
    batch leaves open. A rate that falls takes the mean over the last 1/rate batches; the gain,
    which knows one batch only, then no longer holds λ up, and `minimum` has to.
    """

    damping: float | Scalar
    accept: float
    increase: float
    decrease: float
    max_trials: int = eqx.field(static=True)
    rate: float | Scalar | Callable
    minimum: float | Scalar

    def __init__(
        self,
        damping: float | Scalar = 1e-2,
        accept: float = 1e-4,
        increase: float = 2.0,
        decrease: float = 1 / 3,
        max_trials: int = 10,
        rate: float | Scalar | Callable = 1.0,
        minimum: float | Scalar = 0.0,
    ):
        """Choose the rule.

        **Arguments:**

        - `damping`: λ of the first trial, at least 0.
        - `accept`: the gain below which a step is rejected.
        - `increase`: by what λ is multiplied after a rejection; more after several in a row.
        - `decrease`: the least that λ is multiplied by after a good step.
        - `max_trials`: how many dampings are tried in one step; if none is accepted, the parameters
            stay.
        - `rate`: which part of the step is tried and taken: a positive number, or a schedule, a
            function of the number of steps made so far.
        - `minimum`: λ does not fall below this.
        """
        positive("LevenbergMarquardt", "damping", damping, zero=True)
        positive("LevenbergMarquardt", "minimum", minimum, zero=True)
        if not callable(rate):
            positive("LevenbergMarquardt", "rate", rate)
        positive("LevenbergMarquardt", "accept", accept, below=0.25, zero=True)
        positive("LevenbergMarquardt", "decrease", decrease, below=1)
        if not increase > 1:
            raise ValueError(f"LevenbergMarquardt(increase={increase}): increase must be above 1.")
        if max_trials < 1:
            raise ValueError(
                f"LevenbergMarquardt(max_trials={max_trials}): max_trials must be at least 1."
            )
        self.damping, self.accept, self.increase, self.decrease = (
            damping,
            accept,
            increase,
            decrease,
        )
        self.max_trials, self.rate, self.minimum = max_trials, rate, minimum

    @property
    def damps(self):
        return True

    def check(self, problem, inverse):
        _refuse_damped("LevenbergMarquardt", inverse)

    def init(self, dtype):
        return Damping(
            jnp.asarray(self.damping, dtype),
            jnp.asarray(self.increase, dtype),
            jnp.zeros((), jnp.int32),
        )

    def step(self, local, aim, state):
        dtype = state.value.dtype
        # A rejection at λ = 0 must lead somewhere: the smallest damping that the spectrum can feel.
        largest = local.factorised.spectrum.largest
        floor = jnp.finfo(dtype).eps * jnp.where(largest > 0, largest * largest, 1.0).astype(dtype)
        ceiling = jnp.sqrt(jnp.finfo(dtype).max)
        rate = self.rate(state.count) if callable(self.rate) else self.rate

        def attempt(damping) -> Move:
            damped = local.with_factors(
                redamp(local.factorised, damping.astype(local.metric.dtype))
            )
            curve = damped.curve(aim(damped))
            value = local.value_at(curve(rate))
            tried = move(local, curve, rate, value, value <= local.value, 1, damping)
            return eqx.tree_at(
                lambda m: m.accepted, tried, tried.accepted & (tried.gain > self.accept)
            )

        def rejected(state: Damping) -> Damping:
            growth = jnp.minimum(2 * state.growth, ceiling)
            return Damping(
                jnp.minimum(jnp.maximum(state.value, floor) * state.growth, ceiling),
                growth,
                state.count,
            )

        def again(carry):
            _, trials, tried = carry
            return ~tried.accepted & (trials < self.max_trials)

        def retry(carry):
            state, trials, _ = carry
            state = rejected(state)
            return state, trials + 1, attempt(state.value)

        state, trials, best = jax.lax.while_loop(
            again, retry, (state, jnp.ones((), jnp.int32), attempt(state.value))
        )
        best = eqx.tree_at(lambda m: m.trials, best, trials)
        factor = jnp.clip(1 - (2 * best.gain.astype(dtype) - 1) ** 3, self.decrease, self.increase)
        good = Damping(
            jnp.maximum(state.value * factor, jnp.asarray(self.minimum, dtype)),
            jnp.full_like(state.growth, self.increase),
            state.count,
        )
        new = jax.tree.map(lambda a, b: jnp.where(best.accepted, a, b), good, rejected(state))
        return best, new._replace(count=state.count + 1)


class DampingSearch(AbstractStep):
    """The best of a grid of dampings, λ = s² · (relative damping) with s the largest singular value
    of A, all from one factorisation.

    No memory, no constants to tune: far from a minimum it finds a short step along the gradient,
    near one the undamped step.
    """

    relative: tuple[float, ...]

    def __init__(self, relative: tuple[float, ...] | None = None):
        """Choose the grid.

        **Arguments:**

        - `relative`: the dampings relative to the largest eigenvalue of G; 1, 1/10, ..., 10⁻³⁰ if
            left out.
        """
        relative = (
            tuple(10.0**-k for k in range(31))
            if relative is None
            else tuple(float(x) for x in relative)
        )
        if not relative:
            raise ValueError(
                "DampingSearch(relative=()): give at least one damping, e.g. DampingSearch((1e-2, 1e-6, 0.0))."
            )
        for x in relative:
            positive("DampingSearch", "relative", x, zero=True)
        self.relative = relative

    @property
    def damps(self):
        return True

    def check(self, problem, inverse):
        _refuse_damped("DampingSearch", inverse)

    def init(self, dtype):
        return None

    def step(self, local, aim, state):
        dtype = local.metric.dtype
        largest = local.factorised.spectrum.largest
        # A matrix-free solver does not know s: then the dampings are absolute.
        unit = jnp.where(jnp.isfinite(largest) & (largest > 0), largest * largest, 1.0)
        dampings = unit * jnp.asarray(self.relative, dtype)

        def curve(damping):
            damped = local.with_factors(redamp(local.factorised, damping))
            return damped.curve(aim(damped))

        values = jax.lax.map(lambda damping: local.value_at(curve(damping)(1.0)), dampings)
        best = jnp.argmin(values)
        better = values[best] < local.value
        return move(
            local, curve(dampings[best]), 1.0, values[best], better, dampings.size, dampings[best]
        ), state
