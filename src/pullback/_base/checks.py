"""Checks of arguments when an object is built or a function is called, with one style of message.

    Owner(name=value): name must be <what>, e.g. Owner(name=1.0).

The message shows the call, the value and a corrected call. A traced value has no number to check:
its shape is checked, and its value passes.
"""

import math
from typing import Any

import jax.core
import numpy as np


def is_concrete(value: Any) -> bool:
    """Whether a value is known now: `jit`, `vmap` or `grad` is not tracing it."""
    return not isinstance(value, jax.core.Tracer)


def shown(value: Any) -> str:
    """A short text for a value: small arrays entry by entry, large ones by dtype and shape."""
    if not is_concrete(value):
        return str(value.aval)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return str(value) if value.size <= 9 else f"{value.dtype} of shape {tuple(value.shape)}"
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
        good = np.shape(value) == () and not isinstance(value, bool | np.bool_)
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
    """The value as an `int`; raises a `ValueError` unless it is an integer, and at least `least`."""
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


def instance(owner: str, name: str, value: Any, kind: type, wanted: str, example: str) -> None:
    """Raise a `ValueError` unless the value is an instance of a class."""
    if not isinstance(value, kind):
        raise error(owner, name, value, wanted, example)
