"""Checks of arguments when an object is built or a function is called, with one style of message.

    Owner(name=value): name must be <what>, e.g. Owner(name=1.0).

The message shows the call, the value and a corrected call. A traced value has no number to check:
its shape is checked, and its value passes.
"""

import inspect
import math
from typing import Any

import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


def is_concrete(value: Any) -> bool:
    """Whether a value is known now: `jit`, `vmap` or `grad` is not tracing it."""
    return not isinstance(value, jax.core.Tracer)


def shown(value: Any) -> str:
    """A short text for a value: small arrays entry by entry, large ones by dtype and shape."""
    if not is_concrete(value):
        return str(value.aval)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        large = f"{value.dtype} of shape {tuple(value.shape)}"
        return str(value).replace("\n", "") if value.size <= 9 else large
    if isinstance(value, tuple | list) and any(hasattr(x, "shape") for x in value):
        return f"({', '.join(map(shown, value))})"
    return repr(value)


def error(owner: str, name: str, value: Any, wanted: str, example: str | None = None) -> ValueError:
    """The error for an argument: the call, the value, what is wanted, and a corrected call."""
    cure = "" if example is None else f", e.g. {example}"
    return ValueError(f"{owner}({name}={shown(value)}): {name} must be {wanted}{cure}.")


def positive(
    owner: str,
    name: str,
    value: Any,
    below: float = math.inf,
    zero: bool = False,
    example: str | None = None,
) -> None:
    """Raise a `ValueError` unless the value is one number, positive (or zero) and below a bound."""
    try:
        good = np.shape(value) == () and not isinstance(value, bool | np.bool_ | str)
        if good and is_concrete(value):
            number = float(value)
            good = (number >= 0 if zero else number > 0) and number < below
    except (TypeError, ValueError):
        good = False
    if not good:
        bound = "finite" if below == math.inf else f"below {below:g}"
        wanted = f"{bound} and >= 0" if zero else f"positive and {bound}"
        usual = f"{owner}({name}={min(1.0, below / 2):g})"
        raise error(owner, name, value, wanted, usual if example is None else example)


def integer(
    owner: str, name: str, value: Any, least: int | None = None, example: str | None = None
) -> int:
    """The value as an `int`; raises a `ValueError` unless it is an integer of at least `least`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or (least is not None and value < least):
        wanted = "an integer" if least is None else f"an integer of at least {least}"
        usual = f"{owner}({name}={max(1, least or 1)})"
        raise error(owner, name, value, wanted, usual if example is None else example)
    return int(value)


def function(owner: str, name: str, value: Any, example: str) -> None:
    """Raise a `ValueError` unless the value can be called."""
    if not callable(value):
        raise error(owner, name, value, "a function", example)


def takes(function: Any, *args: Any) -> bool:
    """Whether a function can be called with these arguments, as far as its signature is known."""
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        return False
    except ValueError:  # a function without a signature, e.g. one written in C
        return True
    return True


def instance(owner: str, name: str, value: Any, kind: type, wanted: str, example: str) -> None:
    """Raise a `ValueError` unless the value is an instance of a class."""
    if not isinstance(value, kind):
        raise error(owner, name, value, wanted, example)


def floating(owner: str, name: str, value: Any, ndim: int) -> Float[Array, "..."]:
    """The value as a floating array; raises unless it is real, finite, not empty, with `ndim` axes.

    Integers and booleans are converted.
    """
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise error(owner, name, array, f"real, not complex ({array.dtype})")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(float)
    if array.ndim != ndim:
        wanted = f"an array with {ndim} {'axis' if ndim == 1 else 'axes'}"
        raise error(owner, name, array, f"{wanted}, not of shape {array.shape}")
    if array.size == 0:
        raise error(owner, name, array, f"not empty (its shape is {array.shape})")
    if is_concrete(array) and not bool(np.all(np.isfinite(array))):
        where = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise error(owner, name, array, f"finite, but {name}{where} is not")
    return array


def vector(owner: str, name: str, value: Any, size: int, meaning: str) -> Float[Array, " size"]:
    """The value as a floating vector; raises unless it is real, finite and of the given length."""
    array = floating(owner, name, value, 1)
    if array.shape != (size,):
        raise error(owner, name, array, f"of shape ({size},), {meaning}, not {array.shape}")
    return array


def mask(owner: str, name: str, value: Any, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """The value as an array; raises unless it holds booleans and has the given shape."""
    array = jnp.asarray(value)
    if array.shape != shape or array.dtype != bool:
        wanted = f"an array of booleans of shape {shape}"
        raise error(owner, name, array, f"{wanted}, not {array.dtype} of shape {array.shape}")
    return array


def labelled(owner: str, x: Any, y: Any) -> tuple[Float[Array, "N D"], Float[Array, " N"]]:
    """Inputs of shape (N, D) and their N labels as floating arrays; raises unless labels are ±1."""
    x = floating(owner, "x", x, 2)
    y = vector(owner, "y", y, x.shape[0], "one label per row of x").astype(x.dtype)
    if is_concrete(y) and not bool(np.all(np.abs(np.asarray(y)) == 1)):
        raise error(owner, "y", y, "labels -1 and +1; for labels 0 and 1 pass 2 * y - 1")
    return x, y
