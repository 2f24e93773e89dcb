"""A run that compiles at once: a random walk, for tests of what surrounds the steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from helpers import normal

import pullback as pb

START = {"w": normal(3, 2, seed=1), "empty": jnp.zeros((0, 2)), "short": jnp.ones(3, jnp.bfloat16)}


class Walk(eqx.Module):
    """A random walk whose state is a key."""

    rate: float = 1.0

    def init(self, params):
        return jax.random.key(1)

    def step(self, params, key, batch):
        key, now = jax.random.split(key)
        moved = params["w"] + self.rate * jax.random.normal(now, (3, 2))
        # Bounded: a loss that rises for ever is warned of.
        return params | {"w": moved}, key, {"loss": jnp.sum(jnp.cos(moved))}


OPT = Walk()


def bits(fit):
    """Everything that a run computes, as bytes."""
    leaves = [fit.params, jax.random.key_data(fit.state), dict(fit.history.columns)]
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(leaves)]


def run(folder, steps, **options):
    """Make steps, saved every second one."""
    saving = pb.Checkpoints(folder, every_steps=2, **options)
    return pb.fit(OPT, START, None, steps, checkpoint=saving)
