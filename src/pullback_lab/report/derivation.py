r"""The docstring of a claim's module as HTML: Markdown, with its formulas as MathML.

MathML needs neither a script nor the network, and every current browser draws it.
"""

import re

from latex2mathml.converter import convert
from markdown_it import MarkdownIt

FORMULA = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# From the private use area, so that no text holds it and Markdown leaves it alone.
OPEN, CLOSE = "\ue000", "\ue001"


def to_html(text: str) -> str:
    """A derivation as HTML; what is not a formula is escaped by the renderer of Markdown."""
    formulas: list[str] = []

    def keep(match: re.Match[str]) -> str:
        display = match[2]
        # The converter does not know \arg.
        source = re.sub(r"\\arg(?![a-z])", r"\\operatorname{arg}", " ".join(match[0][2:-2].split()))
        formula = convert(source, display="inline" if display is None else "block")
        formulas.append(formula.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', ""))
        return f"{OPEN}{len(formulas) - 1}{CLOSE}"

    marked = FORMULA.sub(keep, text)
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(marked)
    return re.sub(f"{OPEN}(\\d+){CLOSE}", lambda match: formulas[int(match[1])], html)
