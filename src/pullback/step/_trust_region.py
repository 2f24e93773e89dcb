r"""A trust region in the metric's *true* divergence ρ: the longest part \(t \le 1\) of a step with

\[ \rho(f(\theta + td), f(\theta)) \le \tfrac12\Delta^2 . \]

In the quadratic model of ρ this is \(\|A\,td\| \le \Delta\). The model is inaccurate where the
bound matters, for long steps and saturating outputs; so ρ itself is evaluated, and t is found by
bisection. The radius Δ follows the gain.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import integer, positive
from .._base.types import Scalar
from ._base import AbstractStep, Move, move


class TrustRegion(AbstractStep):
    """A bound on the divergence per step that grows and shrinks with the gain.

    ```python
    opt = pb.NaturalGradientDescent(problem, step=pb.step.TrustRegion(radius=0.5))
    ```
    """

    radius: float
    accept: float
    largest: float
    max_trials: int = eqx.field(static=True)
    numbers_are_data: ClassVar[bool] = True

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
        integer("TrustRegion", "max_trials", max_trials, 2, "TrustRegion(max_trials=40)")
        self.radius = radius
        self.accept = accept
        self.largest = largest
        self.max_trials = max_trials

    def check(self, problem, inverse):
        metric = problem.metric
        if not metric.has_divergence or metric.couples_samples:
            raise ValueError(
                "step=TrustRegion() measures steps in the divergence of the metric, and "
                f"{type(metric).__name__} has none. Use step=pullback.step.LevenbergMarquardt() or "
                "step=pullback.step.LineSearch()."
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
        length = sub.norm(curve.velocity)
        # Exact if the divergence were quadratic.
        guess = state.astype(dtype) / jnp.maximum(length, jnp.finfo(dtype).tiny)

        # Invariant: `inside` is in the region (0 is), `beyond` is not.
        def again(carry):
            _inside, reached, _beyond, trials = carry
            return ~whole & (trials < self.max_trials) & (reached < 0.98 * bound)

        def bisect(carry):
            inside, reached, beyond, trials = carry
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
        enough = tried.accepted & (tried.gain > self.accept)
        tried = eqx.tree_at(lambda m: m.accepted, tried, enough)
        return tried, self._next(state, tried, whole, length.astype(state.dtype))

    def _next(self, radius: Scalar, tried: Move, whole: Array, length: Scalar) -> Scalar:
        """Return the radius of the next step."""
        grown = jnp.minimum(2 * radius, self.largest)
        # A good step that ended inside the region says nothing about a larger one.
        good = jnp.where((tried.gain > 0.75) & ~whole, grown, radius)
        # A bad step inside the region: what matters is how long it was.
        bad = jnp.where(whole, jnp.minimum(radius, length) / 4, radius / 4)
        bad = jnp.maximum(bad, jnp.finfo(radius.dtype).tiny)
        return jnp.where(tried.accepted & (tried.gain >= 0.25), good, bad).astype(radius.dtype)
