"""A run on the terminal: how it goes, and the table at the end."""

import time

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..papers import SOURCES, Claim, Row, Verdict
from .result import Result
from .run import Report
from .workers import Worker

COLOURS = {Verdict.HOLDS: "green", Verdict.CORRECTED: "yellow", Verdict.FAILS: "red", Verdict.OPEN: "cyan"}


def number(value: float) -> str:
    """A measured number in few characters; whole numbers as such."""
    return f"{value:.0f}" if value == round(value, 0) and abs(value) < 1e6 else f"{value:.3g}"


def against(row: Row | None) -> str:
    """A number and the bound it is held against, and that it does not keep to it if it does not;
    empty if there is no row.
    """
    return "" if row is None else f"{number(row.measured)}{' ' if row.holds else ', not '}{row.relation} {number(row.bound)}"


def outcome(result: Result) -> str:
    """The verdict in words, and whether it is the one on record."""
    if result.error is not None:
        return "no verdict: an error"
    said = (
        result.verdict.value if result.verdict else "no verdict: a control fails" if result.rows else "no verdict: nothing measured"
    )
    return said if result.agrees else f"{said} (on record: {result.recorded.value})"


class Screen:
    """Claims done, what runs in each process, time left: a live display on a terminal, a line a
    claim elsewhere.
    """

    def __init__(self, console: Console):
        """Prepare it."""
        self.console, self.done, self.total = console, 0, 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> "Screen":
        self.bar.start()
        self.task = self.bar.add_task("claims", total=None, left="")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def note(self, text: str) -> None:
        """Something the user should know."""
        self.bar.console.print(escape(text), style="yellow", highlight=False, soft_wrap=True)

    def begin(self, total: int, done: int) -> None:
        """How many claims there are, and how many were finished before."""
        self.total, self.done = total, done
        self.bar.update(self.task, total=total, completed=done)
        if done:
            self.note(f"{done} of {total} claims were finished before and are not run again.")

    def finished(self, result: Result) -> None:
        """A claim is done."""
        self.done += 1
        colour = COLOURS.get(result.verdict or Verdict.FAILS, "red") if result.agrees else "bold red"
        self.bar.update(self.task, completed=self.done)
        text = f"[{self.done}/{self.total}] {escape(result.name)}: [{colour}]{escape(outcome(result))}[/] ({result.seconds:.1f} s)"
        self.bar.console.print(text.replace("[", "\\[", 1), highlight=False, soft_wrap=True)

    def tick(self, workers: list[Worker], left: float | None) -> None:
        """What runs now, and the seconds that are left."""
        clock = time.monotonic()
        running = ", ".join(f"{worker.claim} {clock - worker.since:.0f} s" for worker in workers if worker.claim)
        known = "" if left is None else f"about {left:.0f} s left"
        self.bar.update(self.task, description=escape(running) or "claims", left=known)


def show(report: Report, console: Console) -> None:
    """Print the table of verdicts, the rows of claims whose verdict differs from the record (of
    all, if they are few), and the sum.
    """
    chosen = [result for result in report.results if result.name in report.chosen]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("claim", no_wrap=True)
    table.add_column("source", no_wrap=True)
    table.add_column("verdict")
    table.add_column("key number")
    table.add_column("s", justify="right", no_wrap=True)
    for result in chosen:
        row, colour = result.key_row, COLOURS.get(result.verdict or Verdict.FAILS, "red") if result.agrees else "bold red"
        table.add_row(
            escape(result.name),
            escape(result.source),
            f"[{colour}]{escape(outcome(result))}[/]",
            against(row),
            f"{result.seconds:.1f}",
        )
    console.print(table)
    for result in chosen if len(chosen) <= 3 else report.differing:
        _rows(result, console)
    console.print(report.sentence, style="green" if report.complete and not report.differing else "bold red", highlight=False)


def _rows(result: Result, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{result.name}: {outcome(result)}", title_justify="left")
    for name in ("held against", "what", "measured", "bound", "holds"):
        table.add_column(name, justify="right" if name in ("measured", "bound") else "left", no_wrap=name != "what")
    for row in result.rows:
        holds = "[green]yes[/]" if row.holds else "[bold red]NO[/]"
        table.add_row(row.role.value, escape(row.label), number(row.measured), f"{row.relation} {number(row.bound)}", holds)
    console.print(table)
    if result.error is not None:
        console.print(escape(result.error), style="red", highlight=False)


def listing(claims: dict[str, Claim], console: Console) -> None:
    """Print what can be run."""
    for source, title in SOURCES.items():
        of_source = [claim for claim in claims.values() if claim.source == source]
        if not of_source:
            continue
        table = Table(box=None, pad_edge=False, title=f"{title} ({source})", title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for claim in of_source:
            table.add_row(escape(claim.name), f"[{COLOURS[claim.verdict]}]{claim.verdict.value}[/]", escape(claim.statement))
        console.print(table)
        console.print()
