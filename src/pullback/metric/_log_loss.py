r"""The logarithm of a loss \(\ell = \log(1 + e^v)\), where the loss itself underflows.

A Bernoulli variable has \(v = \mp s\), a categorical one \(v = \log\sum_{k \ne y} e^{z_k} - z_y\).

\[ \log \ell = v + \log\bigl(1 - \tfrac{x}{2} + \tfrac{x^2}{3} - \dots\bigr), \quad x = e^v, \]

has full relative accuracy for every \(v\), and so has its gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array


def log_softplus(v: Array) -> Array:
    """log log(1 + e^v)."""
    small = v < -8.0
    x = jnp.exp(jnp.where(small, v, -jnp.inf))
    # The first term left out is x⁶/7 < 3e-22.
    series = jnp.log1p(-x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x / 6)))))
    return jnp.where(small, v + series, jnp.log(jax.nn.softplus(jnp.where(small, 0.0, v))))
