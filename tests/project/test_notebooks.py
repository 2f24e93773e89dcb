"""The notebooks of the documentation: they run, and their pages are what they return."""

import ast
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "notebooks.py"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MACHINE = r"/(home|root|tmp|work|usr)/| at 0x|steps/s|\d s[:<,]"
"""Paths, addresses and times."""
tools = runpy.run_path(str(SCRIPT))


def read(path):
    return json.loads(path.read_text())


def cells(notebook, kind):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_there_are_three():
    names = [path.stem for path in NOTEBOOKS]
    assert names == ["equation", "first_steps", "invariance"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_is_that_of_its_notebook(path):
    assert tools["stale"](path) == [], "run `python docs/notebooks.py`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_story_in_public_names(path):
    notebook = read(path)
    code = [tools["text"](cell["source"]) for cell in cells(notebook, "code")]
    assert len(code) >= 6 and len(cells(notebook, "markdown")) >= 5
    assert all(cell["outputs"] or cell["execution_count"] for cell in cells(notebook, "code"))
    for source in code:
        for node in ast.walk(ast.parse(source)):
            assert not (isinstance(node, ast.Attribute) and node.attr.startswith("_"))
            if isinstance(node, ast.ImportFrom):
                assert "pullback" not in (node.module or "")
    assert max(len(line) for source in code for line in source.splitlines()) <= 100


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_do_not_depend_on_the_machine(path):
    for cell in cells(read(path), "code"):
        for output in cell["outputs"]:
            assert output["output_type"] in ("execute_result", "display_data", "stream")
            assert output.get("name") != "stderr", "a warning"
            kind, content = tools["shown"](output)
            if kind != "image/png":
                assert not re.search(MACHINE, content)


def test_a_page_that_is_not_up_to_date_is_found(tmp_path):
    path = tmp_path / "other.ipynb"
    notebook = read(NOTEBOOKS[0])
    path.write_text(json.dumps(notebook))
    assert "other.md" in tools["stale"](path)
    words, figures = tools["page"]("other", notebook)
    path.with_suffix(".md").write_text(words)
    assert tools["stale"](path) == sorted(figures)
    notebook["cells"][1]["source"] = "1 + 1"
    path.write_text(json.dumps(notebook))
    assert "other.md" in tools["stale"](path)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path):
    command = [sys.executable, str(SCRIPT), "--check", path.stem]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "as executed" in run.stdout, run.stdout + run.stderr


@pytest.mark.slow
def test_the_bar_of_fit_is_updated_in_place_in_a_notebook():
    import nbformat

    code = """
import jax.numpy as jnp
import pullback as pb

problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2)
x = jnp.eye(3)
fit = pb.fit(pb.NaturalGradientDescent(problem), jnp.zeros(3), (x, jnp.ones(3)), 30)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    script = (
        "import sys, nbformat; from nbclient import NotebookClient;"
        "notebook = nbformat.reads(sys.stdin.read(), 4); NotebookClient(notebook).execute();"
        "print(nbformat.writes(notebook))"
    )
    command = [sys.executable, "-c", script]
    text = nbformat.writes(notebook)
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    (output,) = json.loads(run.stdout)["cells"][0]["outputs"]
    assert output["output_type"] == "display_data"
    assert "30/30  loss" in "".join(output["data"]["text/plain"])
    assert "<progress value='30' max='30'>" in "".join(output["data"]["text/html"])
