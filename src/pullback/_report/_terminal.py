"""The report as a table on the terminal."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._run import Report


def number(value: float) -> str:
    """A measured number in few characters; whole numbers as such.

    **Arguments:**

    - `value`: any float.
    """
    return f"{value:.0f}" if value == round(value, 0) and abs(value) < 1e6 else f"{value:.3g}"


def show(report: Report, console: Console) -> None:
    """Print the table: example, what, measured, bound, holds.

    **Arguments:**

    - `report`: what was run.
    - `console`: where to print.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("example", no_wrap=True)
    table.add_column("what")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("bound", justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for outcome in report.outcomes:
        name = escape(outcome.name)
        for row in outcome.rows:
            verdict = "[green]yes[/]" if row.holds else "[bold red]NO[/]"
            table.add_row(name, escape(row.label), number(row.measured), f"{row.relation} {number(row.bound)}", verdict)
            name = ""
        if outcome.error is not None:
            table.add_row(name, f"[red]{escape(outcome.error.strip().splitlines()[-1])}[/]", "", "", "[bold red]ERROR[/]")
        elif not outcome.rows:
            table.add_row(name, "[red]measured nothing[/]", "", "", "[bold red]NO[/]")
    console.print(table)
    for outcome in report.outcomes:
        if outcome.error is not None:
            console.print(f"[red]{escape(outcome.name)}[/]\n{escape(outcome.error)}")
    console.print(report.verdict, style="green" if report.holds else "bold red", highlight=False)
