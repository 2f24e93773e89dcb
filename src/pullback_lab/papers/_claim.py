"""What a claim is: a statement, where it was made, and the numbers that decide it.

A claim is run in float64 from a key, against references that share no code with what they check.
Each measured number is a `Row` with the bound it is held against and a role: it tests the statement
as the source makes it, or as we correct it, or it is a control without which the others mean
nothing. The verdict is computed from the rows, never written down beside them:

| stated rows | corrected rows | verdict |
|---|---|---|
| all hold | - | holds |
| not all hold | there are some, and all hold | holds with correction |
| not all hold | none, or not all hold | does not hold |
| none | - | not decidable here |

A control that fails, or an error, leaves no verdict. `Claim.verdict` is the one on record; a run
that comes to another is reported as such.
"""

import dataclasses
import enum
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray


class Verdict(enum.Enum):
    """What became of a statement."""

    HOLDS = "holds"
    CORRECTED = "holds with correction"
    FAILS = "does not hold"
    OPEN = "not decidable here"


class Role(enum.Enum):
    """What a number is held against."""

    STATED = "as stated"
    CORRECTED = "as corrected"
    CONTROL = "control"


class Row(NamedTuple):
    """One measured number, the bound it is held against, and whether it keeps to it."""

    label: str
    measured: float
    relation: str
    """One of ≤, ≥, =."""
    bound: float
    holds: bool
    role: Role = Role.STATED


class Budget(NamedTuple):
    """How much may be spent."""

    full: bool = False
    """The sizes of the paper; if not, sizes that take seconds."""
    seeds: int = 1
    """How many repetitions where chance plays a part."""


class Measured(NamedTuple):
    """What a run gives."""

    rows: tuple[Row, ...]
    data: Mapping[str, Any] = {}
    """Arrays and numbers for the figure, by name."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement that can be run.

    **Arguments:**

    - `name`: what to type to run it alone.
    - `source`: the document, a key of `SOURCES`.
    - `place`: where in it.
    - `statement`: what is claimed, in our words, as the source has it.
    - `verdict`: the verdict on record.
    - `run`: makes the measurements from a budget and a key.
    - `correction`: what is wrong in the source and what is right; the empty string if nothing is.
    - `figure`: draws `Measured.data` (as it comes back from disk: tuples as lists); the first line
        of its docstring is what a reader who does not see the picture is told. `None` if there is
        nothing to draw.
    - `key_number`: the label of the row that stands for the claim in a summary; the first if left
        out.
    """

    name: str
    source: str
    place: str
    statement: str
    verdict: Verdict
    run: Callable[[Budget, PRNGKeyArray], Measured]
    correction: str = ""
    figure: Callable[[Mapping[str, Any]], Any] | None = None
    key_number: str = ""

    def measure(self, budget: Budget = Budget()) -> Measured:  # noqa: B008 (a tuple of numbers)
        """Run it from its own key, which no other claim shares and which no order of running
        changes.
        """
        require_float64()
        return self.run(
            budget, jax.random.fold_in(jax.random.key(0), zlib.crc32(self.name.encode()))
        )


SOURCES = {
    "invariance": "van Oostrum, Müller, Ay: Invariance properties of the natural gradient in overparametrised systems",
    "abstract": "van Oostrum, Ay: Parametrisation independence of the natural gradient in overparametrised systems (extended abstract)",
    "depth": "Kerekes, Mészáros, Huszár: Depth without the magic",
    "lecture": "Grosse: Neural net training dynamics, lecture 3",
    "ours": "what the sources leave open",
}
"""The documents, by key: also the names of the folders here."""


def at_most(label: str, measured: Any, bound: float, role: Role = Role.STATED) -> Row:
    """A number that must be small."""
    return Row(label, float(measured), "≤", bound, bool(measured <= bound), role)


def at_least(label: str, measured: Any, bound: float, role: Role = Role.STATED) -> Row:
    """A number that must be large."""
    return Row(label, float(measured), "≥", bound, bool(measured >= bound), role)


def equals(label: str, measured: Any, expected: float, role: Role = Role.STATED) -> Row:
    """A count."""
    return Row(label, float(measured), "=", expected, bool(measured == expected), role)


def judge(rows: Iterable[Row]) -> Verdict | None:
    """The verdict that rows lead to; `None` if a control fails."""
    rows = tuple(rows)
    by = {role: [row.holds for row in rows if row.role is role] for role in Role}
    if not rows or not all(by[Role.CONTROL]):
        return None
    if not by[Role.STATED]:
        return Verdict.OPEN
    if all(by[Role.STATED]):
        return Verdict.HOLDS
    corrected = by[Role.CORRECTED]
    return Verdict.CORRECTED if corrected and all(corrected) else Verdict.FAILS


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's generator from a key of JAX."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def distance(a: Any, b: Any) -> float:
    """The norm of a - b relative to that of b; absolute if b is zero."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of the angle between two vectors."""
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def require_float64() -> None:
    """Refuse to measure in float32."""
    if jnp.result_type(float) != jnp.float64:
        raise RuntimeError(
            'claims are measured in float64: jax.config.update("jax_enable_x64", True) before any array is made.'
        )
