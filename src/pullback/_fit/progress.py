"""Progress in a terminal or a notebook: loss, rank, damping, steps per second, time left."""

import html
import sys
import time
from typing import Any, Protocol

import numpy as np

from .figure import HELD_OUT
from .history import History

PAUSE = 0.1
"""The least number of seconds between two pictures of the bar in a notebook."""
WIDTH = 30
"""The characters of a bar in plain text."""


class Bar(Protocol):
    """Something that shows how far a run is."""

    def start(self) -> None:
        """Show the bar."""
        ...

    def update(self, step: int, words: str, rate: str) -> None:
        """Show how many steps were made, the last numbers, and the speed."""
        ...

    def stop(self) -> None:
        """Leave the bar as it is."""
        ...


class Terminal:
    """A bar of rich on standard error."""

    def __init__(self, steps: int, start: int):
        """Prepare a bar; raises a `ModuleNotFoundError` without rich."""
        from rich import progress
        from rich.console import Console

        columns = (
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.description}"),
            progress.TextColumn("{task.fields[rate]}"),
            progress.TimeRemainingColumn(),
        )
        self.bar = progress.Progress(*columns, console=Console(stderr=True), transient=False)
        self.task = self.bar.add_task("", total=steps, completed=start, rate="")

    def start(self) -> None:
        """Show the bar."""
        self.bar.start()

    def update(self, step: int, words: str, rate: str) -> None:
        """Show how many steps were made, the last numbers, and the speed."""
        self.bar.update(self.task, completed=step, description=words, rate=rate)

    def stop(self) -> None:
        """Leave the bar as it is."""
        self.bar.stop()


class Notebook:
    """One output of a notebook cell that is updated in place."""

    def __init__(self, steps: int, start: int):
        """Prepare a bar; nothing is shown yet."""
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self.display = display
        self.steps, self.begun, self.first = steps, time.monotonic(), start
        self.handle: Any = None
        self.latest = (start, "", "")
        self.shown = -PAUSE

    def start(self) -> None:
        """Show the bar."""
        self.handle = self.display(self._bundle(), raw=True, display_id=True)

    def update(self, step: int, words: str, rate: str) -> None:
        """Show how many steps were made, the last numbers, and the speed."""
        self.latest = (step, words, rate)
        # Every picture is a message to the browser.
        if time.monotonic() - self.shown >= PAUSE:
            self.shown = time.monotonic()
            self._show()

    def stop(self) -> None:
        """Show the last numbers."""
        self._show()

    def _show(self) -> None:
        if self.handle is not None:
            self.handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        step, words, rate = self.latest
        spent = time.monotonic() - self.begun
        ahead = spent * (self.steps - step) / max(step - self.first, 1)
        left = f"{clock(ahead)} left" if step > self.first and step < self.steps else ""
        parts = [part for part in (f"{step}/{self.steps}", words, rate, left) if part]
        text = "  ".join(parts)
        filled = round(WIDTH * step / max(self.steps, 1))
        bar = f"<progress value='{step}' max='{self.steps}'></progress>"
        return {
            "text/plain": f"[{'#' * filled}{'.' * (WIDTH - filled)}] {text}",
            "text/html": f"<div style='white-space:pre-wrap'>{bar} {html.escape(text)}</div>",
        }


class Progress:
    """A bar in a notebook, or on standard error if it is a terminal and rich is installed."""

    def __init__(self, wanted: bool, steps: int, start: int):
        """Prepare a bar; without a place for one nothing is shown."""
        self.bar: Bar | None = None
        self.held_out = np.nan
        if not wanted:
            return
        try:
            if in_notebook():
                self.bar = Notebook(steps, start)
            elif sys.stderr.isatty():
                self.bar = Terminal(steps, start)
        except ModuleNotFoundError:
            return

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
        if HELD_OUT in rows and np.isfinite(rows[HELD_OUT][-1]):
            self.held_out = rows[HELD_OUT][-1]
        self.bar.update(step, describe(rows, self.held_out), speed(seconds_per_step))


def in_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook, which shows HTML."""
    # Only a program that runs inside of IPython has imported it.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds, and hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe(rows: History, held_out: float = np.nan) -> str:
    """Return the last of some rows in words, as far as its numbers are recorded."""
    words = [f"loss {rows.losses[-1]:.3e}"]
    if np.isfinite(held_out):
        words.append(f"held out {held_out:.3e}")
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
