"""The coverage table: its claims and functions exist, no claim is missing, the page is current."""

import functools
from pathlib import Path

import pytest

import pullback as pb
from pullback_lab.papers import REGISTRY, SOURCES
from pullback_lab.papers._coverage import _item, items, table

ITEMS = list(items())
PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"


def test_claims_and_functions_exist():
    for item in ITEMS:
        assert item.claims or item.remark, f"{item.text}: neither a claim nor a reason"
        for name in item.claims:
            assert name in REGISTRY, f"{item.text}: no claim {name}"
        for name in item.functions:
            functools.reduce(getattr, name.split("."), pb)


def test_every_claim_of_a_source_is_in_the_table_and_every_source():
    named = {name for item in ITEMS for name in item.claims}
    missing = [name for name, e in REGISTRY.entries.items() if e.source != "ours"]
    assert set(missing) <= named, sorted(set(missing) - named)
    assert {item.source for item in ITEMS} == set(SOURCES) - {"ours"}


def test_the_page_is_what_the_command_prints():
    assert PAGE.read_text(encoding="utf-8").endswith(table()), (
        "docs/coverage.md is out of date: its head, then what `pullback coverage` prints."
    )


def test_a_line_with_too_few_parts():
    with pytest.raises(ValueError, match=r"text \| claims \| functions"):
        _item("depth", "Theorem 1 | depth-theorem-1")
