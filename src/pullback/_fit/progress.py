"""Progress in a terminal: loss, rank, damping, steps per second, time left."""

import sys
from typing import Any

import numpy as np

from .history import History


class Progress:
    """A bar on standard error if it is a terminal and rich is installed; nothing otherwise."""

    def __init__(self, wanted: bool, steps: int, start: int):
        """Prepare a bar."""
        self.bar: Any = None
        if not wanted or not sys.stderr.isatty():
            return
        try:
            from rich import progress
            from rich.console import Console
        except ModuleNotFoundError:
            return
        columns = (
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.description}"),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeRemainingColumn(),
        )
        self.bar = progress.Progress(*columns, console=Console(stderr=True), transient=False)
        self.task = self.bar.add_task("", total=steps, completed=start, rate="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, step: int, rows: History, seconds_per_step: float) -> None:
        """Update the bar after some steps."""
        if self.bar is None:
            return
        self.bar.update(
            self.task, completed=step, description=describe(rows), rate=speed(seconds_per_step)
        )


def describe(rows: History) -> str:
    """Return the last of some rows in words, as far as its numbers are recorded."""
    words = [f"loss {rows.losses[-1]:.3e}"]
    if "rank" in rows and rows["rank"][-1] >= 0:
        words.append(f"rank {rows['rank'][-1]}")
    if "damping" in rows and np.isfinite(rows["damping"][-1]):
        words.append(f"damping {rows['damping'][-1]:.1e}")
    if "accepted" in rows and (rejected := int(np.sum(~rows["accepted"].astype(bool)))):
        words.append(f"{rejected} not taken")
    return "  ".join(words)


def speed(seconds: float) -> str:
    """Return seconds per step, or steps per second, whichever reads better."""
    return f"{1 / seconds:.1f} steps/s" if 0 < seconds < 1 else f"{seconds:.1f} s/step"
