"""Leaves in half precision: where the parameters may be is where their dtype has a number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._base.tree import is_coordinate
from .._base.types import Params


def confined(
    constraint: Callable[[Params], Params] | None, short: Params | None
) -> Callable[[Params], Params] | None:
    """Return a constraint whose points are rounded to the dtypes of `short`, if that is given.

    Such leaves are computed with in float32. The loss that a step rule judges, and that the record
    has, is that of the rounded point, which the step returns; it may overflow in its own dtype.
    """
    if short is None:
        return constraint

    def nearest(params: Params) -> Params:
        there = params if constraint is None else constraint(params)
        return jax.tree.map(_rounded, there, short, is_leaf=lambda x: x is None)

    return nearest


def _rounded(x: Any, y: Any) -> Any:
    """Return a leaf with the digits and the range that another one has."""
    if not is_coordinate(x) or x.dtype == getattr(y, "dtype", x.dtype):
        return x
    info = jnp.finfo(y.dtype)
    # XLA may take a conversion there and back for nothing; this operation it keeps. It makes zeros
    # of subnormal numbers.
    kept = jax.lax.reduce_precision(x, exponent_bits=info.nexp, mantissa_bits=info.nmant)
    subnormal = jnp.abs(x) < float(info.tiny)
    return jnp.where(subnormal, x.astype(y.dtype).astype(x.dtype), kept)
