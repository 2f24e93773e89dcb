"""Wave functions of the examples: networks that have the symmetries of a lattice."""

import jax
import jax.numpy as jnp
import numpy as np


def translations(lattice):
    """The translations of a lattice, one permutation of the sites per row."""
    grid, axes = np.arange(lattice.sites).reshape(lattice.shape), range(len(lattice.shape))
    return np.stack([np.roll(grid, shift, axes).ravel() for shift in np.ndindex(*lattice.shape)])


def positive(lattice, rows=None):
    """A positive wave function: the mean over a group of log cosh features, weighted.

    The group is that of all symmetries of the lattice, or the given rows.
    """
    rows = jnp.asarray(lattice.symmetries().permutations if rows is None else rows)

    def log_psi(params, spins):
        return features(params, spins) @ params["weight"]

    def features(params, spins):
        images = spins[:, rows] @ params["filter"]
        # log cosh, which does not overflow, and is the same for a spin and its flip.
        return jnp.mean(jnp.logaddexp(images, -images), axis=1)

    log_psi.features = features
    return log_psi


def signed(lattice):
    """A real wave function: a positive one times a small network that may be negative."""
    base = positive(lattice)

    def log_psi(params, spins):
        hidden = base.features(params, spins)
        value = 1 + jnp.tanh(hidden @ params["hidden"] + params["bias"][None]) @ params["last"]
        return hidden @ params["weight"] + jnp.log(jnp.abs(value)), jnp.sign(value)

    return log_psi


def start(lattice, width, seed=0, sign=False):
    """Parameters to start from."""
    keys = jax.random.split(jax.random.key(seed), 4)
    params = {
        "filter": 0.5 * jax.random.normal(keys[0], (lattice.sites, width)),
        "weight": 0.3 * jax.random.normal(keys[1], (width,)),
    }
    if not sign:
        return params
    return params | {
        "hidden": jax.random.normal(keys[2], (width, 8)) / width**0.5,
        "bias": jnp.zeros(8),
        "last": 0.1 * jax.random.normal(keys[3], (8,)),
    }
