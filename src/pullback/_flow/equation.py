r"""`Equation`: \(d\theta/ds = -e^{a(s)}\,v(\theta)\) on flat parameters, with \(a = \log dt/ds\) of
the clock.

It is the `args` of diffrax: data travel as arguments, so that another dataset of the same shape
compiles nothing.
"""

from typing import Any

import equinox as eqx
from jaxtyping import Array, PyTree

from .._base.reads import Reads, reads
from .._base.tree import Structure, split, structure
from .._base.types import Flat, Params, Scalar
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractObjective, AbstractProblem
from ..event import Inspection
from .clock import AbstractClock
from .fields import AbstractFlow


class Equation(eqx.Module):
    """A field on a batch, in the time of a clock."""

    problem: AbstractProblem
    batch: AnyBatch
    kind: AbstractFlow
    clock: AbstractClock
    t0: Scalar
    carried: PyTree
    """The leaves of the parameters that are not differentiated."""
    like: Structure = eqx.field(static=True)
    outside: Reads = eqx.field(static=True)
    """What the functions of the problem read: diffrax compiles with the equation as an argument."""

    def __repr__(self) -> str:
        return f"Equation({self.kind!r}, {self.clock!r}, {self.problem!r})"

    def __init__(
        self,
        problem: AbstractProblem,
        params: Params,
        batch: AnyBatch,
        kind: AbstractFlow,
        clock: AbstractClock,
        t0: Scalar,
    ):
        self.problem = problem
        self.batch = batch
        self.kind = kind
        self.clock = clock
        self.t0 = t0
        self.carried = split(params)[1]
        self.like = structure(params)
        self.outside = reads((problem, kind))

    @property
    def objective(self) -> AbstractObjective:
        """The problem on the batch."""
        return self.problem.at(self.batch)

    def params(self, flat: Flat) -> Params:
        """Return the parameters of a state."""
        return eqx.combine(self.like.unravel(flat), self.carried)

    def time(self, reading: Array) -> Array:
        """Return t at a reading of the clock."""
        return self.t0 + self.clock.elapsed(reading)

    def reading(self, t: Array) -> Array:
        """Return the reading of the clock at t."""
        return self.clock.read(t - self.t0)


# Compiled functions of their own, although compiled code calls them: they are then traced once, not
# at every stage and event.
@eqx.filter_jit
def velocity(s: Any, y: Flat, equation: Equation) -> Flat:
    """Return the right-hand side, as diffrax calls it."""
    log_rate = equation.clock.log_rate(s)
    params = equation.params(y)
    found = equation.kind.velocity(equation.problem, params, equation.batch, log_rate)
    return found.astype(y.dtype)


@eqx.filter_jit
def inspect(y: Flat, equation: Equation) -> Inspection:
    """Return what is known of the field at a state."""
    return equation.kind.inspect(equation.problem, equation.params(y), equation.batch)


def loss(s: Scalar, y: Flat, equation: Equation) -> Scalar:
    """Return the loss at a state, as diffrax calls it."""
    return equation.objective.value(equation.params(y))
