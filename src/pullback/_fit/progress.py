"""Progress in a terminal: loss, rank, damping, steps per second, time left. Silent where there is
no terminal.
"""

import sys
from typing import Any

import numpy as np


class Progress:
    """A bar on standard error while it is a terminal (and rich is installed); nothing otherwise."""

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

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, step: int, rows: dict[str, np.ndarray], seconds_per_step: float) -> None:
        """Show where we are."""
        if self.bar is None:
            return
        self.bar.update(
            self.task, completed=step, description=describe(rows), rate=speed(seconds_per_step)
        )


def describe(rows: dict[str, np.ndarray]) -> str:
    """The last of some rows, in words."""
    last = {name: column[-1] for name, column in rows.items()}
    words = [f"loss {last['loss_after']:.3e}"]
    if last["rank"] >= 0:
        words.append(f"rank {last['rank']}")
    if np.isfinite(last["damping"]):
        words.append(f"damping {last['damping']:.1e}")
    if refused := int(np.sum(~rows["accepted"].astype(bool))):
        words.append(f"{refused} not taken")
    return "  ".join(words)


def speed(seconds: float) -> str:
    """Seconds per step, or steps per second, whichever reads better."""
    return f"{1 / seconds:.1f} steps/s" if 0 < seconds < 1 else f"{seconds:.1f} s/step"
