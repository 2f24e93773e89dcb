"""Constructor arguments that cannot be right are refused where they are given, with the corrected
call.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jax.core import Tracer

from ._base import AbstractMetric


def is_concrete(value: Any) -> bool:
    """Whether a value can be looked at: it is not being traced by `jit`, `vmap` or `grad`."""
    return not isinstance(value, Tracer)


def require_callable(value: Any, argument: str, example: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise ValueError(f"{argument} takes a function, got {value!r}. For example {example}.")


def require_positive(value: Any, argument: str, example: str) -> None:
    """Refuse what is not one positive finite number; a traced value is let through, and the root is
    NaN where it is not positive.
    """
    try:
        scalar = np.shape(value) == () and not isinstance(value, bool)
        good = scalar and (not is_concrete(value) or bool(0 < float(value) < np.inf))
    except (TypeError, ValueError):
        good = False
    if not good:
        raise ValueError(
            f"{argument} takes one positive number, got {value!r}. For example {example}."
        )


def require_metrics(values: Iterable[Any], argument: str, example: str) -> None:
    """Refuse what is not a metric on the outputs of one sample."""
    for value in values:
        if not isinstance(value, AbstractMetric):
            raise ValueError(f"{argument} takes metrics, got {value!r}. For example {example}.")
        if value.couples_samples:
            raise ValueError(
                f"{argument}: {type(value).__name__} is one form on the outputs of the whole batch, and cannot be combined with metrics "
                f"on the outputs of one sample. Use it alone or as Weighted({type(value).__name__}(), 0.5). Elsewhere: {example}."
            )
