"""The summary of a report in Markdown: claims, verdicts, and the key number of each."""

from collections.abc import Iterable

from ..papers import SOURCES
from .format import format_outcome, format_row
from .report import Report
from .result import Result

HEAD = "| claim | where | verdict | what | measured |\n|---|---|---|---|---|\n"


def summary(report: Report) -> str:
    """One table per source, with the command that made the report."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    counts = ", ".join(f"{number} {words}" for words, verdict, number in report.counts if verdict)
    text = (
        f"`pullback reproduce --budget {report.budget.label} --seeds {report.budget.seeds}`, "
        f"{report.date}, {versions}.\n\n"
        f"{report.sentence} {counts[0].upper()}{counts[1:]}.\n"
    )
    for source, title in SOURCES.items():
        own = [result for result in report.results if result.source == source]
        if own:
            text += f"\n## {title}\n\n{_table(own)}"
    return text


def _table(results: Iterable[Result]) -> str:
    """The table of one source."""
    return HEAD + "".join(map(_line, results))


def _line(result: Result) -> str:
    """The line of one claim."""
    row = result.key_row
    label = row.label if row else ""
    cells = (f"`{result.name}`", result.place, format_outcome(result), label, format_row(row))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
