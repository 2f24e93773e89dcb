"""The report as one HTML page: no script, nothing from the network, pictures inside, light or dark
as the reader prefers, narrow or wide.
"""

import base64
import struct
from collections.abc import Iterable
from html import escape
from pathlib import Path

from ..papers import SOURCES, Role, Row, Verdict
from .result import Result
from .run import Report
from .style import STYLE
from .terminal import against, number, outcome

TITLE = "pullback: what was claimed, and what holds"
INTRODUCTION = (
    "Each claim of the sources is measured in float64, and each number is held against a bound: ≤ for an error, ≥ for a difference that must "
    "be there, = for a count. A claim holds if it holds as stated; it holds with correction if what is stated fails and our correction does "
    "not. Controls must hold for the rest to mean anything."
)
NOTATION = (
    "Notation: θ or ξ parameters, z outputs, J = ∂z/∂θ, c = dL = ∂L/∂z, g = Jᵀc the gradient; M the metric on the outputs, G = JᵀMJ the same "
    "on the parameters, G⁺ its Moore-Penrose inverse; M⁻¹c the ambient gradient, Π the projection on the motions that the model can make; "
    "δ = G⁺g the natural gradient, Jδ its pushforward. Differences of vectors and matrices are relative."
)
TONES = {Verdict.HOLDS: "good", Verdict.CORRECTED: "amended", Verdict.FAILS: "bad", Verdict.OPEN: "open"}
GROUPS = {Role.STATED: "As the source states it", Role.CORRECTED: "As corrected here", Role.CONTROL: "Controls"}


def page(report: Report, folder: Path) -> str:
    """The whole page."""
    made = report.versions
    versions = ", ".join(f"{name} {version}" for name, version in made.items())
    size, seeds = ("full" if report.budget.full else "quick"), report.budget.seeds
    missing = f'<p class="soft">Not run: {escape(", ".join(report.missing))}.</p>\n' if report.missing else ""
    tone = "good" if report.complete and not report.differing else "bad"
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
{_counts(report.results)}
{missing}<nav aria-label="Summary">
{_summary(report.results)}</nav>
<main>
{_sections(report, folder)}</main>
<footer class="soft">
<p>{NOTATION}</p>
<p>{escape(report.date)} · budget {size}, {seeds} seed{"s" if seeds > 1 else ""} · {escape(versions)}</p>
</footer>
</body>
</html>
"""


def _counts(results: Iterable[Result]) -> str:
    results = tuple(results)
    items = [(v.value, TONES[v], sum(r.verdict is v for r in results)) for v in Verdict]
    items.append(("no verdict", "bad", sum(r.verdict is None for r in results)))
    chips = "".join(f'<li class="{tone}"><b>{count}</b>{escape(name)}</li>' for name, tone, count in items if count)
    return f'<ul class="counts" aria-label="Verdicts">{chips}</ul>'


def _by_source(results: Iterable[Result]) -> dict[str, list[Result]]:
    results = tuple(results)
    groups = {source: [result for result in results if result.source == source] for source in SOURCES}
    return {source: group for source, group in groups.items() if group}


def _summary(results: Iterable[Result]) -> str:
    head = '<th scope="col">claim</th><th scope="col">where</th><th scope="col">verdict</th><th scope="col" class="number">key number</th>'
    bodies = ""
    for source, group in _by_source(results).items():
        rows = "".join(
            f'<tr><td class="claimname"><a href="#{escape(r.name, quote=True)}">{escape(r.name)}</a></td>'
            f'<td class="place soft">{escape(r.place)}</td><td>{_badge(r)}</td><td class="number">{escape(against(r.key_row))}</td></tr>\n'
            for r in group
        )
        bodies += f'<tbody>\n<tr><th colspan="4" scope="rowgroup">{escape(SOURCES[source])}</th></tr>\n{rows}</tbody>\n'
    return f'<table class="summary">\n<thead><tr>{head}</tr></thead>\n{bodies}</table>\n'


def _sections(report: Report, folder: Path) -> str:
    parts = []
    for source, group in _by_source(report.results).items():
        parts.append(f"<h2>{escape(SOURCES[source])}</h2>\n")
        parts.extend(_section(result, folder) for result in group)
    return "".join(parts)


def _section(result: Result, folder: Path) -> str:
    correction = f'<p class="correction"><b>Correction.</b> {escape(result.correction)}</p>\n' if result.correction else ""
    error = f'<pre class="bad">{escape(result.error)}</pre>\n' if result.error is not None else ""
    tables = "".join(_table(role, [row for row in result.rows if row.role is role]) for role in Role)
    size, seeds = ("full" if result.stamp.get("full") else "quick"), result.stamp.get("seeds")
    command = escape(f"pullback reproduce {result.name} --budget {size} --seeds {seeds}")
    return f"""<section class="claim" id="{escape(result.name, quote=True)}">
<header><h3>{escape(result.name)}</h3>{_badge(result)}</header>
<p class="soft">{escape(result.place)}</p>
<p>{escape(result.statement)}</p>
{correction}{_figure(result, folder)}{tables}{error}<p class="soft"><code>{command}</code> · {result.seconds:.1f} s · {escape(result.date)}</p>
</section>
"""


def _badge(result: Result) -> str:
    tone = TONES[result.verdict] if result.verdict and result.agrees else "bad"
    return f'<span class="badge {tone}">{escape(outcome(result))}</span>'


def _figure(result: Result, folder: Path) -> str:
    path = folder / f"{result.name}.png"
    if "png" not in result.pictures or not path.exists():
        return ""
    content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])  # of a PNG, from its first chunk
    data = base64.b64encode(content).decode()
    alt = escape(result.alt, quote=True)
    wide = ' class="wide"' if width > 1.8 * height else ""
    return f'<figure tabindex="0"><img{wide} width="{width}" height="{height}" alt="{alt}" src="data:image/png;base64,{data}"></figure>\n'


def _table(role: Role, rows: list[Row]) -> str:
    if not rows:
        return ""
    head = '<tr><th scope="col">what</th><th scope="col" class="number">measured</th><th scope="col" class="number">bound</th>'
    body = "".join(_row(row) for row in rows)
    return (
        f'<h4>{GROUPS[role]}</h4>\n<table class="rows">\n<thead>{head}<th scope="col">holds</th></tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table>\n"
    )


def _row(row: Row) -> str:
    measured, bound = escape(number(row.measured)), escape(f"{row.relation} {number(row.bound)}")
    badge = f'<span class="badge {"good" if row.holds else "bad"}">{"yes" if row.holds else "no"}</span>'
    return (
        f'<tr><td>{escape(row.label)}</td><td class="number" data-label="measured">{measured}</td>'
        f'<td class="number" data-label="bound">{bound}</td><td>{badge}</td></tr>\n'
    )
