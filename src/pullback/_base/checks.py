"""Numbers that are arguments: refused when things are built, with the call that was made; traced
ones pass.
"""

import math
from typing import Any

import jax.core


def positive(
    owner: str, name: str, value: Any, below: float = math.inf, zero: bool = False
) -> None:
    """Refuse a number that is not positive and below a bound."""
    if isinstance(value, jax.core.Tracer):
        return
    number = float(value)
    if not (number >= 0 if zero else number > 0) or not number < below:
        bound = "finite" if below == math.inf else f"below {below:g}"
        wanted = f"{bound} and >= 0" if zero else f"positive and {bound}"
        raise ValueError(f"{owner}({name}={value}): {name} must be {wanted}.")
