"""Every claim reaches the verdict on record with the quick budget; verdicts follow from rows; the
registry is complete and without duplicates.
"""

import importlib
import pickle
import pkgutil
import re
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import pullback_lab.papers
from pullback_lab.papers import (
    KEYS,
    MODULES,
    REGISTRY,
    SOURCES,
    Budget,
    Claim,
    Measured,
    Role,
    Verdict,
    at_least,
    at_most,
    collect,
    equals,
    judge,
)
from pullback_lab.papers._numbers import distance, generator
from pullback_lab.report.result import decode, encode

HEAVY = {
    "batch-fisher",
    "commuting-completion",
    "depth-figure-2",
    "depth-figure-4",
    "depth-figure-5",
    "depth-figure-6",
    "depth-grid-search",
    "depth-stochastic",
    "masked-completion",
    "masked-steps",
    "min-l1",
    "parametrisation",
}
FORMULAS_ONLY = {"depth-typos", "depth-parametrisations"}
"""Claims on formulas of a source, without words to quote."""


def labelled(axes):
    """Whether both axes say what they are, unless they have no numbers: a map, a panel that shares
    the axis of the one below.
    """
    if not (axes.get_visible() and axes.axison):
        return True
    sides = ((axes.xaxis, "labelbottom"), (axes.yaxis, "labelleft"))
    numbered = [
        axis
        for axis, side in sides
        if len(axis.get_majorticklocs()) and axis.get_tick_params().get(side, True)
    ]
    return all(axis.get_label_text() for axis in numbered)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in REGISTRY],
)
def test_the_quick_run_comes_to_the_verdict_on_record(name):
    claim = REGISTRY[name]
    measured = claim.measure(Budget())
    assert [row for row in measured.rows if row.role is not Role.STATED and not row.holds] == []
    assert judge(measured.rows) is claim.verdict
    assert len({row.label for row in measured.rows}) == len(measured.rows)
    assert not claim.key_number or claim.key_number in {row.label for row in measured.rows}
    assert not any(
        np.isnan(row.measured) for row in measured.rows
    )  # that a formula overflows is an answer
    if claim.draw is not None:
        figure = claim.draw(decode(encode(measured.data)))
        assert [axes.get_title() for axes in figure.axes if not labelled(axes)] == []


@pytest.mark.parametrize("name", REGISTRY)
def test_what_a_claim_says_about_itself(name):
    claim = REGISTRY[name]
    assert claim.source in SOURCES and claim.place and claim.statement.endswith((".", ".)"))
    assert bool(claim.correction) == (claim.verdict is Verdict.CORRECTED)
    assert bool(claim.quotation) == (claim.source != "ours" and name not in FORMULAS_ONLY)
    assert not claim.remark or claim.verdict is Verdict.HOLDS


def test_the_table_of_other_keys_has_what_the_claims_say():
    """docs/claims.md has a run of `pullback keys`; a claim says how many keys give its verdict."""
    text = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
    table = text.split("## Other random keys")[1]
    cells = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert {row[2] for row in cells} == {str(KEYS)}
    counted = {row[0].strip("| `"): int(row[3].split(";")[0]) for row in cells}
    fixed = re.findall("`([^`]+)`", table.split("The same from every key:")[1])
    assert counted | dict.fromkeys(fixed, KEYS) == {c.name: c.keys for c in REGISTRY.values()}


def test_every_claim_file_is_registered():
    registered = {
        f"pullback_lab.papers.{folder}.{name}"
        for folder, names in MODULES.items()
        for name in names
    }
    found = set()
    for info in pkgutil.walk_packages(pullback_lab.papers.__path__, "pullback_lab.papers."):
        module = importlib.import_module(info.name)
        if hasattr(module, "CLAIM") or hasattr(module, "CLAIMS"):
            found.add(info.name)
    assert found == registered and set(MODULES) == set(SOURCES)


def made(name, source="ours", verdict=Verdict.HOLDS):
    return Claim(
        name=name,
        source=source,
        place="here",
        statement="It holds.",
        verdict=verdict,
        run=lambda budget, key: Measured(()),
    )


@pytest.fixture
def module(monkeypatch):
    """Define a module of claims."""

    def define(name, *claims):
        found = types.ModuleType(name)
        found.CLAIMS = claims
        monkeypatch.setitem(sys.modules, f"made.ours.{name}", found)

    return define


def test_the_registry_knows_names_before_it_imports():
    registry = collect({"ours": {"nowhere": ("one", "two")}}, "made")
    assert list(registry) == ["one", "two"] and "one" in registry and len(registry) == 2
    with pytest.raises(ModuleNotFoundError):
        registry["one"]


def test_the_registry_can_be_sent_to_another_process(module):
    module("a", made("one"))
    again = pickle.loads(pickle.dumps(collect({"ours": {"a": ("one",)}}, "made")))
    assert again["one"].name == "one"


def test_the_registry_refuses_a_name_that_occurs_twice():
    with pytest.raises(ValueError, match="two claims are called 'one'"):
        collect({"ours": {"a": ("one",), "b": ("one",)}}, "made")


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ((made("other"),), r"defines the claims \['other'\]"),
        ((made("one"), made("unlisted")), "unlisted"),
        ((made("one", "depth"),), "names the source 'depth'"),
    ],
)
def test_the_registry_refuses_a_module_that_defines_other_claims(module, claims, words):
    module("a", *claims)
    with pytest.raises(ValueError, match=words):
        collect({"ours": {"a": ("one",)}}, "made")["one"]


def row(holds, role):
    return at_most("", 0.0 if holds else 2.0, 1.0, role)


STATED, KEPT, CORRECTED, CONTROL = Role.STATED, Role.KEPT, Role.CORRECTED, Role.CONTROL


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([row(True, STATED)], Verdict.HOLDS),
        ([row(True, STATED), row(True, CONTROL)], Verdict.HOLDS),
        ([row(True, STATED), row(False, CORRECTED)], Verdict.HOLDS),
        ([row(True, STATED), row(False, STATED)], Verdict.FAILS),
        ([row(False, STATED), row(True, CORRECTED)], Verdict.CORRECTED),
        ([row(False, STATED), row(True, CORRECTED), row(False, CORRECTED)], Verdict.FAILS),
        ([row(True, KEPT)], Verdict.HOLDS),
        ([row(True, KEPT), row(False, STATED)], Verdict.FAILS),
        ([row(True, KEPT), row(False, STATED), row(True, CORRECTED)], Verdict.CORRECTED),
        ([row(False, KEPT), row(False, STATED), row(True, CORRECTED)], Verdict.FAILS),
        ([row(False, KEPT), row(True, STATED), row(True, CORRECTED)], Verdict.FAILS),
        ([row(True, CORRECTED)], Verdict.OPEN),
        ([row(True, CONTROL)], Verdict.OPEN),
        ([row(True, STATED), row(False, CONTROL)], None),
        ([], None),
    ],
)
def test_verdicts_follow_from_rows(rows, verdict):
    assert judge(rows) is verdict


def test_rows_can_fail():
    nan = float("nan")
    assert [at_most("", x, 1.0).holds for x in (0.5, 1.0, 2.0, nan)] == [True, True, False, False]
    assert [at_least("", x, 1.0).holds for x in (0.5, 1.0, 2.0, nan)] == [False, True, True, False]
    assert [equals("", x, 2).holds for x in (1, 2, nan)] == [False, True, False]
    assert (
        distance([3.0, 4.0], [3.0, 3.0]) == pytest.approx(1 / np.sqrt(18))
        and distance([2.0], [0.0]) == 2.0
    )


@pytest.mark.parametrize("bound", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("row", [at_most, at_least, equals])
def test_rows_refuse_bounds_that_hold_always_or_never(row, bound):
    with pytest.raises(ValueError, match="needs a finite bound"):
        row("error", 1.0, bound)


def test_claims_refuse_single_precision():
    with jax.enable_x64(False), pytest.raises(RuntimeError, match="jax_enable_x64"):
        made("one").measure()


def test_each_claim_has_a_key_of_its_own():
    drawn = {}
    for name in ("one", "two"):
        claim = made(name)
        object.__setattr__(
            claim,
            "run",
            lambda budget, key, name=name: drawn.setdefault(
                name, generator(key).standard_normal(3)
            ),
        )
        claim.measure()
    assert distance(drawn["one"], drawn["two"]) > 0.1


def test_the_readme_counts_the_verdicts_on_record():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    for source in SOURCES:
        own = [claim.verdict for claim in REGISTRY.values() if claim.source == source]
        if own:
            counts = " | ".join(str(own.count(verdict)) for verdict in Verdict)
            assert f"| `{source}` | {len(own)} | {counts} |" in text, (
                f"README.md must say | `{source}` | {len(own)} | {counts} |"
            )
    stands = [claim.stands for claim in REGISTRY.values() if claim.stands is not None]
    words = f"Of the {len(stands)} claims with a correction, the conclusion that the source draws "
    words += f"stands in {sum(stands)} and changes in {len(stands) - sum(stands)}."
    assert words in " ".join(text.split())
