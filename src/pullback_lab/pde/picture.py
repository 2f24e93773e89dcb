"""Error against steps and against seconds, with the published curves in the same picture."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .published import Curve
from .run import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
GREYS = ("#888888", "#444444")
"""The colours of baselines."""


def draw(
    title: str,
    runs: Sequence[Sequence[Measured]],
    curves: Sequence[Curve],
    others: Mapping[str, Sequence[Sequence[Measured]]] | None = None,
) -> "Figure":
    """A figure of two panels; `others` are the runs of baselines, by name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    ours = f"pullback, {len(runs)} seed{'s' * (len(runs) > 1)}, two CPU cores at most"
    for panel, name, label in zip(panels, ("step", "seconds"), ("steps", "seconds"), strict=True):
        for i, run in enumerate(runs):
            made = [m for m in run if m.step > 0]
            x = [max(getattr(m, name), 1e-3) for m in made]
            panel.loglog(x, [m.error for m in made], color="#0072b2", lw=0.8, alpha=0.6,
                         label=ours if i == 0 else None)  # fmt: skip
        _, x, middle = median(runs, name)
        panel.loglog(x, middle, color="#0072b2", lw=2, label="median" if len(runs) > 1 else None)
        for colour, (words, found) in zip(GREYS, (others or {}).items(), strict=False):
            _, x, middle = median(found, name)
            panel.loglog(x, middle, "-.", color=colour, lw=1.5, label=words)
        for colour, curve in zip(COLOURS, curves, strict=False):
            marks = [mark for mark in curve.marks if getattr(mark, name) > 0]
            panel.loglog([getattr(mark, name) for mark in marks], [mark.error for mark in marks],
                         "o--", color=colour, ms=3, lw=1,
                         label=f"{curve.method} ({curve.source}), GPU")  # fmt: skip
        panel.set_xlabel(label)
        panel.grid(True, which="major", alpha=0.3)
    panels[0].set_ylabel("root mean square error")
    # Beside the panels: there it hides no curve.
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.suptitle(title)
    return figure


def median(
    runs: Sequence[Sequence[Measured]], name: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps up to the end of the shortest run; the medians there of a clock and of the error."""
    last = min(run[-1].step for run in runs)
    steps = np.array(sorted({m.step for run in runs for m in run if 0 < m.step <= last}))
    if not steps.size:
        return steps, steps, steps

    def at(of: str, log: bool) -> np.ndarray:
        found = []
        for run in runs:
            y = np.array([getattr(m, of) for m in run])
            y = np.log(np.maximum(y, 1e-300)) if log else y
            found.append(np.interp(steps, [m.step for m in run], y))
        middle = np.median(found, axis=0)
        return np.exp(middle) if log else middle

    clock = steps.astype(float) if name == "step" else at(name, log=False)
    return steps, np.maximum(clock, 1e-3), at("error", log=True)
