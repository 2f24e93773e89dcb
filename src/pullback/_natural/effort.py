"""How hard XLA works on a program that is called directly: less where compiling is the wait.

A natural gradient of a small problem takes milliseconds, and its program seconds to compile. There
effort 0 halves the wait against effort 1 for steps that are up to a half slower
(`python -m bench.first_step`). A convolution or a loop in the model suffers more at effort 0, two
to three times, and takes effort 1. A loop of many steps goes over to full effort when the time that
it lost is about that of compiling; `fit` takes full effort from the start. What is taken depends on
the problem and the number of the step only, so that a repeated loop has the same bits.
"""

import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax

from .._base.types import Params
from .._compat.jaxpr import contains
from .._problem.batch import AnyBatch, Batch, entries
from .._problem.composite import Composite
from .._problem.padding import bare
from .._problem.problem import AbstractProblem

SLOW = ("conv_general_dilated", "scan", "while")
"""What effort 0 makes two to three times slower."""

SMALL = 2**22
"""Up to how many parameters times samples a problem is small."""
PATIENCE = 2**27
"""Parameters times samples times steps after which full effort pays."""

EFFORTS: tuple[int | None, ...] = (None, 1, 0)

_slow: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()


class Efforts(NamedTuple):
    """How hard XLA works on the steps of a loop."""

    first: int | None
    """The effort of the first steps, `None` for all of it."""
    until: int
    """The number of the step from which all of it is taken."""

    def at(self, step: int) -> int | None:
        """Return the effort of a step."""
        return self.first if step < self.until else None

    def left(self, step: int, count: int) -> int:
        """Return how many of `count` steps from `step` on have the effort of the first of them."""
        return min(count, self.until - step) if step < self.until else count


FULL = Efforts(None, 0)


def effort(problem: AbstractProblem, params: Params, *batches: AnyBatch | None) -> Efforts:
    """Return the efforts for a problem at a point."""
    size = entries(params, *batches)
    if size is None or size > SMALL:
        return FULL
    assert batches[0] is not None
    try:
        parts = zip(problem.terms, batches[0].parts, strict=True)
        slow = [_has_loop(term, params, part) for term, part in parts]
    except TypeError:
        # A model that holds arrays has no hash, and no weak reference is kept of a bound method.
        slow = [True]
    return Efforts(1 if any(slow) else 0, PATIENCE // max(size, 1) + 1)


def _has_loop(problem: Composite, params: Params, batch: Batch) -> bool:
    """Return `_is_slow`, found out once for each model."""
    slow = _slow.get(problem.model)
    if slow is None:
        _slow[problem.model] = slow = _is_slow(problem, params, bare(batch))
    return slow


def _is_slow(problem: Composite, params: Params, batch: Any) -> bool:
    """Return whether the program of the model has a convolution or a loop."""
    arrays, static = eqx.partition((params, batch.inputs), eqx.is_array)
    outputs = lambda arrays: eqx.filter(problem.outputs(*eqx.combine(arrays, static)), eqx.is_array)
    # Shapes only: a sharding that is part of the type has no place here.
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    return contains(jax.make_jaxpr(outputs)(shapes), SLOW)
