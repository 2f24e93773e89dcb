"""Arguments of the closed forms, refused when a call is made: shapes, labels, numbers that are not
finite. Traced values pass.
"""

from typing import Any

import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def _traced(*values: Any) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)


def floating(name: str, value: Any, dimensions: int) -> Array:
    """An array of real numbers, finite, not empty, of a given number of axes."""
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"{name} is complex ({array.dtype}); pass real numbers.")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(float)
    if array.ndim != dimensions:
        raise ValueError(f"{name} must have {dimensions} axes, got the shape {array.shape}.")
    if array.size == 0:
        raise ValueError(f"{name} is empty, of shape {array.shape}; pass at least one number.")
    if not _traced(array) and not bool(np.all(np.isfinite(array))):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name}{list(where)} is not finite; remove such entries first.")
    return array


def samples(x: Any, y: Any) -> tuple[Array, Array]:
    r"""Inputs of shape `(N, D)` and labels ±1 of shape `(N,)`."""
    x = floating("x", x, 2)
    y = floating("y", y, 1).astype(x.dtype)
    if y.shape[0] != x.shape[0]:
        raise ValueError(
            f"y must have one label a row of x: x has the shape {x.shape}, y {y.shape}."
        )
    if not _traced(y) and not bool(np.all(np.abs(np.asarray(y)) == 1)):
        raise ValueError("y must hold the labels -1 and +1; for labels 0 and 1 pass 2 * y - 1.")
    return x, y


def like(name: str, value: Any, size: int, of: str) -> Array:
    """A vector of given length."""
    vector = floating(name, value, 1)
    if vector.shape != (size,):
        raise ValueError(f"{name} must have the shape ({size},), {of}; got {vector.shape}.")
    return vector


def whole_depth(owner: str, depth: Any) -> int:
    """A number of layers, at least one."""
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < 1:
        raise ValueError(
            f"{owner}(depth={depth!r}): depth must be a whole number of at least 1, e.g. {owner}(depth=2)."
        )
    return int(depth)


def time(t: Any) -> float:
    """A time that is not negative."""
    number = float(t)
    if not 0 <= number < float("inf"):
        raise ValueError(f"t={t!r}: t must be finite and >= 0; for the limit call limit_direction.")
    return number
