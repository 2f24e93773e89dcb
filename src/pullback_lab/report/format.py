"""Numbers, rows and verdicts as text, for the terminal, the page and the summary alike."""

from ..papers import Row, Verdict
from .result import Result


def format_number(value: float) -> str:
    """A measured number in few characters; whole numbers as such."""
    whole = value == round(value, 0) and abs(value) < 1e6
    return f"{value:.0f}" if whole else f"{value:.3g}"


def format_bound(row: Row) -> str:
    """The bound of a row with its relation, e.g. "≤ 1e-09"."""
    return f"{row.relation} {format_number(row.bound)}"


def format_row(row: Row | None) -> str:
    """A row as "x ≤ bound", or as "x, not ≤ bound" if it fails; the empty string for `None`."""
    if row is None:
        return ""
    return f"{format_number(row.measured)}{' ' if row.holds else ', not '}{format_bound(row)}"


def format_outcome(result: Result) -> str:
    """The verdict in words, with the one on record if that is another."""
    if result.error is not None:
        return "no verdict: an error"
    if result.verdict is not None:
        words = result.verdict.value
        if result.verdict is Verdict.CORRECTED and result.stands is not None:
            words += f"; the conclusion {'stands' if result.stands else 'changes'}"
    else:
        words = f"no verdict: {'a control fails' if result.rows else 'nothing measured'}"
    return words if result.agrees else f"{words} (on record: {result.recorded.value})"
