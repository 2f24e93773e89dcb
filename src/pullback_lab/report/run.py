"""Run claims, keep what is finished, and make a report of it.

A claim with a whole result of the same stamp in the folder is not run again; one that raised, or
whose file is damaged, is. The longest go first, as far as earlier results tell, so that the
processes end together.
"""

import dataclasses
import importlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..papers import Budget, Claim
from .perform import describe
from .result import Damaged, Result, load, save, write_whole
from .stamp import now, stamp, versions
from .workers import Worker, run_all


class Watcher(Protocol):
    """What is told about a run while it lasts."""

    def note(self, text: str) -> None:
        """Something the user should know."""
        ...

    def begin(self, total: int, done: int) -> None:
        """How many claims there are, and how many were finished before."""
        ...

    def finished(self, result: Result) -> None:
        """A claim is done."""
        ...

    def tick(self, workers: list[Worker], left: float | None) -> None:
        """What runs now, and the seconds that are left."""
        ...


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a run, and what it was run with."""

    results: tuple[Result, ...]
    """Of the chosen claims, and of the others that have a valid result of the same budget."""
    chosen: tuple[str, ...]
    missing: tuple[str, ...]
    """Claims that have no result: of those chosen, if the run was interrupted; of the others, if
    they were never run.
    """
    budget: Budget
    date: str
    versions: dict[str, str]

    @property
    def complete(self) -> bool:
        """Whether every chosen claim has a result."""
        return not set(self.chosen) & set(self.missing)

    @property
    def differing(self) -> tuple[Result, ...]:
        """Chosen claims whose verdict is not the one on record."""
        return tuple(result for result in self.results if result.name in self.chosen and not result.agrees)

    @property
    def sentence(self) -> str:
        """The run in one line."""
        chosen = [result for result in self.results if result.name in self.chosen]
        agree, rows = sum(result.agrees for result in chosen), sum(len(result.rows) for result in chosen)
        work = sum(result.seconds for result in chosen)
        cut = "" if self.complete else f" Interrupted: {len(self.chosen) - len(chosen)} of {len(self.chosen)} were not finished."
        return f"{agree} of {len(chosen)} verdicts are those on record ({rows} measured numbers, {work:.0f} s of work).{cut}"

    def json(self) -> str:
        """As JSON, without the data of the figures."""
        content = {
            "date": self.date,
            "budget": "full" if self.budget.full else "quick",
            "seeds": self.budget.seeds,
            "versions": self.versions,
            "complete": self.complete,
            "missing": self.missing,
            "results": [result.plain() | {"agrees": result.agrees} for result in self.results],
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def reproduce(names: Sequence[str], registry: str, folder: Path, budget: Budget, watcher: Watcher) -> Report:
    """Run claims and report. Ctrl-C ends the run and keeps what is finished."""
    claims: Mapping[str, Claim] = importlib.import_module(registry).claims()
    chosen = tuple(names) or tuple(claims)
    store = folder / "claims"
    store.mkdir(parents=True, exist_ok=True)
    for leftover in store.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)

    found, expected = _look(claims, chosen, store, budget, watcher)
    todo = [name for name in chosen if name not in found]
    guess = lambda name: expected.get(name, float("inf"))
    todo.sort(key=guess, reverse=True)
    watcher.begin(len(chosen), len(chosen) - len(todo))

    def finished(name: str, trouble: str | None) -> None:
        if trouble is not None:
            result = describe(claims[name], budget, error=f"The claim did not come to an end: {trouble}.")
        else:
            result = load(store, name)
            assert result is not None
        if trouble is not None and "could not be written" not in trouble:
            result = save(result, store)
        found[name], expected[name] = result, result.seconds
        watcher.finished(result)

    def tick(workers: list[Worker]) -> None:
        watcher.tick(workers, _left([name for name in todo if name not in found], workers, expected))

    try:
        run_all(todo, lambda: Worker(registry, store, budget), _cores(), finished, tick)
    except KeyboardInterrupt:
        # A worker may have written what it has not told yet.
        found |= _look(claims, [name for name in todo if name not in found], store, budget, None)[0]
        watcher.note("Interrupted. What is finished is kept; the same command goes on from here.")
    others = _look(claims, [name for name in claims if name not in chosen], store, budget, None)[0]
    together = found | others
    results = tuple(together[name] for name in claims if name in together)
    missing = tuple(name for name in claims if name not in together)
    return Report(results, chosen, missing, budget, now(), versions())


def _look(
    claims: Mapping[str, Claim], names: Sequence[str], store: Path, budget: Budget, watcher: Watcher | None
) -> tuple[dict[str, Result], dict[str, float]]:
    """Results that can be used again, and how long each claim took, whatever its stamp."""
    found, seconds, outdated = {}, {}, []
    for name in names:
        try:
            result = load(store, name)
        except Damaged as damage:
            if watcher is not None:
                watcher.note(f"{store / name}.json is damaged ({damage}): {name} is run again.")
            continue
        if result is None:
            continue
        if result.stamp.get("full") == budget.full and result.stamp.get("seeds") == budget.seeds:
            seconds[name] = result.seconds
        if result.error is None and result.stamp == stamp(claims[name], budget):
            found[name] = result
        elif result.error is None:
            outdated.append(name)
    if outdated and watcher is not None:
        watcher.note(f"Results made with another budget, version or source are not used again: {', '.join(outdated)}.")
    return found, seconds


def _left(names: list[str], workers: list[Worker], expected: Mapping[str, float]) -> float | None:
    """The seconds that are left, if anything is known; claims never run before are taken to be like
    the others.
    """
    known = list(expected.values())
    if not known:
        return None
    running = {worker.claim: time.monotonic() - worker.since for worker in workers if worker.claim}
    mean = sum(known) / len(known)
    work = [max(expected.get(name, mean) - running.get(name, 0.0), 0.0) for name in names]
    return max(sum(work) / max(min(len(workers), len(names)), 1), max(work, default=0.0))


def _cores() -> int:
    try:
        return max(len(os.sched_getaffinity(0)), 1)  # what this process may use, which a container may have narrowed
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def publish(report: Report, folder: Path, page: Any, summary: Any) -> Path:
    """Write `index.html`, `summary.md` and `results.json`; the path of the page."""
    write_whole(folder / "results.json", report.json().encode())
    write_whole(folder / "summary.md", summary(report).encode())
    write_whole(folder / "index.html", page(report, folder / "claims").encode())
    return folder / "index.html"
