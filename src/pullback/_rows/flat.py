"""The program of a model as one list of equations: calls inlined, repeated equations merged.

Values have numbers: the arguments of the program first, then the constants, then the results. What
no result needs is left out (`needed`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._compat.jaxpr import (
    JaxEquation,
    Program,
    called,
    evaluate,
    is_literal,
    with_own_derivative,
)


class Step(NamedTuple):
    """One equation: a function of some values, and of the number of a sample."""

    run: Callable[[Sequence[Any], Any], Sequence[Any]]
    args: tuple[int, ...]
    results: tuple[int, ...]


class Equation(NamedTuple):
    """One equation of a program, with the numbers of its values; `None` for a literal."""

    program: Program
    eqn: JaxEquation
    args: tuple[int | None, ...]
    results: tuple[int, ...]

    def step(self, eqn: JaxEquation | None = None, args: Sequence[int] | None = None) -> Step:
        """The equation as a step, perhaps with other parameters and other arguments."""
        program, eqn = self.program, self.eqn if eqn is None else eqn
        given = tuple(arg for arg in self.args if arg is not None) if args is None else tuple(args)

        def run(values, index):
            values = iter(values)
            return evaluate(program, eqn, [next(values) if a is not None else None for a in names])

        names = self.args
        return Step(run, given, self.results)


class Flat:
    """A program as a list of equations."""

    def __init__(self, program: Program):
        """Inline the calls of a program."""
        self.equations: list[Equation] = []
        self.constants: dict[int, Any] = {}
        self.count = len(program.inputs)
        self._seen: dict[Any, tuple[int, ...]] = {}
        self.inputs = tuple(range(self.count))
        self.outputs = self._inline(program, self.inputs)

    def fresh(self) -> int:
        """A number that no value has."""
        self.count += 1
        return self.count - 1

    def _constant(self, value: Any) -> int:
        number = self.fresh()
        self.constants[number] = value
        return number

    def _inline(self, program: Program, args: Sequence[int]) -> tuple[int, ...]:
        """Add the equations of a program; return the numbers of its results."""
        env = dict(zip(program.inputs, args, strict=True))
        for name, value in zip(program.jaxpr.constvars, program.consts, strict=True):
            env[name] = self._constant(value)

        def number(name):
            if not is_literal(name):
                return env[name]
            return self._constant(np.asarray(name.val, name.aval.dtype))

        for eqn in program.jaxpr.eqns:
            inner = called(eqn)
            if inner is not None:
                results = self._inline(inner, [number(v) for v in eqn.invars])
            else:
                # A derivative rule takes all arguments as values.
                values = with_own_derivative(eqn) is not None
                given = tuple(
                    None if is_literal(v) and not values else number(v) for v in eqn.invars
                )
                results = self._add(program, eqn, given)
            env.update(zip(eqn.outvars, results, strict=True))
        return tuple(number(v) for v in program.outputs)

    def _add(
        self, program: Program, eqn: JaxEquation, args: tuple[int | None, ...]
    ) -> tuple[int, ...]:
        """Add an equation unless the same one is there: the mean, and the mean in the variance."""
        literals = tuple((str(v.val), v.aval.dtype) if is_literal(v) else None for v in eqn.invars)
        key = (eqn.primitive.name, args, literals, tuple(sorted(eqn.params.items())))
        try:
            known = self._seen.get(key)
        except TypeError:  # A parameter that cannot be compared: never the same.
            known, key = None, object()
        if known is None:
            known = tuple(self.fresh() for _ in eqn.outvars)
            self._seen[key] = known
            self.equations.append(Equation(program, eqn, args, known))
        return known


def needed(steps: Sequence[Step], results: Iterable[int]) -> tuple[list[Step], set[int]]:
    """The steps that some values need, and the numbers of all values that they use."""
    live = set(results)
    kept = []
    for step in reversed(steps):
        if live.intersection(step.results):
            kept.append(step)
            live.update(step.args)
    return kept[::-1], live


def run(steps: Sequence[Step], env: dict[int, Any], index: Any = None) -> dict[int, Any]:
    """The values after some steps."""
    env = dict(env)
    for step in steps:
        env.update(zip(step.results, step.run([env[a] for a in step.args], index), strict=True))
    return env
