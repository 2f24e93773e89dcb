"""The report as one HTML page.

The page has no script, loads nothing from the network, and contains its pictures. It is light or
dark as the reader prefers, and readable on narrow and wide screens.
"""

import base64
import importlib.util
import re
import struct
from collections.abc import Iterable
from html import escape
from pathlib import Path

from .. import papers
from ..papers import KEYS, SOURCES, Budget, Role, Row, Verdict
from .derivation import to_html
from .format import format_bound, format_number, format_outcome, format_row
from .report import Report
from .result import Result
from .style import STYLE

TITLE = "pullback: what was claimed, and what holds"
INTRODUCTION = (
    "Each claim of the sources is measured in float64. Each measured number is compared with a "
    "bound: ≤ for an error, ≥ for a difference that must be there, = for a count. A claim holds if "
    "it holds as stated. It holds with correction if the statement fails and our correction holds. "
    "If a control fails, there is no verdict."
)
NOTATION = (
    "Notation: θ or ξ parameters, z outputs, J = ∂z/∂θ, c = dL = ∂L/∂z, g = Jᵀc the gradient; M "
    "the metric on the outputs, G = JᵀMJ the pullback metric on the parameters, G⁺ its "
    "Moore-Penrose inverse; M⁻¹c the ambient gradient, Π the projection on the tangent space of "
    "the model; δ = G⁺g the natural gradient, Jδ its pushforward. Differences of vectors and "
    "matrices are relative."
)
TONES = {
    Verdict.HOLDS: "good",
    Verdict.CORRECTED: "amended",
    Verdict.FAILS: "bad",
    Verdict.OPEN: "open",
}
GROUPS = {
    Role.STATED: "As the source states it",
    Role.KEPT: "As the source states it, and as the correction keeps it",
    Role.CORRECTED: "As corrected here",
    Role.CONTROL: "Controls",
}


def page(report: Report, folder: Path) -> str:
    """The whole page; `folder` contains the pictures."""
    missing = ""
    if report.missing:
        missing = f'<p class="soft">Not run: {escape(", ".join(report.missing))}.</p>\n'
    tone = "good" if report.agrees else "bad"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{TITLE}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{TITLE}</h1>
<p class="soft">{INTRODUCTION}</p>
<p class="sum {tone}">{escape(report.sentence)}</p>
{_sizes(report)}{_counts(report)}
{missing}<nav aria-label="Summary" id="summary">
{_summary(report.results)}</nav>
<main>
{_sections(report.results, folder)}</main>
{_errata(report.results)}<footer class="soft">
<p>{NOTATION}</p>
<p>{_colophon(report)}</p>
</footer>
</body>
</html>
"""


def _colophon(report: Report) -> str:
    """Date, budget and versions of a run."""
    seeds = report.budget.seeds
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return (
        f"{escape(report.date)} · budget {report.budget.label}, "
        f"{seeds} seed{'s' if seeds > 1 else ''} · {escape(versions)}"
    )


def _sizes(report: Report) -> str:
    """A line that says that sizes are reduced, if they are."""
    if report.budget.full:
        return ""
    return (
        '<p class="soft"><b>Reduced sizes.</b> This run takes minutes: numbers and figures are of '
        "smaller problems and fewer seeds than those that the statements name. The sizes of the "
        "sources: <code>pullback reproduce --budget full</code>.</p>\n"
    )


def _errata(results: Iterable[Result]) -> str:
    """The corrections as a list, by source."""
    parts = []
    for source, group in _by_source(results).items():
        items = "".join(
            f'<li><a href="#{escape(r.name, quote=True)}">{escape(r.place)}</a>: '
            f"{_prose(r.correction)}</li>\n"
            for r in group
            if r.correction
        )
        if items:
            parts.append(f"<h3>{escape(SOURCES[source])}</h3>\n<ul>\n{items}</ul>\n")
    return f'<section id="errata"><h2>Errata</h2>\n{"".join(parts)}</section>\n' if parts else ""


def _counts(report: Report) -> str:
    """The number of claims per verdict."""
    chips = "".join(
        f'<li class="{TONES[verdict] if verdict else "bad"}"><b>{count}</b>{escape(words)}</li>'
        for words, verdict, count in report.counts
        if count
    )
    return f'<ul class="counts" aria-label="Verdicts">{chips}</ul>'


def _by_source(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The results of each source that has some."""
    groups: dict[str, list[Result]] = {source: [] for source in SOURCES}
    for result in results:
        groups[result.source].append(result)
    return {source: group for source, group in groups.items() if group}


def _summary(results: Iterable[Result]) -> str:
    """The table of all claims, with links to their sections."""
    head = (
        '<th scope="col">claim</th><th scope="col">where</th><th scope="col">verdict</th>'
        '<th scope="col">what</th><th scope="col" class="number">key number</th>'
    )
    bodies = ""
    for source, group in _by_source(results).items():
        title = f'<tr><th colspan="5" scope="rowgroup">{escape(SOURCES[source])}</th></tr>'
        bodies += f"<tbody>\n{title}\n{''.join(map(_summary_row, group))}</tbody>\n"
    return f'<table class="summary">\n<thead><tr>{head}</tr></thead>\n{bodies}</table>\n'


def _summary_row(result: Result) -> str:
    """The row of one claim in the summary."""
    link = f'<a href="#{escape(result.name, quote=True)}">{escape(result.name)}</a>'
    label = result.key_row.label if result.key_row else ""
    return (
        f'<tr><td class="claimname">{link}</td>'
        f'<td class="place soft">{escape(result.place)}</td><td>{_badge(result)}</td>'
        f'<td class="place soft">{escape(label)}</td>'
        f'<td class="number">{escape(format_row(result.key_row))}</td></tr>\n'
    )


def _sections(results: Iterable[Result], folder: Path) -> str:
    """One section per claim, grouped by source."""
    parts = []
    for source, group in _by_source(results).items():
        parts.append(f"<h2>{escape(SOURCES[source])}</h2>\n")
        parts.extend(_section(result, folder) for result in group)
    return "".join(parts)


def _section(result: Result, folder: Path) -> str:
    """Everything about one claim."""
    correction = ""
    if result.correction:
        text = _prose(result.correction)
        correction = f'<p class="correction"><b>Correction.</b> {text}</p>\n'
    if result.remark:
        correction += f"<p><b>Remark.</b> {_prose(result.remark)}</p>\n"
    if result.keys < KEYS:
        correction += (
            f"<p><b>Other random keys.</b> {result.keys} of {KEYS} give this verdict at quick "
            "size.</p>\n"
        )
    quotation = f"<p><q>{escape(result.quotation)}</q></p>\n" if result.quotation else ""
    error = ""
    if result.error is not None:
        error = f'<pre class="bad">{escape(result.error)}</pre>\n'
    tables = "".join(
        _table(_heading(role, result.source), [row for row in result.rows if row.role is role])
        for role in Role
    )
    budget = Budget(bool(result.stamp.get("full")), result.stamp.get("seeds", 1))
    command = f"pullback reproduce {result.name} --budget {budget.label} --seeds {budget.seeds}"
    made = (
        f"<code>{escape(command)}</code> · {result.seconds:.1f} s · {escape(result.date)} · "
        '<a href="#summary">summary</a>'
    )
    folded = _derivation(result) + _code(result)
    return f"""<section class="claim" id="{escape(result.name, quote=True)}">
<header><h3>{escape(result.name)}</h3>{_badge(result)}</header>
<p class="soft">{escape(result.place)}</p>
{quotation}<p>{_prose(result.statement)}</p>
{correction}{_figure(result, folder)}{tables}{folded}{error}<p class="soft">{made}</p>
</section>
"""


def _prose(text: str) -> str:
    """Words with names between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _derivation(result: Result) -> str:
    """What the module of a claim says about it, folded."""
    if not result.derivation:
        return ""
    inside = to_html(result.derivation)
    return f"<details><summary>What is behind it</summary>\n{inside}</details>\n"


def _code(result: Result) -> str:
    """The module that measures a claim, folded."""
    ours = result.code.startswith(f"{papers.__name__}.")
    module = importlib.util.find_spec(result.code) if ours else None
    if module is None or module.origin is None:
        return ""
    text = escape(Path(module.origin).read_text(encoding="utf-8"))
    name = escape(result.code)
    return f"<details><summary>Code: <code>{name}</code></summary>\n<pre>{text}</pre></details>\n"


def _badge(result: Result) -> str:
    """The verdict as a coloured label."""
    tone = TONES[result.verdict] if result.verdict and result.agrees else "bad"
    return f'<span class="badge {tone}">{escape(format_outcome(result))}</span>'


def _figure(result: Result, folder: Path) -> str:
    """The picture of a claim, inside the page."""
    if "png" not in result.pictures:
        return ""
    try:
        content = (folder / f"{result.name}.png").read_bytes()
    except OSError:  # removed since the result was read
        return ""
    width, height = struct.unpack(">II", content[16:24])  # from the first chunk of a PNG file
    wide = ' class="wide"' if width > 1.8 * height else ""
    alt = escape(result.alt, quote=True)
    data = base64.b64encode(content).decode()
    return (
        f'<figure tabindex="0"><img{wide} width="{width}" height="{height}" alt="{alt}" '
        f'src="data:image/png;base64,{data}">\n'
        f"<figcaption>{_prose(result.alt)}</figcaption></figure>\n"
    )


def _heading(role: Role, source: str) -> str:
    """The heading of the rows of one role."""
    return "As we state it" if (role, source) == (Role.STATED, "ours") else GROUPS[role]


def _table(heading: str, rows: list[Row]) -> str:
    """The rows of one role."""
    if not rows:
        return ""
    head = (
        '<tr><th scope="col">what</th><th scope="col" class="number">measured</th>'
        '<th scope="col" class="number">bound</th><th scope="col">holds</th></tr>'
    )
    return (
        f'<h4>{heading}</h4>\n<table class="rows">\n<thead>{head}</thead>\n'
        f"<tbody>\n{''.join(map(_row, rows))}</tbody>\n</table>\n"
    )


def _row(row: Row) -> str:
    """One measured number."""
    measured = escape(format_number(row.measured))
    tone, word = ("good", "yes") if row.holds else ("bad", "no")
    return (
        f'<tr><td>{escape(row.label)}</td><td class="number" data-label="measured">{measured}</td>'
        f'<td class="number" data-label="bound">{escape(format_bound(row))}</td>'
        f'<td><span class="badge {tone}">{word}</span></td></tr>\n'
    )
