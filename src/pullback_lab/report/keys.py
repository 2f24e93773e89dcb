"""Runs claims from other random keys: how often is the verdict the one on record?

Each key has a folder of its own with the results of a quick run, so that an interrupted run
resumes. One process runs a claim from all keys: what it compiles for the first serves the others,
and compiling is most of the work of a quick run. A claim that measures the same numbers from two
keys does not depend on the key, and is not run again.
"""

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..papers import KEYS, Budget, Claim, Row
from .files import remove_leftovers
from .format import format_number
from .result import Result
from .run import Watcher, cores, earlier, result_of
from .workers import Message, Task, Worker, run_all

HEAD = (
    "| claim | verdict on record | keys | as on record | key number, least to largest |\n"
    "|---|---|---:|---:|---|\n"
)
NUMBERS_HEAD = (
    "| what | role | bound | least | largest | holds |\n|---|---|---:|---:|---:|---:|\n"
)


class Varied(NamedTuple):
    """The results of claims from several keys."""

    results: Mapping[str, Sequence[Result]]
    """Name -> one result a key; two where the key does not matter."""
    count: int
    complete: bool

    @property
    def fewer(self) -> list[str]:
        """The claims with fewer verdicts on record than they say, if these keys can decide it."""
        if self.count != KEYS or not self.complete:
            return []
        return [
            name
            for name, found in self.results.items()
            if not same(found) and sum(result.agrees for result in found) < found[0].keys
        ]

    def table(self) -> str:
        """A table in Markdown, claims whose verdict depends on the key first."""
        known = {name: found for name, found in self.results.items() if found}
        random = [name for name, found in known.items() if not same(found)]
        random.sort(key=lambda name: _share(known[name]))
        fixed = [name for name in known if name not in random]
        flipped = [name for name in random if _share(known[name]) < 1]
        text = (
            f"`pullback keys --count {self.count}`: {len(known)} claims, of which {len(random)} "
            f"depend on the random key; {len(flipped)} of them had another verdict from some key.\n"
        )
        if not self.complete:
            text += "\nThe run was interrupted: some keys are missing.\n"
        if random:
            text += "\n" + HEAD + "".join(_line(name, known[name]) for name in random)
        if fixed:
            text += f"\nThe same from every key: {', '.join(f'`{name}`' for name in fixed)}.\n"
        return text

    def numbers(self) -> str:
        """Every number of every claim that depends on the key: its interval over the keys."""
        text = f"Every number, `pullback keys --count {self.count}`: least and largest.\n"
        for name, found in self.results.items():
            if found and not same(found):
                text += f"\n## {name}\n\n{NUMBERS_HEAD}{''.join(_numbers(found))}"
        return text


def vary(
    claims: Mapping[str, Claim], names: Sequence[str], folder: Path, count: int, watcher: Watcher
) -> Varied:
    """Run claims from the keys 1 to `count`; after Ctrl-C, return what is finished."""
    chosen = tuple(names) or tuple(claims)
    stores = {key: folder / f"key-{key}" / "claims" for key in range(1, count + 1)}
    found: dict[str, dict[int, Result]] = {name: {} for name in chosen}

    def read() -> None:
        for key, store in stores.items():
            before = earlier(claims, chosen, store, Budget(key=key), watcher)[0]
            for name, result in before.items():
                found[name].setdefault(key, result)

    def further(name: str) -> Task | None:
        missing = [key for key in stores if key not in found[name]]
        if not missing or same(tuple(found[name].values())):
            return None
        return Task(name, stores[missing[0]], Budget(key=missing[0]))

    def finished(task: Task, message: Message) -> Task | None:
        result = result_of(claims[task.name], message, task)
        found[task.name][task.budget.key] = result
        following = further(task.name)
        if following is None:
            watcher.finished(result)
        return following

    for store in stores.values():
        store.mkdir(parents=True, exist_ok=True)
        remove_leftovers(store)
    read()
    tasks = [task for name in chosen if (task := further(name))]
    watcher.begin(len(chosen), len(chosen) - len(tasks))
    complete = True
    try:
        run_all(
            tasks, lambda: Worker(claims), cores(), finished, lambda crew: watcher.tick(crew, None)
        )
    except KeyboardInterrupt:
        # A worker may have written a result without having sent its message.
        read()
        complete = not any(further(name) for name in chosen)
        watcher.note("Interrupted. Finished results are kept; the same command resumes the run.")
    results = {name: [by[key] for key in sorted(by)] for name, by in found.items()}
    return Varied(results, count, complete)


def same(results: Sequence[Result]) -> bool:
    """Whether all results have the same numbers."""
    # As text, so that NaN is NaN.
    numbers = {str([row[:2] for row in result.rows]) for result in results}
    return len(numbers) == 1 and len(results) > 1


def _share(results: Sequence[Result]) -> float:
    return sum(result.agrees for result in results) / len(results)


def _numbers(results: Sequence[Result]) -> Iterator[str]:
    """A line for each row of a claim; results that raised have none."""
    rows: dict[str, list[Row]] = {}
    for result in results:
        for row in result.rows:
            rows.setdefault(row.label, []).append(row)
    for label, found in rows.items():
        # What is not a number counts as the largest.
        values = sorted((row.measured for row in found), key=lambda v: (math.isnan(v), v))
        bounds = sorted({row.bound for row in found})
        bound = " to ".join(format_number(b) for b in (bounds[0], *bounds[1:][-1:]))
        relation = f"{found[0].relation} {bound}"
        cells = (label, found[0].role.value, relation, *map(format_number, (values[0], values[-1])))
        holds = f"{sum(row.holds for row in found)} of {len(results)}"
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, holds)) + " |\n"


def _line(name: str, results: Sequence[Result]) -> str:
    """The line of a claim; other verdicts than the one on record are named."""
    rows = [result.key_row for result in results]
    measured = sorted(row.measured for row in rows if row is not None)
    interval = f"{format_number(measured[0])} to {format_number(measured[-1])}" if measured else ""
    label = next((row.label for row in rows if row is not None), "")
    others = collections.Counter(
        "no verdict" if result.verdict is None else result.verdict.value
        for result in results
        if not result.agrees
    )
    agreeing = f"{sum(result.agrees for result in results)}"
    agreeing += "".join(f"; {word} {number}" for word, number in others.items())
    cells = (
        f"`{name}`",
        results[0].recorded.value,
        f"{len(results)}",
        agreeing,
        f"{label}: {interval}",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
