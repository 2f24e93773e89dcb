"""A loss that broadcasts outputs (N, 1) and targets (N,) to all pairs of samples is refused.

`outputs - targets` is then of shape (N, N), and its mean is a loss: that of every output against
the target of every sample, which nobody means and nothing else would show.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax

from .._base.types import Outputs
from .._compat.jaxpr import inner_programs, trace

COUNT = 7919
"""A number of samples that no other axis is likely to have."""


def check_broadcast(loss: Callable, outputs: Outputs, targets: Any, count: int | None) -> None:
    """Raise a `ValueError` if the loss pairs each sample with the targets of all others."""
    found = _column_and_row(outputs, targets, count)
    if found is None:
        return
    many = lambda x: jax.ShapeDtypeStruct((COUNT, *x.shape[1:]), x.dtype) if eqx.is_array(x) else x
    dynamic, static = eqx.partition(jax.tree.map(many, (outputs, targets)), _is_shape)
    try:
        program = trace(lambda given: loss(*eqx.combine(given, static)), dynamic)
    except Exception:
        # A loss that is tied to its number of samples is not asked.
        return
    if any(shape.count(COUNT) > 1 for shape in _shapes(program.jaxpr)):
        z, y = found
        cure = "targets[:, None]" if len(z) == 2 else "targets[:, 0]"
        raise ValueError(
            f"the loss broadcasts outputs of shape {z} and targets of shape {y} to all pairs of "
            f"samples, ({count}, {count}). Give the targets the shape of the outputs, {cure}."
        )


def _column_and_row(outputs: Any, targets: Any, count: int | None) -> tuple[Any, Any] | None:
    """Return the shapes of outputs and targets of which one is (N, 1) and the other (N,)."""
    row, column = (count,), (count, 1)
    shapes = [{x.shape for x in jax.tree.leaves(t) if eqx.is_array(x)} for t in (outputs, targets)]
    for z, y in ((column, row), (row, column)):
        if count is not None and count > 1 and z in shapes[0] and y in shapes[1]:
            return z, y
    return None


def _is_shape(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def _shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of all values of a program."""
    for eqn in jaxpr.eqns:
        yield from (tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars)
        for program in inner_programs(eqn):
            yield from _shapes(program.jaxpr)
