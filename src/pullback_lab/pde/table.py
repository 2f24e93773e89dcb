"""Medians over the runs of an equation as a Markdown table, beside the published errors.

At each mark, the error is compared with that of the published curve that is the best there, not
with the one that is the best at its end.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .cases import case
from .published import MARKS, NORMALISED, PUBLISHED, Curve, Mark, best
from .run import Measured


def at(run: Sequence[Measured], step: int) -> Measured:
    """The last measurement up to a step."""
    return [m for m in run if m.step <= step][-1]


def heading(name: str, runs: Sequence[Sequence[Measured]], published: bool) -> list[str]:
    """What was solved, how, and how often."""
    equation = case(name, published).equation
    assert equation.widths is not None
    fresh = "new every step" if equation.renewed else "fixed"
    network = f"Network {'-'.join(map(str, equation.widths))} ({equation.size} parameters)"
    points = [f"{equation.inside} points inside"]
    for label, condition in zip(equation.labels, equation.conditions, strict=True):
        count = getattr(condition, "points", None)
        where = "on the boundary" if label == "boundary" else f"for {label!r}"
        points.append(f"{'all' if count is None else count} {where}")
    how = "; published points and initialisation" if published else ""
    return [
        f"### {name}: {equation.title}",
        "",
        f"{network}, {' and '.join(points)}, {fresh}; float64{how}; median of {len(runs)} "
        f"seed{'s' if len(runs) > 1 else ''}.",
    ]


class Compared(NamedTuple):
    """Our runs at a mark, or at their ends, and the best published curve there."""

    mark: int | None
    """`None` for the ends of runs that are not at a mark."""
    runs: tuple[Measured, ...]
    published: tuple[Curve, Mark] | None

    def median(self, of: str) -> float:
        """The median of a field."""
        return float(np.median([getattr(m, of) for m in self.runs]))

    def above(self, of: str) -> bool:
        """Whether our median error is above the published one."""
        return self.published is not None and self.median(of) > self.published[1].error


def compared(name: str, runs: Sequence[Sequence[Measured]]) -> list[Compared]:
    """The marks up to which all runs went and near which they were measured, and their ends."""
    shortest = min(run[-1].step for run in runs)
    marks = [
        mark
        for mark in MARKS
        if mark <= shortest and min(at(run, mark).step for run in runs) > mark / 2
    ]
    rows = [Compared(mark, tuple(at(run, mark) for run in runs), best(name, mark))
            for mark in marks]  # fmt: skip
    if not marks or any(run[-1].step != marks[-1] for run in runs):
        rows.append(Compared(None, tuple(run[-1] for run in runs), None))
    return rows


def field(name: str) -> str:
    """Which of our errors compares with the published one."""
    return "relative" if name in NORMALISED else "error"


def table(name: str, runs: Sequence[Sequence[Measured]], published: bool = False) -> str:
    """The table of an equation; what is above the best published curve is bold."""
    known = best(name, 1) is not None
    lines = [
        *heading(name, runs, published),
        "",
        "| steps | seconds | CPU seconds | RMS error | worst seed | relative L2 |"
        + (" best published at this step |" if known else ""),
        "|---:|---:|---:|---:|---:|---:|" + ("---:|" if known else ""),
    ]
    for row in compared(name, runs):
        words = {of: f"{row.median(of):.1e}" for of in ("error", "relative")}
        if row.above(field(name)):
            words[field(name)] = f"**{words[field(name)]} above**"
        clocks = " | ".join(f"{row.median(of):.0f}" for of in ("step", "seconds", "cpu"))
        worst = max(m.error for m in row.runs)
        line = f"| {clocks} | {words['error']} | {worst:.1e} | {words['relative']} |"
        if row.published is not None:
            curve, mark = row.published
            line += f" {mark.error:.1e} ({curve.method}, step {mark.step}) |"
        elif known:
            line += " |"
        lines.append(line)
    if name in PUBLISHED:
        end = PUBLISHED[name]
        lines += ["", f"Published: {end.error:.1e} ({end.method}; tuned, on a GPU, {end.limit})."]
    return "\n".join(lines)


def at_equal_seconds(
    runs: Sequence[Sequence[Measured]], others: Mapping[str, Sequence[Sequence[Measured]]]
) -> str:
    """A table of what our runs and the baselines of the same seeds reached in the same time.

    That is the shortest time of them: one of them may have been continued.
    """
    seeds = min(len(found) for found in others.values())
    everyone = {"pullback": runs, **others}
    shortest = [min(found[i][-1].cpu for found in everyone.values()) for i in range(seeds)]
    words = f"In the same CPU seconds, median of {seeds} seed{'s' if seeds > 1 else ''}:"
    lines = [
        words,
        "",
        "| method | steps | seconds | CPU seconds | RMS error | worst seed | relative L2 |",
        "|:--|---:|---:|---:|---:|---:|---:|",
    ]
    for method, found in everyone.items():
        # The last measurement of a baseline comes a little late.
        at = lambda run, end: [m for m in run if m.cpu <= 1.1 * end][-1]
        ends = Compared(None, tuple(map(at, found, shortest)), None)
        clocks = " | ".join(f"{ends.median(of):.0f}" for of in ("step", "seconds", "cpu"))
        worst = max(m.error for m in ends.runs)
        errors = f"{ends.median('error'):.1e} | {worst:.1e} | {ends.median('relative'):.1e}"
        lines.append(f"| {method} | {clocks} | {errors} |")
    return "\n".join(lines)
