"""What an example is: a statement, where it was made, and the numbers that are held against it.

A row is `(label, measured, bound, holds)`; `at_most`, `at_least` and `equals` make one. An example is measured in float64, on fixed
seeds, against references that share no code with what they check.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Row(NamedTuple):
    """One measured number, the bound it is held against, and whether it keeps to it."""

    label: str
    measured: float
    bound: float
    holds: bool


@dataclasses.dataclass(frozen=True)
class Example:
    """A statement that can be measured.

    **Arguments:**

    - `name`: what to type to run it alone.
    - `source`: where the statement was made.
    - `statement`: what is claimed, in a sentence or two; if the source is in error, the claim is the corrected one and says so.
    - `measure`: makes the rows.
    """

    name: str
    source: str
    statement: str
    measure: Callable[[], Iterable[Row]]

    def run(self) -> Iterator[Row]:
        """The rows, one at a time. Float64 must have been switched on."""
        if jnp.result_type(float) != jnp.float64:
            raise RuntimeError(
                'the examples are measured in float64: jax.config.update("jax_enable_x64", True) before any array is made.'
            )
        yield from self.measure()


def at_most(label: str, measured: Any, bound: float) -> Row:
    """A number that must be small.

    **Arguments:**

    - `label`: what was measured.
    - `measured`: the number.
    - `bound`: the largest it may be.
    """
    return Row(label, float(measured), bound, bool(measured <= bound))


def at_least(label: str, measured: Any, bound: float) -> Row:
    """A number that must be large: that a difference is there, that a wrong formula is caught.

    **Arguments:**

    - `label`: what was measured.
    - `measured`: the number.
    - `bound`: the smallest it may be.
    """
    return Row(label, float(measured), bound, bool(measured >= bound))


def equals(label: str, measured: Any, expected: float) -> Row:
    """A count.

    **Arguments:**

    - `label`: what was counted.
    - `measured`: the number.
    - `expected`: what it must be, exactly.
    """
    return Row(label, float(measured), expected, bool(measured == expected))


def distance(a: Any, b: Any) -> float:
    """The norm of a - b relative to that of b; absolute if b is zero.

    **Arguments:**

    - `a`, `b`: arrays of one shape.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))
