"""`python docs/pde.py`: rewrites the section "Measured" of docs/pde.md from finished runs.

Run before: the commands that `HEAD` names, which write the folder `pde`; another folder is the
argument. The section has the version and the dates of the runs, our errors over the best published
ones at every mark, and the table of every equation. A folder that lacks runs, or has one that was
interrupted, stopped by its limit in time, or asked for fewer steps, is refused. What else lies in
the folder, e.g. other equations or runs without momentum, is shown too if it is finished.

`python docs/pde.py pde A B C E`: of these equations only. The section names in bold the others as
not measured, and which of these have fewer seeds or steps. Nothing else in the folder is read.

Baselines of an equation (`pullback pde A --baselines`) are shown below its table.
"""

import itertools
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pullback_lab.pde.baselines import METHODS
from pullback_lab.pde.cases import NAMES, STEPS
from pullback_lab.pde.published import MARKS
from pullback_lab.pde.run import Measured
from pullback_lab.pde.table import at_equal_seconds, compared, field, table

PAGE = Path(__file__).parent / "pde.md"
TITLE = "## Measured\n"
NEEDED = {"A": 5, "B": 5, "C": 5, "D": 5, "E": 5, "F'": 1, "G": 1, "Burgers": 1}
"""The equations of the page, and how many seeds each has."""
OTHERS = {"Burgers-periodic": 1, "Helmholtz": 1, "Allen-Cahn": 1, "Kovasznay": 1, "Inverse": 1}
"""Equations that may be named, but are not of the page otherwise."""
SUFFIXES = {
    "-no-momentum": "without Spring",
    "-published": "as published",
    r"-memory-([\d.]+)": r"metric averaged with \1",
}
"""The ends of the names of folders, in words."""

HEAD = """
Written by `python docs/pde.py` from the results of

```sh
{commands}
```

with version {versions}, {dates}. All runs use float64 and two CPU cores at most; the seconds
include compilation. Errors are measured at 20 000 uniform points that are not training points.
{busy}{missing}
### Beside the published curves

Our median error over the least published one at the same step, at every step to which both went.
Errors of F' and G are relative.

"""
ALL = """\
pullback pde A B C D E --seeds 5
pullback pde "F'" G Burgers"""
BUSY = """\
Other programs had most of a core for part of the time, so wall seconds exceed CPU seconds.
"""
TAIL = """
### How the settings were chosen

The step rule and the scale of the first layer (1; 0.5 for E, 0.1 for F') were chosen after short
trials on one seed each. For F' the rate and the damping were chosen in the same way, for C the
decaying rate and the minimum damping (seeds 2 to 4, 500 steps). Nothing else was tuned. E also
draws new points but takes whole steps: the decaying rate was not tried there. D, F and G run with
the published numbers of SPRING. For Burgers the inputs of the network were chosen after short
trials on one seed. Its points were changed once, from random ones to a lattice, after a run of seed
0 that stayed at a relative error of 3e-6. The rules on Helmholtz, Allen-Cahn and Kovasznay were not
tuned.
"""


class Runs(NamedTuple):
    """The runs of an equation, in a folder of their own."""

    kind: str
    """The name of the folder."""
    name: str
    """The name of the equation."""
    seeds: list[list[Measured]]
    notes: list[dict[str, Any]]
    """What is known of each run: steps, version, date."""
    others: dict[str, list[list[Measured]]] = {}  # noqa: RUF012 (never changed)
    """The runs of baselines, by their names."""

    @property
    def suffixes(self) -> list[str]:
        """How these runs differ from the default ones, in words."""
        found = [(re.search(suffix, self.kind), words) for suffix, words in SUFFIXES.items()]
        return [match.expand(words) for match, words in found if match]

    @property
    def command(self) -> str:
        """The command that makes these runs."""
        steps, name = min(note["steps"] for note in self.notes), self.name
        words = [f'"{name}"' if "'" in name else name]
        words += [f"--seeds {len(self.seeds)}"] * (len(self.seeds) > 1)
        words += [f"--steps {steps}"] * (steps < STEPS[name]) + ["--baselines"] * bool(self.others)
        return " ".join(["pullback pde", *words])

    @property
    def busy(self) -> bool:
        """Whether the processor worked for much less time than passed."""
        return any(run[-1].cpu < 0.8 * run[-1].seconds for run in self.seeds)

    @property
    def lacking(self) -> str:
        """What these runs lack of those of the page, in words."""
        seeds, steps = NEEDED.get(self.name, 1), min(note["steps"] for note in self.notes)
        words = [f"{len(self.seeds)} of {seeds} seeds"] * (len(self.seeds) < seeds)
        words += [f"{steps} of {STEPS[self.name]} steps"] * (steps < STEPS[self.name])
        return f"{self.name} ({', '.join(words)})" if words else ""


def named(kind: str) -> str | None:
    """The equation of a folder of runs."""
    for suffix in SUFFIXES:
        kind = re.sub(suffix, "", kind)
    return {name.replace("'", "-prime"): name for name in NAMES}.get(kind)


def read(folder: Path, seeds: int | None = None, fewer: bool = False) -> Runs:
    """The runs in a folder; raises if one is not finished, or is short and not `fewer`."""
    name = named(folder.name)
    assert name is not None
    found = sorted(folder.glob("seed-*"), key=lambda path: int(path.name.removeprefix("seed-")))
    if len(found) < (1 if fewer else seeds or 1):
        raise SystemExit(f"{folder} has {len(found)} of {seeds} seeds: run `pullback pde` first.")
    runs, notes = [], []
    for seed in found:
        if not (seed / "run.json").exists():
            raise SystemExit(f"{seed} is not finished: the same command resumes it.")
        note = json.loads((seed / "run.json").read_text(encoding="utf-8"))
        if not note["complete"]:
            raise SystemExit(f"{seed} was stopped after {note['made']} of {note['steps']} steps.")
        if seeds is not None and not fewer and note["steps"] < STEPS[name]:
            words = f"{note['steps']} steps, and the page needs {STEPS[name]}"
            raise SystemExit(f"{seed} was asked for {words}: run it without --steps.")
        runs.append(measured(seed))
        notes.append(note)
    others = {}
    for method, words in METHODS.items():
        places = [folder.with_name(f"{folder.name}-{method}") / seed.name for seed in found]
        made = itertools.takewhile(lambda place: (place / "run.json").exists(), places)
        others[words] = [measured(place) for place in made]
    return Runs(folder.name, name, runs, notes, others if all(others.values()) else {})


def measured(seed: Path) -> list[Measured]:
    """The measurements of a run."""
    lines = (seed / "measured.jsonl").read_text(encoding="utf-8").splitlines()
    return [Measured(**json.loads(line)) for line in lines]


def beside(all_runs: Sequence[Runs]) -> str:
    """Our errors over the published ones, mark by mark, and where they are above."""
    shown = [mark for mark in MARKS if mark <= max(STEPS[runs.name] for runs in all_runs)]
    lines = [
        "| | " + " | ".join(map(str, shown)) + " |",
        "|:--|" + "--:|" * len(shown),
    ]
    above = []
    for runs in all_runs:
        rows = {row.mark: row for row in compared(runs.name, runs.seeds) if row.published}
        cells = []
        for mark in shown:
            row = rows.get(mark)
            if row is None or row.published is None:
                cells.append("-")
                continue
            curve, there = row.published
            ratio = f"{row.median(field(runs.name)) / there.error:.2g}"
            if row.above(field(runs.name)):
                above.append(f"{runs.name} at step {mark} ({curve.method} is {ratio} times lower)")
                ratio = f"**{ratio} above**"
            cells.append(ratio)
        if rows:
            lines.append(f"| {runs.name} | " + " | ".join(cells) + " |")
    words = "; ".join(above)
    end = f"**Above the best published error: {words}.**" if above else "Above it: at no mark."
    return "\n".join([*lines, "", end, ""])


def section(folder: Path, names: Sequence[str] = ()) -> str:
    """The section, of the results of `pullback pde`; of some equations only if they are named."""
    known = NEEDED | OTHERS
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown: {', '.join(unknown)}. There are: {', '.join(known)}.")
    wanted = [name for name in known if (name in names if names else name in NEEDED)]
    kinds = {name: folder / "runs" / name.replace("'", "-prime") for name in wanted}
    if missing := [name for name, path in kinds.items() if not path.is_dir()]:
        words = f"has no runs of {', '.join(missing)}"
        raise SystemExit(f"{folder} {words}: run `pullback pde` on them first.")
    needed = [read(path, known[name], bool(names)) for name, path in kinds.items()]
    others = sorted(path for path in (folder / "runs").iterdir() if path not in kinds.values())
    more = [read(path) for path in others if named(path.name) is not None and not names]
    absent = ", ".join(name for name in NEEDED if name not in wanted)
    words = f"Not measured with it: {absent}." if absent else ""
    if short := ", ".join(runs.lacking for runs in needed if runs.lacking):
        words += f" Fewer seeds or steps: {short}."
    notes = [note for runs in (*needed, *more) for note in runs.notes]
    dates = sorted({note["date"] for note in notes})
    text = HEAD.format(
        commands="\n".join(runs.command for runs in needed) if names else ALL,
        busy=BUSY if any(runs.busy for runs in (*needed, *more)) else "",
        versions=", ".join(sorted({note["version"] for note in notes})),
        dates=" to ".join(dict.fromkeys((dates[0], dates[-1]))),
        missing=f"\n{textwrap.fill(f'**{words.strip()}**', 100)}\n" if words else "",
    )
    text += beside(needed)
    for runs in (*needed, *more):
        made = table(runs.name, runs.seeds, "as published" in runs.suffixes)
        first, rest = made.split("\n", 1)
        text += "\n" + ", ".join([first, *runs.suffixes]) + "\n" + rest + "\n"
        if runs.others:
            text += "\n" + at_equal_seconds(runs.seeds, runs.others) + "\n"
    return TITLE + text + TAIL


def page(before: str, folder: Path, names: Sequence[str] = ()) -> str:
    """The page with another section "Measured"; the rest stays."""
    start = before.index(TITLE)
    after = re.search(r"^## ", before[start + len(TITLE) :], re.MULTILINE)
    end = "" if after is None else "\n" + before[start + len(TITLE) + after.start() :]
    return before[:start] + section(folder, names) + end


def main(folder: str = "pde", *names: str) -> None:
    """Rewrite the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), Path(folder), names), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
