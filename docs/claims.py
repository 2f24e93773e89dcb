"""`python docs/claims.py`: writes docs/claims.md and its figures from finished runs.

Run before: `pullback reproduce --budget full`, which writes the folder `report`, and, for the table
of other random keys, `pullback keys`, which writes the folder `keys`. The page has the summary of
the former, the figures that are named below, at full size, and the table of the latter if there is
one. A claim that the latter does not have keeps its line of the page as it was: `pullback keys
NAME...` is enough for claims that changed. Other folders are the first and the second argument. A
report that is not of the full budget, or has a claim missing or a verdict that differs from the one
on record, is refused.
"""

import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
FIGURES = {
    "depth-figure-4": "Figure 4 of Kerekes, Mészáros, Huszár",
    "depth-figure-5": "Figure 5 of Kerekes, Mészáros, Huszár",
    "depth-figure-6": "Figure 6 of Kerekes, Mészáros, Huszár",
    "depth-grid-search": "Natural gradient descent in products of matrices",
    "masked-steps": "The same with the Fisher matrix of the observed entries",
    "batch-fisher": "Stochastic natural gradients",
    "one-manifold": "One manifold for all depths",
    "example-2": "A singular point",
    "rosenbrock": "The Rosenbrock function in both spaces",
    "peak": "Accuracy over N/D",
}
"""The claims whose figures are in the documentation, with a title."""

HEAD = """# What holds

`pullback reproduce` (or `make reproduce`) runs the theorems, examples, appendices and figures of the
documents that this library is built on, and what we found beside them. [Coverage of the
sources](coverage.md) lists every item. A claim is a statement and measured numbers, each compared
with a bound; its verdict is computed from them. It *holds* if what is stated holds. It *holds with
correction* if that fails and our correction holds; then the page says whether the conclusion of the
source stands or changes. It *does not hold* if neither does. `pullback reproduce NAME` runs one
claim and writes a page with all numbers, figures and derivations.

A check that cannot fail proves nothing. `pytest -m mutants -vv` breaks the subject of every claim
(the natural gradient is damped, a Fisher matrix is 1 % too large, small singular values are cut) and
requires that the verdict changes. A claim without such a mutant fails a test.

The tables are the summary of a run at the sizes of the papers; `python docs/claims.py` writes this
page from it. The last table says what happens from other random keys, at quick sizes. `pullback
keys` writes it and, in `numbers.md`, the interval of every number of every claim over these keys.

"""


KEYS = "\n## Other random keys\n\n"
"""What precedes the table of other random keys."""


def page(report: Path, keys: Path, before: str = "") -> tuple[str, dict[str, bytes]]:
    """The Markdown page, and its figures by file name; `before` is the page as it was."""
    content = json.loads((report / "results.json").read_text(encoding="utf-8"))
    if content["budget"] != "full" or content["missing"]:
        raise SystemExit(
            f"{report} is a {content['budget']} run without {len(content['missing'])} claims: run "
            "`pullback reproduce --budget full` first."
        )
    differing = [result["name"] for result in content["results"] if not result["agrees"]]
    if differing:
        raise SystemExit(f"the verdict on record is another one: {', '.join(differing)}.")
    text = HEAD + (report / "summary.md").read_text(encoding="utf-8")
    figures = {}
    text += "\n## Figures\n\n`pullback reproduce NAME --budget full` draws one of them.\n"
    results = {result["name"]: result for result in content["results"]}
    for name, title in FIGURES.items():
        if name in results:
            figures[f"{name}.png"] = (report / "claims" / f"{name}.png").read_bytes()
            image = f"![{title}](assets/claims/{name}.png)"
            text += f"\n### {title}\n\n{image}\n\n`{name}`: {results[name]['alt']}\n"
    table = keys / "keys.md"
    if table.exists():
        old = before.partition(KEYS)[2]
        text += KEYS + merged(table.read_text(encoding="utf-8"), old, list(results))
    return text, figures


def merged(table: str, before: str, names: list[str]) -> str:
    """A table of keys, with the lines for claims of `names` that only an earlier one has."""
    command = table.partition("`:")[0]
    finished = "The run was interrupted" not in table
    if not (finished and before.startswith(f"{command}`:")):
        return table
    lines: dict[str, str] = {}
    fixed: set[str] = set()
    for line in (before + table).splitlines(keepends=True):
        if line.startswith("The same from every key:"):
            same = re.findall("`(.+?)`", line)
            lines = {name: text for name, text in lines.items() if name not in same}
            fixed |= set(same)
        elif line.startswith("| `"):
            name = line.split("`")[1]
            lines[name] = line
            fixed.discard(name)
    kept = sorted((lines[name] for name in names if name in lines), key=_share)
    flipped = sum(_share(line) < 1 for line in kept)
    same = [f"`{name}`" for name in names if name in fixed]
    head = "".join(line for line in before.splitlines(True) if line[:6] in ("| clai", "|---|-"))
    return (
        f"{command}`: {len(kept) + len(same)} claims, of which {len(kept)} depend on the random "
        f"key; {flipped} of them had another verdict from some key.\n\n{head}{''.join(kept)}"
        + (f"\nThe same from every key: {', '.join(same)}.\n" if same else "")
    )


def _share(line: str) -> float:
    """The fraction of the keys that give the verdict on record, from a line of the table."""
    keys, agreeing = line.replace("\\|", "").split("|")[3:5]
    return int(agreeing.partition(";")[0]) / int(keys)


def main(report: str = "report", keys: str = "keys") -> None:
    """Write the page and its figures."""
    before = (DOCS / "claims.md").read_text(encoding="utf-8")
    text, figures = page(Path(report), Path(keys), before)
    for name, content in figures.items():
        (DOCS / "assets" / "claims" / name).write_bytes(content)
    (DOCS / "claims.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
