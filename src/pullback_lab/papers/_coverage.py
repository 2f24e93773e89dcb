"""What the sources say, item by item: the claims that measure it, and the functions of the library.

`pullback coverage` prints it as a table. One line an item: item | claims | functions | remark. An
item without a claim says in its remark why there is none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ._claim import SOURCES

FOLDER = Path(__file__).parent / "coverage"
HEAD = "| what the source says | claims | in the library |\n|---|---|---|\n"


class Item(NamedTuple):
    """A definition, theorem, formula, figure, remark or sentence of a source."""

    source: str
    text: str
    claims: tuple[str, ...]
    functions: tuple[str, ...]
    """Below `pullback`, e.g. `metric.Bernoulli`."""
    remark: str = ""


def items() -> Iterator[Item]:
    """All items, in the order of the sources; `ours` has none, it is what they leave out."""
    for source in SOURCES:
        path = FOLDER / f"{source}.txt"
        if not path.exists():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                yield _item(source, line)


def _item(source: str, line: str) -> Item:
    parts = [part.strip() for part in line.split("|")]
    if len(parts) not in (3, 4):
        raise ValueError(f"an item is: text | claims | functions [| remark], got {line!r}.")
    text, claims, functions = parts[:3]
    names = lambda words: tuple(word.strip() for word in words.split(",") if word.strip())
    return Item(source, text, names(claims), names(functions), *parts[3:])


def table() -> str:
    """The coverage in Markdown, one table a source."""
    found = list(items())
    without = sum(not item.claims for item in found)
    text = f"{len(found)} items, {len(found) - without} of them measured by a claim.\n"
    for source, title in SOURCES.items():
        own = [item for item in found if item.source == source]
        if own:
            text += f"\n## {title}\n\n{HEAD}{''.join(map(_line, own))}"
    return text


def _line(item: Item) -> str:
    code = lambda names: ", ".join(f"`{name}`" for name in names)
    claims = code(item.claims)
    if item.remark:
        claims = f"{claims}. {item.remark}" if claims else item.remark
    return f"| {item.text} | {claims} | {code(item.functions)} |\n"
