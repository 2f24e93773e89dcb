r"""A trust region in the metric's *true* divergence ρ: the longest part \(t\) of a step with

\[ \rho(f(\theta + td), f(\theta)) \le \tfrac12\Delta^2 . \]

In the quadratic model of ρ this is \(\|A\,td\| \le \Delta\). The model is inaccurate where the
bound matters, for long steps and saturating outputs; so ρ itself is evaluated. \(\sqrt\rho\) is
nearly linear in t, and its secant through the ends of a bracket is the next guess.

Without `extend`, \(t \le 1\): a natural gradient that ends inside the region is taken whole. With
it the step goes on to the border, as in TRPO (Schulman et al., 2015). The loss need not be
quadratic there, so the decrease is compared with \(t\,(-g^\top d)\) and not with that of q.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import instance, integer, positive
from .._base.types import Count, Scalar
from ._base import AbstractStep, Move, move

CLOSE, AIM = 0.99, 0.995
"""A step spends at least this fraction of the divergence, if it reaches the border; and aims at."""
STRIDE = 4.0
"""By what a length grows while no border was seen."""


class Search(NamedTuple):
    """A bracket of the border: `inside` is in the region, `beyond` is not."""

    inside: Scalar
    low: Scalar
    """The divergence at `inside`."""
    beyond: Scalar
    high: Scalar
    """The divergence at `beyond`."""
    guess: Scalar
    """The next length to try."""
    trials: Count


class TrustRegion(AbstractStep):
    """A bound on the divergence per step, which may grow and shrink with the gain.

    ```python
    opt = pb.NaturalGradientDescent(problem, step=pb.step.TrustRegion(radius=0.5))
    trpo = pb.step.TrustRegion(divergence=0.01, extend=True, adapt=False)  # KL = 0.01 every step
    ```
    """

    radius: float | Scalar
    accept: float
    largest: float
    max_trials: int = eqx.field(static=True)
    extend: bool = eqx.field(static=True)
    adapt: bool = eqx.field(static=True)
    numbers_are_data: ClassVar[bool] = True

    def __init__(
        self,
        radius: float | Scalar | None = None,
        accept: float = 1e-4,
        largest: float = 1e3,
        max_trials: int = 40,
        *,
        divergence: float | Scalar | None = None,
        extend: bool = False,
        adapt: bool = True,
    ):
        """Choose the region.

        **Arguments:**

        - `radius`: Δ of the first step; a step moves the outputs by a divergence of at most Δ²/2.
            Defaults to 0.5.
        - `accept`: the gain below which a step is rejected.
        - `largest`: the largest radius.
        - `max_trials`: how many lengths are tried to find the border of the region.
        - `divergence`: Δ²/2, in place of `radius`: `divergence=0.01` bounds the KL divergence of a
            Fisher metric by 0.01.
        - `extend`: whether a step that ends inside the region is extended to its border, so that
            every step spends the whole divergence (at least 99 % of it).
        - `adapt`: whether the radius follows the gain; otherwise it stays.
        """
        if radius is not None and divergence is not None:
            raise ValueError(
                "TrustRegion takes radius or divergence = radius**2 / 2, not both, e.g. "
                "TrustRegion(divergence=0.01)."
            )
        if divergence is not None:
            positive("TrustRegion", "divergence", divergence)
            radius = (2 * divergence) ** 0.5
        radius = 0.5 if radius is None else radius
        positive("TrustRegion", "radius", radius)
        positive("TrustRegion", "accept", accept, below=0.25, zero=True)
        positive("TrustRegion", "largest", largest)
        integer("TrustRegion", "max_trials", max_trials, 2, "TrustRegion(max_trials=40)")
        for name, given in (("extend", extend), ("adapt", adapt)):
            instance("TrustRegion", name, given, bool, "a boolean", f"TrustRegion({name}=True)")
        self.radius = radius
        self.accept = accept
        self.largest = largest
        self.max_trials = max_trials
        self.extend = extend
        self.adapt = adapt

    def check(self, problem, inverse):
        for metric in (term.metric for term in problem.terms):
            if metric.has_divergence:
                continue
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
        length = sub.norm(curve.velocity)
        limit = curve.within(jnp.inf if self.extend else 1.0)
        tiny = jnp.finfo(dtype).tiny

        def again(search: Search):
            unfinished = (search.low < CLOSE * bound) & (search.inside < limit)
            return unfinished & (search.trials < self.max_trials) & (length > 0)

        def probe(search: Search) -> Search:
            t = search.guess
            found = sub.divergence(curve(t))
            # Rounding may take it below zero.
            found = jnp.where(jnp.isfinite(found), jnp.maximum(found, 0.0), jnp.inf)
            fits = found <= bound
            old = search._replace(trials=search.trials + 1)
            new = _where(
                fits, old._replace(inside=t, low=found), old._replace(beyond=t, high=found)
            )
            return new._replace(guess=jnp.minimum(_guess(new, AIM * bound, tiny), limit))

        zero = jnp.zeros((), dtype)
        # Exact if the divergence were quadratic.
        guess = jnp.minimum(jnp.sqrt(2 * AIM * bound) / jnp.maximum(length, tiny), limit)
        far = jnp.full((), jnp.inf, dtype)
        start = Search(zero, zero, far, far, guess, jnp.zeros((), jnp.int32))
        search = jax.lax.while_loop(again, probe, start)
        # Without a border (no direction, or a divergence that stays below the bound), it is the
        # natural gradient itself.
        border = jnp.isfinite(search.beyond) | (search.low >= CLOSE * bound)
        border = border | (search.inside >= limit)
        t = curve.within(jnp.where(border, search.inside, 1.0))
        value = sub.value_at(curve(t))
        tried = move(sub, curve, t, value, value <= sub.value, jnp.maximum(search.trials, 1))
        if self.extend:
            linear = t * sub.slope(curve.velocity)
            ratio = jnp.where(linear > 0, (sub.value - value) / jnp.where(linear > 0, linear, 1), 0)
            nothing = (length == 0) & (value == sub.value)
            tried = eqx.tree_at(lambda m: m.gain, tried, jnp.where(nothing, 1.0, ratio))
        # No trial was inside: to stay is no success, although nothing was predicted or lost.
        outside = (search.inside <= 0) & border & (limit > 0) & (length > 0)
        tried = eqx.tree_at(lambda m: m.gain, tried, jnp.where(outside, 0.0, tried.gain))
        enough = tried.accepted & (tried.gain > self.accept)
        tried = eqx.tree_at(lambda m: m.accepted, tried, enough)
        whole = (search.inside >= limit) | (length == 0)
        slope = jnp.abs(tried.rate * sub.slope(curve.velocity))
        unseen = ~outside & (slope <= jnp.finfo(dtype).eps * jnp.abs(sub.value))
        return tried, self._next(state, tried, whole, length.astype(state.dtype), unseen)

    def _next(
        self, radius: Scalar, tried: Move, whole: Array, length: Scalar, unseen: Array
    ) -> Scalar:
        """Return the radius of the next step; `unseen` is a change below the rounding of the loss.

        The gain of such a step is rounding. Divided by four each time, the radius of a run that
        has converged would become too small for any step, on other samples too.
        """
        if not self.adapt:
            return radius
        grown = jnp.minimum(2 * radius, self.largest)
        # A good step that ended inside the region says nothing about a larger one.
        good = jnp.where((tried.gain > 0.75) & ~whole, grown, radius)
        # A bad step inside the region: what matters is how long it was.
        bad = jnp.where(whole, jnp.minimum(radius, length) / 4, radius / 4)
        bad = jnp.where(unseen, radius, jnp.maximum(bad, jnp.finfo(radius.dtype).tiny))
        return jnp.where(tried.accepted & (tried.gain >= 0.25), good, bad).astype(radius.dtype)


def _guess(search: Search, aim: Scalar, tiny: Any) -> Scalar:
    """Return the length at which the square root of the divergence should be that of `aim`."""
    low, high, aim = (jnp.sqrt(x) for x in (search.low, search.high, aim))
    width = search.beyond - search.inside
    secant = search.inside + width * (aim - low) / jnp.maximum(high - low, tiny)
    # Every third trial halves the bracket, whatever the divergence is like.
    bracketed = jnp.isfinite(high) & (search.trials % 3 != 0)
    closer = jnp.where(bracketed, secant, search.inside + width / 2)
    further = search.inside * jnp.clip(aim / jnp.maximum(low, tiny), 1.0, STRIDE)
    return jnp.where(jnp.isfinite(search.beyond), closer, further)


def _where(condition: Array, a: Search, b: Search) -> Search:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), a, b)
