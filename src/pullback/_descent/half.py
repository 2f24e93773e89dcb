"""Leaves in half precision: where the parameters may be is where their dtype has a number."""

from collections.abc import Callable

from .._base.tree import cast_like
from .._base.types import Params


def confined(
    constraint: Callable[[Params], Params] | None, short: Params | None
) -> Callable[[Params], Params] | None:
    """Return a constraint whose points are rounded to the dtypes of `short`, if that is given.

    Such leaves are computed with in float32. The loss that a step rule judges, and that the record
    has, is that of the rounded point, which the step returns; they may overflow in their own dtype.
    """
    if short is None:
        return constraint

    def nearest(params: Params) -> Params:
        there = params if constraint is None else constraint(params)
        return cast_like(cast_like(there, short), there)

    return nearest
