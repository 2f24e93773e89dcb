"""The summary as Markdown, to be kept where the page is too large: claims, verdicts, and the number
that each rests on.
"""

from ..papers import SOURCES, Verdict
from .result import Result
from .run import Report
from .terminal import against, outcome


def summary(report: Report) -> str:
    """One table a source, with the command that made it."""
    size = "full" if report.budget.full else "quick"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    counts = ", ".join(f"{sum(r.verdict is v for r in report.results)} {v.value}" for v in Verdict)
    text = f"`pullback reproduce --budget {size} --seeds {report.budget.seeds}`, {report.date}, {versions}.\n\n{report.sentence} {counts[0].upper()}{counts[1:]}.\n"
    for source, title in SOURCES.items():
        own = [result for result in report.results if result.source == source]
        if own:
            text += f"\n## {title}\n\n| claim | where | verdict | what | measured |\n|---|---|---|---|---|\n" + "".join(
                map(_line, own)
            )
    return text


def _line(result: Result) -> str:
    row = result.key_row
    cells = (f"`{result.name}`", result.place, outcome(result), row.label if row else "", against(row))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
