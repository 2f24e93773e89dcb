"""Ordinal and negative binomial regression: likelihoods, and data drawn from them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

CUTS = np.array([-1.0, 0.5, 2.0])


def ordinal(eta, y):
    """log p of classes 0 to 3: the cumulative logits are cut points minus η."""
    edges = jnp.concatenate([jnp.array([-1e3]), jnp.asarray(CUTS), jnp.array([1e3])])
    low, high = edges[y] - eta, edges[y + 1] - eta
    # σ(a) - σ(b) = σ(a) σ(-b) (1 - exp(b - a)), which keeps its digits where both are near 1.
    both = jax.nn.log_sigmoid(high) + jax.nn.log_sigmoid(-low)
    return both + jnp.log(-jnp.expm1(low - high))


def negative_binomial(eta, y, r=2.0):
    """log p of counts with mean exp(η) and variance mean + mean²/r."""
    counts = gammaln(y + r) - gammaln(r) - gammaln(y + 1.0)
    return counts + y * eta + r * jnp.log(r) - (y + r) * jnp.logaddexp(eta, jnp.log(r))


def data(seed, count=120, size=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, size)) @ np.linalg.qr(rng.normal(size=(size, size)))[0]
    eta = x @ rng.normal(size=size) * 0.6
    level = (eta[:, None] + rng.logistic(size=count)[:, None] > CUTS).sum(axis=1)
    counts = rng.negative_binomial(2, 2 / (2 + np.exp(eta)))
    return jnp.asarray(x), {"ordinal": level, "negative binomial": counts.astype(float)}
