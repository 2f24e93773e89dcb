"""The report as one HTML page: no script, nothing from the network, light or dark as the reader prefers, narrow or wide."""

from html import escape

from ._run import Outcome, Report, Row
from ._terminal import number

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5c6470; --paper: #fcfcfb; --card: #fff; --line: #dfe2e6;
  --good: #146c43; --good-paper: #e3f3ea; --bad: #a4161a; --bad-paper: #fbe6e6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3af; --paper: #14171b; --card: #1c2026; --line: #333a43;
  --good: #7bd6a4; --good-paper: #16352a; --bad: #ff9d9d; --bad-paper: #43201f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .35rem 0; max-width: 46rem; }
p.verdict { max-width: none; }
.soft { color: var(--soft); font-size: .875rem; }
.verdict { font-weight: 600; border-left: .3rem solid; padding: .5rem .9rem; margin: 1.2rem 0; border-radius: .2rem; }
.good { color: var(--good); background: var(--good-paper); border-color: var(--good); }
.bad { color: var(--bad); background: var(--bad-paper); border-color: var(--bad); }
nav { display: flex; flex-wrap: wrap; gap: .4rem; margin-bottom: 1.6rem; }
nav a, .badge { border-radius: 1rem; padding: .1rem .7rem; font-size: .8125rem; font-weight: 600; text-decoration: none; white-space: nowrap; }
nav a:hover, nav a:focus-visible { outline: 2px solid; outline-offset: 1px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem 1.1rem; margin: 0 0 1rem;
  scroll-margin-top: 1rem; }
header { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .3rem .8rem; align-items: baseline; }
table { width: 100%; border-collapse: collapse; margin-top: .7rem; font-size: .9375rem; }
th { text-align: left; font-size: .8125rem; color: var(--soft); font-weight: 600; }
th, td { padding: .35rem .8rem .35rem 0; border-top: 1px solid var(--line); vertical-align: top; }
thead th { border-top: 0; }
th:last-child, td:last-child { padding-right: 0; width: 4rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; width: 6.5rem; }
pre { overflow-x: auto; padding: .8rem; border-radius: .4rem; font-size: .8125rem; }
footer { margin-top: 2rem; }
@media (max-width: 36rem) {
  body { padding: 1.2rem .8rem 3rem; }
  thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table, tbody { display: block; }
  tbody tr { display: flex; flex-wrap: wrap; gap: 0 1rem; border-top: 1px solid var(--line); padding: .5rem 0; }
  td, td:last-child { border: 0; padding: 0; width: auto; }
  td:first-child { flex: 0 0 100%; overflow-wrap: anywhere; }
  td:last-child { margin-left: auto; }
  td.number { text-align: left; width: auto; }
  td.number::before { content: attr(data-label) " "; color: var(--soft); }
}
@media print { section { break-inside: avoid; } nav { display: none; } }
"""

TITLE = "pullback: what was run, and what holds"
INTRODUCTION = (
    "Each example states a claim, measures it in float64, and holds the number against a bound: ≤ for an error, ≥ for a difference that must "
    "be there. A control is a formula that is known to be wrong, and must be caught."
)
NOTATION = (
    "Notation: θ or ξ parameters, z outputs, J = ∂z/∂θ, c = dL = ∂L/∂z, g = Jᵀc the gradient; M the metric on the outputs, G = JᵀMJ the same "
    "on the parameters, G⁺ its Moore-Penrose inverse; M⁻¹c the ambient gradient, Π the projection on the motions that the model can make; "
    "δ = G⁺g the natural gradient, Jδ its pushforward. Differences of vectors and matrices are relative."
)


def page(report: Report) -> str:
    """The whole page.

    **Arguments:**

    - `report`: what was run.
    """
    links = "".join(
        f'<a class="{_tone(outcome.holds)}" href="#{escape(outcome.name, quote=True)}">{escape(outcome.name)}</a>'
        for outcome in report.outcomes
    )
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{TITLE}</h1>
<p class="soft">{INTRODUCTION}</p>
<p class="soft">{NOTATION}</p>
<p class="verdict {_tone(report.holds)}">{escape(report.verdict)}</p>
<nav aria-label="Examples">{links}</nav>
<main>
{"".join(_section(outcome) for outcome in report.outcomes)}</main>
<footer class="soft">{escape(report.started)} · {escape(versions)}</footer>
</body>
</html>
"""


def _section(outcome: Outcome) -> str:
    badge = f'<span class="badge {_tone(outcome.holds)}">{"holds" if outcome.holds else "does not hold"}</span>'
    rows = "".join(_row(row) for row in outcome.rows)
    head = '<tr><th scope="col">what</th><th scope="col" class="number">measured</th><th scope="col" class="number">bound</th>'
    table = f'<table>\n<thead>{head}<th scope="col">holds</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n' if rows else ""
    error = f'<pre class="bad">{escape(outcome.error)}</pre>\n' if outcome.error is not None else ""
    return f"""<section id="{escape(outcome.name, quote=True)}">
<header><h2>{escape(outcome.name)}</h2>{badge}</header>
<p>{escape(outcome.statement)}</p>
<p class="soft">{escape(outcome.source)} · {outcome.seconds:.1f} s</p>
{table}{error}</section>
"""


def _row(row: Row) -> str:
    measured, bound = escape(number(row.measured)), escape(f"{row.relation} {number(row.bound)}")
    badge = f'<span class="badge {_tone(row.holds)}">{"yes" if row.holds else "no"}</span>'
    return (
        f'<tr><td>{escape(row.label)}</td><td class="number" data-label="measured">{measured}</td>'
        f'<td class="number" data-label="bound">{bound}</td><td>{badge}</td></tr>\n'
    )


def _tone(holds: bool) -> str:
    return "good" if holds else "bad"
