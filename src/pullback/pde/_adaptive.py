r"""`ByResidual`: more points where the residual is large (Wu et al., 2023).

Of `candidates` \(\times n\) points, \(n\) are drawn with probabilities

\[ p(x) \propto \frac{|r(x)|^k}{\mathrm{mean}\,|r|^k} + c . \]

The loss is the plain mean over the drawn points: it weighs regions with large residuals more, and
is another loss than that of uniform points.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import integer, positive
from .._base.show import settings


class ByResidual(eqx.Module):
    """Points inside, drawn by the size of the residual at the current parameters."""

    candidates: int = eqx.field(static=True)
    power: float
    floor: float

    def __init__(self, candidates: int = 4, power: float = 1.0, floor: float = 1.0):
        """Choose the distribution.

        **Arguments:**

        - `candidates`: how many points are compared for each that is drawn, at least 2.
        - `power`: k; a larger one concentrates the points more.
        - `floor`: c; a larger one makes the points more uniform.
        """
        self.candidates = integer("ByResidual", "candidates", candidates, 2)
        positive("ByResidual", "power", power)
        positive("ByResidual", "floor", floor, zero=True)
        self.power = power
        self.floor = floor

    def __repr__(self) -> str:
        return settings(self)

    def choose(self, key: PRNGKeyArray, residuals: Float[Array, "n ..."], count: int) -> Array:
        """Return the indices of the points to keep, no point twice.

        **Arguments:**

        - `key`: a PRNG key.
        - `residuals`: the residual at each candidate.
        - `count`: how many to keep.
        """
        flat = jnp.abs(residuals.reshape(residuals.shape[0], -1))
        # A residual that is not finite says nothing about where to look.
        flat = jnp.where(jnp.all(jnp.isfinite(flat), axis=1, keepdims=True), flat, 0.0)
        # Only ratios count: the largest is about one, so that no square or power overflows, and
        # not all of them underflow. A power of two changes no digit.
        flat = jnp.ldexp(flat, -jnp.frexp(jnp.max(flat, initial=0.0))[1])
        size = jnp.linalg.norm(flat, axis=1)
        size = size ** jnp.asarray(self.power, size.dtype)
        mean = jnp.mean(size)
        weight = size / jnp.where(mean > 0, mean, 1.0) + jnp.asarray(self.floor, size.dtype)
        # At zero weight everywhere, all are alike; the Gumbel trick draws without replacement.
        weight = jnp.where(jnp.any(weight > 0), weight, 1.0)
        noise = jax.random.gumbel(key, weight.shape, weight.dtype)
        return jax.lax.top_k(jnp.log(weight) + noise, count)[1]
