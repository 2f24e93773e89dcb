"""A problem that the lecture's steps are tried on: logistic regression with one bent feature, five
parameters, eight samples.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

import pullback as pb

_rng = np.random.default_rng(3)
X = jnp.asarray(_rng.standard_normal((8, 3)))
LABELS = jnp.asarray((_rng.standard_normal(8) > 0).astype(float))
PARAMS = {"w": jnp.asarray(_rng.standard_normal(3)), "b": jnp.asarray(0.3), "v": jnp.asarray(1.2)}


def logits(p: dict, x: Float[Array, "N 3"]) -> Float[Array, " N"]:
    """The model."""
    return jnp.tanh(x @ p["w"] + p["b"]) * p["v"]


def cost(p: dict) -> Float[Array, ""]:
    """The mean cross-entropy, as a function of the parameters."""
    z = logits(p, X)
    return jnp.mean(jax.nn.softplus(z) - LABELS * z)


def flat(tree: dict) -> np.ndarray:
    """Parameters as a vector."""
    return np.asarray(ravel_pytree(tree)[0])


FISHER = pb.Composite(logits, metric=pb.metric.Bernoulli())
"""With the KL divergence of the outputs."""
PLAIN = pb.Composite(lambda p: p, loss=cost)
"""With half the squared distance of the parameters."""
