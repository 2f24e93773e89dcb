"""The style sheet of the report: light or dark, narrow or wide, on screen or on paper."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5c6470; --paper: #fcfcfb; --card: #fff;
  --line: #dfe2e6; --link: #0b57a4;
  --good: #146c43; --good-paper: #e3f3ea; --amended: #7a4b00; --amended-paper: #fdf0d5;
    --bad: #a4161a; --bad-paper: #fbe6e6;
  --open: #2f4b7c; --open-paper: #e6ecf7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3af; --paper: #14171b;
  --card: #1c2026; --line: #333a43; --link: #8ec5ff;
  --good: #7bd6a4; --good-paper: #16352a; --amended: #f2c572; --amended-paper: #3b2c0c;
    --bad: #ff9d9d; --bad-paper: #43201f;
  --open: #a9c1ee; --open-paper: #202c42; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
a { color: var(--link); text-underline-offset: .15em; }
a:focus-visible { outline: 2px solid; outline-offset: 2px; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .4rem; text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .8rem; text-wrap: balance; }
h3 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
h4 { font-size: .8125rem; margin: .9rem 0 0; color: var(--soft); font-weight: 600; }
p { margin: .35rem 0; max-width: 48rem; }
.soft { color: var(--soft); font-size: .875rem; }
.sum { font-weight: 600; border-left: .3rem solid; padding: .5rem .9rem; margin: 1.2rem 0 .8rem;
  border-radius: .2rem; max-width: none; }
.good { color: var(--good); background: var(--good-paper); border-color: var(--good); }
.amended { color: var(--amended); background: var(--amended-paper); border-color: var(--amended); }
.bad { color: var(--bad); background: var(--bad-paper); border-color: var(--bad); }
.open { color: var(--open); background: var(--open-paper); border-color: var(--open); }
.counts { display: flex; flex-wrap: wrap; gap: .5rem; margin: 0 0 1.2rem; padding: 0;
  list-style: none; }
.counts li { border-radius: .5rem; padding: .3rem .8rem; font-size: .875rem; font-weight: 600; }
.counts b { font-size: 1.15rem; margin-right: .3rem; font-variant-numeric: tabular-nums; }
.badge { border-radius: 1rem; padding: .1rem .7rem; font-size: .8125rem; font-weight: 600;
  white-space: nowrap; }
section.claim { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: 1rem 1.1rem; margin: 0 0 1rem;
  scroll-margin-top: 1rem; }
section.claim:target { border-color: var(--link); }
header { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .3rem .8rem;
  align-items: baseline; }
.correction { border-left: .2rem solid var(--amended); padding-left: .8rem; margin: .7rem 0; }
figure { margin: 1rem 0 .6rem; }
figure img { display: block; max-width: 100%; height: auto; background: #fff;
  border-radius: .3rem; }
figcaption { color: var(--soft); font-size: .875rem; margin-top: .4rem; max-width: 48rem; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--link); font-size: .875rem; }
details p, details li { font-size: .9375rem; }
math[display="block"] { overflow-x: auto; overflow-y: hidden; max-width: 100%; }
code { font-size: .875em; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; margin-top: .4rem; font-size: .9375rem; }
th { text-align: left; font-size: .8125rem; color: var(--soft); font-weight: 600; }
th, td { padding: .35rem .8rem .35rem 0; border-top: 1px solid var(--line); vertical-align: top; }
thead th { border-top: 0; }
tbody th { padding-top: 1rem; color: var(--ink); font-size: .875rem; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.rows .number { width: 6.5rem; }
.rows td:last-child, .rows th:last-child { width: 4rem; }
td .badge { white-space: normal; display: inline-block; }
.claimname { white-space: nowrap; }
pre { overflow-x: auto; padding: .8rem; border-radius: .4rem; font-size: .8125rem; }
footer { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
@media (max-width: 40rem) {
  body { padding: 1.2rem .8rem 3rem; }
  thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table, tbody { display: block; }
  tbody tr { display: flex; flex-wrap: wrap; gap: .1rem 1rem; border-top: 1px solid var(--line);
    padding: .5rem 0; align-items: baseline; }
  th, td, td:last-child, .rows td:last-child { border: 0; padding: 0; width: auto; }
  tbody th { padding-top: .6rem; }
  .rows td:first-child { flex: 0 0 100%; overflow-wrap: anywhere; }
  .rows td:last-child { margin-left: auto; }
  .claimname { white-space: normal; overflow-wrap: anywhere; font-weight: 600; }
  .place { flex: 0 0 100%; order: 3; }
  figure { overflow-x: auto; }
  figure img.wide { max-width: none; width: 40rem; }
  td.number, .rows td.number { text-align: left; width: auto; }
  td.number[data-label]::before { content: attr(data-label) " "; color: var(--soft); }
}
@media print { section.claim { break-inside: avoid; } }
"""
