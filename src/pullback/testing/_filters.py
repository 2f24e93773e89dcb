r"""Random filters \(h(s)\): smooth, stepped, not monotone, with or without \(h_0\).

\[ h(s) = \frac{b}{s^2 + d} + \sum_i a_i\, e^{-(s - c_i)^2/w^2} + e\,[s > t] , \qquad h_0 \ge 0 . \]

The coefficients are arrays, so that one compiled program serves all of them.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..inverse import AbstractInverse


class RandomFilter(AbstractInverse):
    """A filter without any declaration. Made by `random_filter`."""

    tail: Float[Array, " 2"]
    """b and d."""
    bumps: Float[Array, "k 2"]
    """a_i and c_i."""
    width: Float[Array, ""]
    step: Float[Array, " 2"]
    """e and t."""
    outside: Float[Array, ""]
    """h₀."""
    gauge: Any = None

    def filter(self, s, cutoff):
        tail = self.tail[0] / (s * s + self.tail[1])
        gaps = (s[:, None] - self.bumps[None, :, 1]) / self.width
        bumps = jnp.sum(self.bumps[None, :, 0] * jnp.exp(-(gaps**2)), axis=1)
        return tail + bumps + jnp.where(s > self.step[1], self.step[0], 0.0)

    @property
    def kernel(self):
        return self.outside


def random_filter(seed: int, gauge: Any = None) -> RandomFilter:
    """Return a random filter; every third one has h₀ = 0.

    **Arguments:**

    - `seed`: which one.
    - `gauge`: the inner product on the parameters; defaults to the Euclidean one.
    """
    rng = np.random.default_rng(seed)
    present = rng.integers(0, 2, 3)
    present[rng.integers(3)] = 1
    tail = np.array([present[0] * rng.uniform(0.5, 2.0), 10.0 ** rng.uniform(-3, 0)])
    heights = present[1] * rng.uniform(0.2, 2.0, 3)
    step = np.array([present[2] * rng.uniform(0.5, 2.0), rng.uniform(0.2, 0.8)])
    return RandomFilter(
        tail=jnp.asarray(tail),
        bumps=jnp.asarray(np.stack([heights, rng.uniform(0, 1, 3)], axis=1)),
        width=jnp.asarray(rng.uniform(0.1, 0.5)),
        step=jnp.asarray(step),
        outside=jnp.asarray(0.0 if seed % 3 == 0 else rng.uniform(0.1, 2.0)),
        gauge=gauge,
    )
