"""Checks of the arguments of `fit` that belong to no other piece."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from .._base.checks import error, function, integer
from .._base.types import Params
from .._problem.validate import is_traced


def check_arguments(params: Params, steps: Any, callback: Any, telemetry: Any) -> None:
    """Raise a `ValueError` for what `fit` cannot use."""
    integer("fit", "steps", steps, least=0)
    if is_traced(params):
        raise ValueError(
            "fit is a loop on the host and cannot be called inside jit; scan over opt.step there."
        )
    if callback is not None:
        function("fit", "callback", callback, "fit(callback=lambda report: report.step >= 10)")
    if telemetry is not None and not isinstance(telemetry, str | os.PathLike):
        raise error("fit", "telemetry", telemetry, "a path", 'fit(telemetry="run.jsonl")')


def as_key(key: Any) -> PRNGKeyArray:
    """Return a PRNG key from a key or a seed."""
    if isinstance(key, jax.Array | np.ndarray):
        # A key of the new kind, or the two or four words of an old one.
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if key.ndim != 0 if typed else key.ndim != 1 or key.dtype != np.uint32:
            wanted = "one PRNG key or a seed"
            raise error("fit", "key", key, wanted, "fit(key=jax.random.key(0)), or fit(key=0)")
        return key  # pyright: ignore[reportReturnType]
    return jax.random.key(integer("fit", "key", key, example="fit(key=0)"))
