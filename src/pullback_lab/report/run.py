"""Runs claims and keeps finished results.

A claim is not run again if the folder holds a valid result with the same stamp. It is run again if
it raised or if its file is damaged. The claims with the longest earlier runs go first, so that the
processes end at about the same time.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..papers import Budget, Claim
from .files import remove_leftovers
from .perform import describe
from .report import Report
from .result import Damaged, Result, load, save
from .stamp import now, stamp, versions
from .workers import Ending, Message, Task, Worker, run_all


class Watcher(Protocol):
    """Receives the progress of a run."""

    def note(self, text: str) -> None:
        """Show a message to the user."""
        ...

    def begin(self, total: int, done: int) -> None:
        """The number of claims, and of those that were finished before."""
        ...

    def finished(self, result: Result) -> None:
        """A claim is finished."""
        ...

    def tick(self, workers: list[Worker], left: float | None) -> None:
        """The workers now, and an estimate of the seconds left."""
        ...


def reproduce(
    claims: Mapping[str, Claim],
    names: Sequence[str],
    folder: Path,
    budget: Budget,
    watcher: Watcher,
) -> Report:
    """Run claims and return a report; after Ctrl-C, a report on what is finished.

    **Arguments:**

    - `claims`: the registry, which must be picklable.
    - `names`: the claims to run; all of them if empty.
    - `folder`: where results are kept, in the subfolder `claims`.
    - `budget`: the size of the run.
    - `watcher`: receives the progress.
    """
    chosen = tuple(names) or tuple(claims)
    store = folder / "claims"
    store.mkdir(parents=True, exist_ok=True)
    remove_leftovers(store)

    found, expected = earlier(claims, chosen, store, budget, watcher)
    todo = [name for name in chosen if name not in found]
    todo.sort(key=lambda name: expected.get(name, float("inf")), reverse=True)
    watcher.begin(len(chosen), len(chosen) - len(todo))

    def finished(task: Task, message: Message) -> None:
        result = result_of(claims[task.name], message, task)
        found[task.name] = result
        expected[task.name] = result.seconds
        watcher.finished(result)

    def tick(workers: list[Worker]) -> None:
        rest = [name for name in todo if name not in found]
        watcher.tick(workers, _seconds_left(rest, workers, expected))

    try:
        tasks = [Task(name, store, budget) for name in todo]
        run_all(tasks, lambda: Worker(claims), cores(), finished, tick)
    except KeyboardInterrupt:
        # A worker may have written a result without having sent its message.
        found |= earlier(claims, [name for name in todo if name not in found], store, budget)[0]
        watcher.note("Interrupted. Finished results are kept; the same command resumes the run.")
    others = [name for name in claims if name not in chosen]
    together = found | earlier(claims, others, store, budget)[0]
    results = tuple(together[name] for name in claims if name in together)
    missing = tuple(name for name in claims if name not in together)
    return Report(results, chosen, missing, budget, now(), versions())


def result_of(claim: Claim, message: Message, task: Task) -> Result:
    """The result of a claim that has ended; one that did not end well is described here."""
    detail = message.detail
    if message.ending is Ending.SAVED:
        try:
            result = load(task.folder, claim.name)
        except Damaged as damage:
            result, detail = None, f"its result was damaged by another process ({damage})"
        if result is not None:
            return result
        detail = detail or "its result was removed by another process"
    result = describe(claim, task.budget, error=f"The claim did not come to an end: {detail}.")
    if message.ending is not Ending.DIED:
        # If the worker could not write its result, neither can this process.
        return result
    try:
        return save(result, task.folder)
    except OSError:
        return result


def earlier(
    claims: Mapping[str, Claim],
    names: Iterable[str],
    store: Path,
    budget: Budget,
    watcher: Watcher | None = None,
) -> tuple[dict[str, Result], dict[str, float]]:
    """Earlier results that are still valid, and the seconds of earlier runs of the same budget."""
    found: dict[str, Result] = {}
    seconds: dict[str, float] = {}
    outdated = []
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
        watcher.note(
            "Results made with another budget, version or source are not used again: "
            f"{', '.join(outdated)}."
        )
    return found, seconds


def _seconds_left(
    names: list[str], workers: list[Worker], expected: Mapping[str, float]
) -> float | None:
    """An estimate of the seconds left; a new claim counts as the mean. `None` if all are new."""
    known = list(expected.values())
    if not known:
        return None
    running = {worker.claim: time.monotonic() - worker.since for worker in workers if worker.claim}
    mean = sum(known) / len(known)
    work = [max(expected.get(name, mean) - running.get(name, 0.0), 0.0) for name in names]
    return max(sum(work) / max(min(len(workers), len(names)), 1), max(work, default=0.0))


def cores() -> int:
    """The number of cores this process may use, which a container may have restricted."""
    try:
        return max(len(os.sched_getaffinity(0)), 1)
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
