"""Docstrings of claims as HTML: formulas become MathML, everything else is escaped."""

import importlib
import re

import pytest

from pullback_lab.papers import REGISTRY
from pullback_lab.report.derivation import to_html


def test_formulas_words_and_what_must_be_escaped():
    html = to_html(
        "A *word*, `x < y` & <b>no tag</b>, \\(a < b_i\\):\n\n"
        "\\[ v = \\arg\\min_v\nf(v) \\]\n\n- one"
    )
    assert "<em>word</em>" in html and "<code>x &lt; y</code>" in html
    assert "&lt;b&gt;no tag&lt;/b&gt;" in html and "<li>one</li>" in html
    assert html.count("<math") == 2 and html.count('display="block"') == 1
    assert "\\" not in html and "<mi>arg</mi>" in html.replace("<mo>arg</mo>", "<mi>arg</mi>")


@pytest.mark.parametrize("module", sorted({entry.module for entry in REGISTRY.entries.values()}))
def test_every_formula_of_every_claim_is_drawn(module):
    text = importlib.import_module(module).__doc__
    assert text, "a claim explains itself"
    html = to_html(text)
    # A command that the converter does not know is left as text; \u0005C is set minus.
    assert not re.search(r"\\[a-zA-Z]", html), re.findall(r".{30}\\[a-zA-Z]+", html)
    assert html.count("<math") == len(re.findall(r"\\\(|\\\[", text))
