"""Medians over the runs of an equation as a Markdown table, beside the published errors."""

from collections.abc import Sequence

import numpy as np

from .cases import case
from .published import PUBLISHED, curves
from .run import Measured

MARKS = (10, 30, 100, 200, 400, 800, 1600, 3200, 6400, 10_000)
"""Steps at which errors are tabulated."""


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


def table(name: str, runs: Sequence[Sequence[Measured]], published: bool = False) -> str:
    """The table of an equation."""
    lines = heading(name, runs, published)
    known = curves(name)
    best = f" {known[0].method}, published |" if known else ""
    lines += [
        "",
        f"| steps | seconds | CPU seconds | RMS error | worst seed | relative L2 |{best}",
        "|---:|---:|---:|---:|---:|---:|" + ("---:|" if known else ""),
    ]
    # Marks near which all runs were measured and beyond which they went, then the end of each run.
    shortest = min(run[-1].step for run in runs)
    marks = [
        mark
        for mark in MARKS
        if mark < shortest and min(at(run, mark).step for run in runs) > mark / 2
    ]
    rows = [[at(run, mark) for run in runs] for mark in marks] + [[run[-1] for run in runs]]
    for row in rows:
        middle = [float(np.median([m[i] for m in row])) for i in (0, 1, 2, 4, 5)]
        worst = max(m.error for m in row)
        line = "| {:.0f} | {:.0f} | {:.0f} | {:.1e} | {:.1e} | {:.1e} |".format(
            *middle[:4], worst, middle[4]
        )
        mark = known[0].at(round(middle[0])) if known else None
        theirs = "" if mark is None else f" {mark.error:.1e} (step {mark.step})"
        lines.append(line + (f"{theirs} |" if known else ""))
    if name in PUBLISHED:
        best = PUBLISHED[name]
        lines += [
            "",
            f"Published: {best.error:.1e} ({best.method}; tuned, on a GPU, {best.limit}).",
        ]
    return "\n".join(lines)
