"""What a claim is: a statement, its place in a source, and the measured numbers that decide it.

A claim is run in float64 from a random key, against references that share no code with what they
check. Each measured number is a `Row`: a number, the bound it is compared with, and a role. A row
tests the statement as the source makes it, or as we correct it, or it is a control without which
the other rows mean nothing. The verdict is computed from the rows:

| stated rows | corrected rows | verdict |
|---|---|---|
| all hold | - | holds |
| not all hold | there are some, and all hold | holds with correction |
| not all hold | none, or not all hold | does not hold |
| none | - | not decidable here |

A stated row that the correction keeps counts in both columns: the claim does not hold with
correction if such a row fails.

There is no verdict if a control fails or the claim raises. `Claim.verdict` is the verdict on
record; a run that reaches a different one is reported as such.

This module imports neither JAX nor NumPy, so that the command line can list names at once.
"""

import dataclasses
import enum
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


KEYS = 20
"""The number of random keys, besides the one on record, from which every claim was run."""


class Verdict(enum.Enum):
    """The outcome of a claim."""

    HOLDS = "holds"
    CORRECTED = "holds with correction"
    FAILS = "does not hold"
    OPEN = "not decidable here"


class Role(enum.Enum):
    """What a row tests."""

    STATED = "as stated"
    KEPT = "as stated, kept"
    """A part of the statement that the correction keeps."""
    CORRECTED = "as corrected"
    CONTROL = "control"


class Row(NamedTuple):
    """One measured number, its bound, and whether it satisfies the bound."""

    label: str
    measured: float
    relation: str
    """One of ≤, ≥, =."""
    bound: float
    holds: bool
    role: Role = Role.STATED


class Budget(NamedTuple):
    """The size of a run."""

    full: bool = False
    """Whether to use the problem sizes of the papers; otherwise sizes that take seconds."""
    seeds: int = 1
    """The number of repetitions of what is random."""
    key: int = 0
    """The base of the random keys; verdicts on record are those of 0."""

    @property
    def label(self) -> str:
        """The word for the size on the command line."""
        return "full" if self.full else "quick"


class Measured(NamedTuple):
    """What a run of a claim returns."""

    rows: tuple[Row, ...]
    data: Mapping[str, Any] = {}
    """Arrays and numbers for the figure, by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement that can be run.

    **Arguments:**

    - `name`: the name by which the command line runs the claim.
    - `source`: the document, a key of `SOURCES`.
    - `place`: the place in the document.
    - `statement`: what the source claims, as we read it, with its provisos.
    - `verdict`: the verdict on record.
    - `run`: makes the measurements from a budget and a key.
    - `quotation`: the source's own words, short, "..." for what is left out, formulas in plain
        text; the empty string where it has only formulas, and for our own results.
    - `correction`: what is wrong in the source and what is right; the empty string if nothing is.
    - `stands`: whether the conclusion that the source draws survives the correction; `None` unless
        the verdict is `CORRECTED`.
    - `remark`: what we found beside a statement that holds; the empty string if nothing.
    - `draw`: draws `Measured.data` as read back from disk (tuples become lists); the first
        paragraph of its docstring is the figure's alt text. `None` if there is nothing to draw.
    - `key_number`: the label of the row shown in a summary; defaults to the first row.
    - `keys`: how many of the random keys 1 to `KEYS` give the verdict on record at quick size;
        `pullback keys` counts them. The default is all.
    """

    name: str
    source: str
    place: str
    statement: str
    verdict: Verdict
    run: Callable[[Budget, "PRNGKeyArray"], Measured]
    quotation: str = ""
    correction: str = ""
    stands: bool | None = None
    remark: str = ""
    draw: Callable[[Mapping[str, Any]], Any] | None = None
    key_number: str = ""
    keys: int = KEYS

    def __post_init__(self) -> None:
        if (self.stands is None) == (self.verdict is Verdict.CORRECTED):
            raise ValueError(
                f"the claim {self.name!r}: `stands` says whether the conclusion survives the "
                f"correction, and is given if, and only if, the verdict is "
                f"{Verdict.CORRECTED.value!r}."
            )
        if not 0 <= self.keys <= KEYS:
            raise ValueError(
                f"the claim {self.name!r}: `keys` counts keys out of {KEYS}, got {self.keys}."
            )

    def measure(self, budget: Budget = Budget()) -> Measured:  # noqa: B008 (a tuple of numbers)
        """Run the claim from a key of its own, which does not depend on the order of the claims."""
        import jax
        import jax.numpy as jnp

        if jnp.result_type(float) != jnp.float64:
            raise RuntimeError(
                "claims are measured in float64: call "
                'jax.config.update("jax_enable_x64", True) before creating any array.'
            )
        key = jax.random.fold_in(jax.random.key(budget.key), zlib.crc32(self.name.encode()))
        return self.run(budget, key)


SOURCES = {
    "invariance": (
        "van Oostrum, Müller, Ay: Invariance properties of the natural gradient in overparametrised"
        " systems"
    ),
    "abstract": (
        "van Oostrum, Ay: Parametrisation independence of the natural gradient in overparametrised"
        " systems (extended abstract)"
    ),
    "depth": "Kerekes, Mészáros, Huszár: Depth without the magic",
    "lecture": "Grosse: Neural net training dynamics, lecture 3",
    "ours": "what the sources leave open",
}
"""The documents by key. Each key is also the name of a folder here."""


def at_most(label: str, measured: Any, bound: float, role: Role = Role.STATED) -> Row:
    """A row that holds if the number is at most the bound."""
    return _row(label, measured, "≤", bound, bool(measured <= bound), role)


def at_least(label: str, measured: Any, bound: float, role: Role = Role.STATED) -> Row:
    """A row that holds if the number is at least the bound."""
    return _row(label, measured, "≥", bound, bool(measured >= bound), role)


def equals(label: str, measured: Any, expected: float, role: Role = Role.STATED) -> Row:
    """A row that holds if a count is the expected one."""
    return _row(label, measured, "=", expected, bool(measured == expected), role)


def _row(label: str, measured: Any, relation: str, bound: float, holds: bool, role: Role) -> Row:
    """A row; raises a `ValueError` for a bound that holds always or never."""
    if not math.isfinite(bound):
        raise ValueError(f"the row {label!r} needs a finite bound, got {bound}.")
    return Row(label, float(measured), relation, bound, holds, role)


def judge(rows: Iterable[Row]) -> Verdict | None:
    """The verdict that follows from the rows; `None` if a control fails or there are no rows."""
    rows = tuple(rows)
    by = {role: [row.holds for row in rows if row.role is role] for role in Role}
    if not rows or not all(by[Role.CONTROL]):
        return None
    stated, kept, corrected = by[Role.STATED], by[Role.KEPT], by[Role.CORRECTED]
    if not (stated or kept):
        return Verdict.OPEN
    if all(stated + kept):
        return Verdict.HOLDS
    return Verdict.CORRECTED if corrected and all(corrected + kept) else Verdict.FAILS
