"""Run examples and keep what they measured. An example that raises is an outcome too, and does not stop the others."""

import dataclasses
import datetime
import importlib.metadata
import json
import math
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol


class Example(Protocol):
    """What can be run: a statement, where it was made, and how to measure it."""

    @property
    def name(self) -> str:
        """What to type to run it alone."""
        ...

    @property
    def source(self) -> str:
        """Where the statement was made."""
        ...

    @property
    def statement(self) -> str:
        """What is claimed, in a sentence or two."""
        ...

    def run(self) -> Iterable[tuple[str, float, float, bool]]:
        """The rows `(label, measured, bound, holds)`."""
        ...


@dataclasses.dataclass(frozen=True)
class Row:
    """One measured number, the bound it is held against, and whether it keeps to it."""

    label: str
    measured: float
    bound: float
    holds: bool

    @property
    def relation(self) -> str:
        """How the measured number is held against the bound: a row is one of `measured ≤ bound`, `= bound`, `≥ bound`."""
        if self.measured == self.bound:
            return "="
        return "≤" if (self.measured < self.bound) == self.holds else "≥"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one example measured; `error` is the traceback if it raised."""

    name: str
    source: str
    statement: str
    rows: tuple[Row, ...]
    seconds: float
    error: str | None = None

    @property
    def holds(self) -> bool:
        """Whether something was measured and all of it holds."""
        return self.error is None and bool(self.rows) and all(row.holds for row in self.rows)


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcomes of a run, and what it was run with."""

    outcomes: tuple[Outcome, ...]
    started: str
    seconds: float
    versions: dict[str, str]
    planned: int

    @property
    def complete(self) -> bool:
        """Whether every planned example was run."""
        return len(self.outcomes) == self.planned

    @property
    def holds(self) -> bool:
        """Whether the run is complete, not empty, and all of it holds."""
        return self.complete and bool(self.outcomes) and all(outcome.holds for outcome in self.outcomes)

    @property
    def verdict(self) -> str:
        """The run in one line."""
        good, rows = sum(outcome.holds for outcome in self.outcomes), sum(len(outcome.rows) for outcome in self.outcomes)
        cut = "" if self.complete else f" Interrupted: {len(self.outcomes)} of {self.planned} were run."
        return f"{good} of {len(self.outcomes)} examples hold ({rows} measured numbers, {self.seconds:.0f} s).{cut}"

    def json(self) -> str:
        """The report as JSON; numbers that JSON does not have become the strings `"nan"`, `"inf"` and `"-inf"`."""
        plain = dataclasses.asdict(self) | {"holds": self.holds, "complete": self.complete, "verdict": self.verdict}
        plain["outcomes"] = [item | {"holds": o.holds} for item, o in zip(plain["outcomes"], self.outcomes, strict=True)]
        return json.dumps(_finite(plain), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def run(examples: Sequence[Example], before: Callable[[Example], Any] = lambda example: None) -> Report:
    """Run the examples in order. Ctrl-C ends the run and keeps what was measured.

    **Arguments:**

    - `examples`: what to run.
    - `before`: called with each example when its turn comes.
    """
    started, clock, outcomes = datetime.datetime.now(datetime.UTC), time.perf_counter(), []
    try:
        for example in examples:
            before(example)
            outcomes.append(_outcome(example))
    except KeyboardInterrupt:
        pass
    stamp = started.strftime("%Y-%m-%d %H:%M UTC")
    return Report(tuple(outcomes), stamp, time.perf_counter() - clock, _versions(), len(examples))


def _outcome(example: Example) -> Outcome:
    clock, rows, error = time.perf_counter(), [], None
    try:
        for label, measured, bound, holds in example.run():
            rows.append(Row(str(label), float(measured), float(bound), bool(holds)))
    except Exception:
        error = traceback.format_exc(limit=-4)
    seconds = time.perf_counter() - clock
    return Outcome(example.name, example.source, example.statement, tuple(rows), seconds, error)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("pullback", "jax", "jaxlib", "equinox", "lineax", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"machine": f"{platform.system()} {platform.machine()}"}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
