"""Writes a report as JSON, as Markdown and as one HTML page."""

from pathlib import Path

from .files import write_whole
from .html import page
from .markdown import summary
from .report import Report


def publish(report: Report, folder: Path) -> Path:
    """Write `results.json`, `summary.md` and `index.html` and return the path of the page."""
    write_whole(folder / "results.json", report.json().encode())
    write_whole(folder / "summary.md", summary(report).encode())
    write_whole(folder / "index.html", page(report, folder / "claims").encode())
    return folder / "index.html"
