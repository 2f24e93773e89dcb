"""The command line and the report, on examples made for the purpose."""

import dataclasses
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pullback.cli as cli
from pullback._report import page, run
from pullback.cli import app


@dataclasses.dataclass
class Made:
    name: str
    rows: list
    source: str = "a paper"
    statement: str = "It holds & it is <measured>."
    raises: BaseException | None = None

    def run(self):
        yield from self.rows
        if self.raises is not None:
            raise self.raises


GOOD = Made("good", [("error", 1e-12, 1e-9, True), ("rank", 4, 4, True)])
BAD = Made("bad", [("error", float("nan"), 1e-9, False)])
BROKEN = Made("broken", [("first", 0.0, 1.0, True)], raises=ValueError("[/red] <boom>"))


@pytest.fixture
def reproduce(monkeypatch, tmp_path):
    def call(examples, *arguments):
        papers = types.ModuleType("pullback.papers")
        papers.EXAMPLES = examples
        monkeypatch.setitem(sys.modules, "pullback.papers", papers)
        return CliRunner().invoke(app, ["reproduce", "--out", str(tmp_path / "report"), *arguments])

    return call


def test_all_that_holds_is_printed_and_written(reproduce, tmp_path):
    result = reproduce([GOOD])
    assert result.exit_code == 0, result.output
    assert re.search(r"good +error +1e-12 +≤ 1e-09 +yes", result.output)
    assert "1 of 1 examples hold (2 measured numbers" in result.output
    assert result.output.rstrip().endswith("index.html")
    written = json.loads((tmp_path / "report/results.json").read_text())
    assert written["holds"] and written["outcomes"][0]["rows"][0] == {
        "label": "error",
        "measured": 1e-12,
        "bound": 1e-9,
        "holds": True,
    }
    assert written["versions"]["jax"]


def test_what_fails_or_raises_is_kept_and_the_exit_code_says_so(reproduce, tmp_path):
    result = reproduce([BAD, BROKEN, GOOD])
    assert result.exit_code == 1
    assert "1 of 3 examples hold" in result.output and "[/red] <boom>" in result.output
    written = json.loads((tmp_path / "report/results.json").read_text())
    assert [outcome["holds"] for outcome in written["outcomes"]] == [False, False, True]
    assert written["outcomes"][0]["rows"][0]["measured"] == "nan"
    assert [row["label"] for row in written["outcomes"][1]["rows"]] == ["first"]


def test_nothing_run_or_measured_does_not_hold(reproduce):
    assert reproduce([]).exit_code == 1
    assert reproduce([Made("empty", [])]).exit_code == 1


def test_an_interrupted_run_keeps_what_it_has(reproduce, tmp_path):
    result = reproduce([GOOD, Made("slow", [], raises=KeyboardInterrupt()), GOOD])
    assert result.exit_code == 130 and "Interrupted: 1 of 3 were run" in result.output
    assert json.loads((tmp_path / "report/results.json").read_text())["complete"] is False


def test_examples_are_chosen_by_name(reproduce):
    assert reproduce([GOOD, BAD], "good").exit_code == 0
    result = reproduce([GOOD, BAD], "nothing")
    assert result.exit_code == 2 and "good, bad" in result.output


def test_a_file_is_not_a_folder(reproduce, tmp_path):
    (tmp_path / "report").write_text("mine")
    assert reproduce([GOOD]).exit_code == 2
    assert (tmp_path / "report").read_text() == "mine"


def test_the_page_is_escaped_and_asks_the_network_for_nothing():
    text = page(run([GOOD, BROKEN]))
    assert "It holds &amp; it is &lt;measured&gt;." in text and "&lt;boom&gt;" in text
    assert not re.search(r"https?:|//[a-z]|<script|<link|@import|url\(|src=", text)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text


def test_the_command_line_itself_imports_nothing_heavy():
    """Its module is loaded beside the package, without the package's own imports."""
    code = (
        "import sys, types; package = types.ModuleType('pullback'); package.__path__ = [sys.argv[1]]; sys.modules['pullback'] = package; "
        "import pullback.cli; print(sorted({'jax', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(Path(cli.__file__).parent)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_the_commands():
    out = subprocess.run([sys.executable, "-m", "pullback", "--help"], capture_output=True, text=True, check=True).stdout
    assert all(name in out for name in ("reproduce", "claims", "bench"))


def test_the_benchmark_is_found_in_a_checkout_only(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench"])
    assert result.exit_code == 2 and "make bench" in result.output
