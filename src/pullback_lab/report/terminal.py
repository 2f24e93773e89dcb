"""A run on the terminal: its progress, and the table at the end."""

import time
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..papers import SOURCES, Claim, Verdict
from .format import format_bound, format_number, format_outcome, format_row
from .report import Report
from .result import Result
from .workers import Worker

COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.CORRECTED: "yellow",
    Verdict.FAILS: "red",
    Verdict.OPEN: "cyan",
}
FEW = 3
"""Up to this number of claims, the rows of all of them are printed."""


class Screen:
    """The progress of a run: a live display on a terminal, one line per claim elsewhere."""

    def __init__(self, console: Console):
        """Prepare the display."""
        self.console = console
        self.done = 0
        self.total = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )

    def __enter__(self) -> "Screen":
        self.bar.start()
        self.task = self.bar.add_task("claims", total=None, left="")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def note(self, text: str) -> None:
        """Show a message to the user."""
        self.bar.console.print(escape(text), style="yellow", highlight=False, soft_wrap=True)

    def begin(self, total: int, done: int) -> None:
        """Show the number of claims, and of those that were finished before."""
        self.total = total
        self.done = done
        self.bar.update(self.task, total=total, completed=done)
        if done:
            self.note(f"{done} of {total} claims were finished before and are not run again.")

    def finished(self, result: Result) -> None:
        """Show that a claim is finished."""
        self.done += 1
        self.bar.update(self.task, completed=self.done)
        text = (
            f"\\[{self.done}/{self.total}] {escape(result.name)}: "
            f"{_coloured_outcome(result)} ({result.seconds:.1f} s)"
        )
        self.bar.console.print(text, highlight=False, soft_wrap=True)

    def tick(self, workers: list[Worker], left: float | None) -> None:
        """Show what runs now, and an estimate of the seconds left."""
        clock = time.monotonic()
        busy = [worker for worker in workers if worker.claim]
        running = ", ".join(f"{worker.claim} {clock - worker.since:.0f} s" for worker in busy)
        estimate = "" if left is None else f"about {left:.0f} s left"
        self.bar.update(self.task, description=escape(running) or "claims", left=estimate)


def show(report: Report, console: Console) -> None:
    """Print the verdicts, then the rows where a verdict is not the one on record, then the sum."""
    chosen = report.chosen_results
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("claim", no_wrap=True)
    table.add_column("source", no_wrap=True)
    table.add_column("verdict")
    table.add_column("key number")
    table.add_column("s", justify="right", no_wrap=True)
    for result in chosen:
        table.add_row(
            escape(result.name),
            escape(result.source),
            _coloured_outcome(result),
            format_row(result.key_row),
            f"{result.seconds:.1f}",
        )
    console.print(table)
    for result in chosen if len(chosen) <= FEW else report.differing:
        _show_rows(result, console)
    console.print(report.sentence, style="green" if report.agrees else "bold red", highlight=False)


def _coloured_outcome(result: Result) -> str:
    """The verdict in words, as rich markup."""
    colour = COLOURS.get(result.verdict or Verdict.FAILS, "red") if result.agrees else "bold red"
    return f"[{colour}]{escape(format_outcome(result))}[/]"


def _show_rows(result: Result, console: Console) -> None:
    """Print all rows of a claim, and its traceback if it raised."""
    title = f"{result.name}: {format_outcome(result)}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("role", no_wrap=True)
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("bound", justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for row in result.rows:
        table.add_row(
            row.role.value,
            escape(row.label),
            format_number(row.measured),
            format_bound(row),
            "[green]yes[/]" if row.holds else "[bold red]NO[/]",
        )
    console.print(table)
    if result.error is not None:
        console.print(escape(result.error), style="red", highlight=False)


def listing(claims: Iterable[Claim], console: Console) -> None:
    """Print the claims by source: name, verdict on record, statement."""
    claims = tuple(claims)
    for source, heading in SOURCES.items():
        own = [claim for claim in claims if claim.source == source]
        if not own:
            continue
        title = f"{heading} ({source})"
        table = Table(
            box=None, pad_edge=False, title=title, title_justify="left", show_header=False
        )
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for claim in own:
            verdict = f"[{COLOURS[claim.verdict]}]{claim.verdict.value}[/]"
            table.add_row(escape(claim.name), verdict, escape(claim.statement))
        console.print(table)
        console.print()
