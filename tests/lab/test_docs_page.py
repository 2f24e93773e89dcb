"""`python docs/claims.py`: the page of a finished run, its figures, and what is refused."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "claims.py"
page = runpy.run_path(str(SCRIPT))["page"]
RESULTS = [
    {"name": "peak", "agrees": True, "alt": "Both fall."},
    {"name": "lemma-1", "agrees": True, "alt": ""},
    {"name": "depth-figure-4", "agrees": True, "alt": "Three panels."},
]


@pytest.fixture
def report(tmp_path):
    def write(**changed):
        content = {"budget": "full", "missing": [], "results": RESULTS} | changed
        (tmp_path / "claims").mkdir(exist_ok=True)
        (tmp_path / "results.json").write_text(json.dumps(content))
        (tmp_path / "summary.md").write_text("the tables\n")
        for name in ("peak", "depth-figure-4"):
            (tmp_path / "claims" / f"{name}.png").write_bytes(name.encode())
        return tmp_path

    return write


def test_the_page_has_the_summary_the_figures_and_the_table_of_keys(report):
    folder = report()
    text, figures = page(folder, folder / "nowhere")
    assert "the tables" in text and "Other random keys" not in text
    assert figures == {"peak.png": b"peak", "depth-figure-4.png": b"depth-figure-4"}
    first, second = (text.index(f"assets/claims/{name}") for name in ("depth-figure-4", "peak"))
    assert first < second and "`peak`: Both fall." in text

    (folder / "keys.md").write_text("a table of keys\n")
    assert page(folder, folder)[0].endswith("## Other random keys\n\na table of keys\n")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"budget": "quick"}, "a quick run"),
        ({"missing": ["lemma-1"]}, "without 1 claims"),
        ({"results": [*RESULTS, {"name": "proofs", "agrees": False}]}, "another one: proofs"),
    ],
)
def test_what_is_not_a_finished_full_run_is_refused(report, changed, words):
    with pytest.raises(SystemExit, match=words):
        page(report(**changed), Path("keys"))


def test_every_figure_is_that_of_a_claim_that_draws():
    from pullback_lab.papers import REGISTRY

    named = runpy.run_path(str(SCRIPT))["FIGURES"]
    assert [name for name in named if REGISTRY[name].draw is None] == []


TABLE = """`pullback keys --count 20`: {} claims, of which {} depend on the random key; {} of them \
had another verdict from some key.

| claim | verdict on record | keys | as on record | key number, least to largest |
|---|---|---:|---:|---|
"""


def test_claims_that_were_not_run_from_other_keys_again_keep_their_lines(report):
    line = "| `{}` | holds | 20 | {} | \\|x\\|: {} |\n".format
    first = TABLE.format(4, 3, 1)
    first += line("peak", "19; does not hold 1", "0 to 1") + line("lemma-1", 20, "0 to 2")
    first += line("gone", 20, "1 to 2") + "\nThe same from every key: `depth-figure-4`.\n"
    second = TABLE.format(2, 1, 1) + line("lemma-1", "18; no verdict 2", "0 to 3")
    second += "\nThe same from every key: `peak`.\n"
    folder = report()
    (folder / "keys.md").write_text(first)
    before = page(folder, folder)[0]
    # In the order of the claims, none that there is no longer, and those that flipped first.
    (folder / "keys.md").write_text(second)
    expected = TABLE.format(3, 1, 1) + line("lemma-1", "18; no verdict 2", "0 to 3")
    expected += "\nThe same from every key: `peak`, `depth-figure-4`.\n"
    assert page(folder, folder, before)[0].partition("keys\n\n")[2] == expected

    # Nothing is kept from other keys, nor put into an interrupted run.
    for other in (
        second.replace("--count 20", "--count 7"),
        second.replace("\n\n|", "\n\nThe run was interrupted: some keys are missing.\n\n|", 1),
    ):
        (folder / "keys.md").write_text(other)
        assert page(folder, folder, before)[0].endswith(other)


def test_the_table_of_keys_on_the_page_merges_with_itself():
    from pullback_lab.papers import REGISTRY

    script = runpy.run_path(str(SCRIPT))
    table = (SCRIPT.parent / "claims.md").read_text(encoding="utf-8").partition(script["KEYS"])[2]
    again = script["merged"](table, table, list(REGISTRY))
    assert sorted(again.splitlines()) == sorted(table.splitlines())
