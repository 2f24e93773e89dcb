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
