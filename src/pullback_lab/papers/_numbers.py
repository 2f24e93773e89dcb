"""Random numbers and comparisons that the claims share, in NumPy."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """A NumPy generator seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def distance(a: Any, b: Any) -> float:
    """The norm of a - b relative to the norm of b; absolute if b is zero."""
    a = np.asarray(a, float)
    b = np.asarray(b, float)
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of the angle between two vectors."""
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
