r"""A trust region in the metric's *true* divergence: the longest part \(t \le 1\) of the step with
\(\rho(f(\theta + td), f(\theta)) \le \tfrac12\Delta^2\).

In the quadratic model of ρ this is \(\|A\,td\| \le \Delta\). The model is wrong where it matters,
for long steps and saturating outputs; so ρ itself is evaluated, and t found by bisection. The
radius Δ follows the gain.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.checks import positive
from ._base import AbstractStep, move


class TrustRegion(AbstractStep):
    """At most a given divergence per step, more or less of it by the gain."""

    radius: float
    accept: float
    largest: float
    max_trials: int = eqx.field(static=True)

    def __init__(
        self, radius: float = 0.5, accept: float = 1e-4, largest: float = 1e3, max_trials: int = 40
    ):
        """Choose the region.

        **Arguments:**

        - `radius`: Δ of the first step; a step moves the outputs by a divergence of at most Δ²/2.
        - `accept`: the gain below which a step is rejected.
        - `largest`: the largest radius.
        - `max_trials`: how many lengths are tried to find the border of the region.
        """
        positive("TrustRegion", "radius", radius)
        positive("TrustRegion", "accept", accept, below=0.25, zero=True)
        positive("TrustRegion", "largest", largest)
        if max_trials < 2:
            raise ValueError(
                f"TrustRegion(max_trials={max_trials}): max_trials must be at least 2."
            )
        self.radius, self.accept, self.largest, self.max_trials = (
            radius,
            accept,
            largest,
            max_trials,
        )

    def check(self, problem, inverse):
        metric = problem.metric
        if not metric.has_divergence or metric.couples_samples:
            raise ValueError(
                f"step=TrustRegion() measures steps in the divergence of the metric, and {type(metric).__name__} has none. "
                "Use step=LevenbergMarquardt() or step=LineSearch()."
            )

    def init(self, dtype):
        return jnp.asarray(self.radius, dtype)

    def step(self, sub, state):
        curve = sub.curve(sub.direction())
        dtype = sub.dtype
        bound = (state * state / 2).astype(dtype)

        def divergence(t):
            found = sub.divergence(curve(t))
            return jnp.where(jnp.isfinite(found), found, jnp.inf)

        whole = divergence(1.0) <= bound

        # Invariant: `inside` is in the region (0 is), `beyond` is not. The first guess is that of
        # the quadratic model.
        def again(carry):
            _inside, reached, _beyond, trials = carry
            return ~whole & (trials < self.max_trials) & (reached < 0.98 * bound)

        def bisect(carry):
            inside, reached, beyond, trials = carry
            guess = state.astype(dtype) / jnp.maximum(
                sub.norm(curve.velocity), jnp.finfo(dtype).tiny
            )
            middle = jnp.where((trials == 1) & (guess < 1), guess, (inside + beyond) / 2)
            found = divergence(middle)
            fits = found <= bound
            return (
                jnp.where(fits, middle, inside),
                jnp.where(fits, found, reached),
                jnp.where(fits, beyond, middle),
                trials + 1,
            )

        zero = jnp.zeros((), dtype)
        start = (zero, zero, jnp.ones((), dtype), jnp.ones((), jnp.int32))
        inside, _, _, trials = jax.lax.while_loop(again, bisect, start)
        t = jnp.where(whole, 1.0, inside)
        value = sub.value_at(curve(t))
        tried = move(sub, curve, t, value, value <= sub.value, trials)
        tried = eqx.tree_at(
            lambda m: m.accepted, tried, tried.accepted & (tried.gain > self.accept)
        )
        grown = jnp.where((tried.gain > 0.75) & ~whole, jnp.minimum(2 * state, self.largest), state)
        shrunk = jnp.minimum(
            state / 4,
            jnp.where(whole, sub.norm(curve.velocity).astype(state.dtype) / 4, state / 4),
        )
        after = jnp.where(
            tried.accepted & (tried.gain >= 0.25),
            grown,
            jnp.maximum(shrunk, jnp.finfo(state.dtype).tiny),
        )
        return tried, after.astype(state.dtype)
