"""`python docs/pde.py`: the section of finished runs, what stays, and what is refused."""

import json
import runpy
from pathlib import Path

import pytest

from pullback_lab.pde.cases import STEPS
from pullback_lab.pde.run import Measured
from pullback_lab.pde.table import at_equal_seconds

SCRIPT = Path(__file__).parents[2] / "docs" / "pde.py"
script = runpy.run_path(str(SCRIPT))
BEFORE = "# Page\n\nwords\n\n## Measured\n\nold tables\n\n### A\n\nold\n\n## After\n\nmore words\n"


def write(folder, kind, seed, steps, error=1e-9, cpu=1.0, **changed):
    """The files of a run that `pullback pde` has finished."""
    place = folder / "runs" / kind / f"seed-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    row = {"seconds": 1.0, "cpu": cpu, "loss": 0.0, "error": error, "relative": 2 * error}
    lines = [json.dumps({"step": step} | row) for step in (0, 10, 100, 1600, steps)]
    (place / "measured.jsonl").write_text("\n".join(dict.fromkeys(lines)) + "\n")
    note = {"complete": True, "steps": steps, "made": steps, "version": "9.8", "date": "2030-01-02"}
    (place / "run.json").write_text(json.dumps(note | changed))
    return place


@pytest.fixture
def finished(tmp_path):
    for name, seeds in script["NEEDED"].items():
        for seed in range(seeds):
            write(tmp_path, name.replace("'", "-prime"), seed, STEPS[name])
    return tmp_path


def test_the_section_is_rewritten_and_the_rest_stays(finished):
    for seed in range(5):
        write(finished, "C", seed, 3200, error=1e-7)
    write(finished, "F-prime-no-momentum", 0, 1600, date="2030-01-05")
    text = script["page"](BEFORE, finished)
    assert text.startswith("# Page\n\nwords\n\n## Measured\n") and "old" not in text
    assert text.endswith("tuned.\n\n## After\n\nmore words\n")
    assert "with version 9.8, 2030-01-02 to 2030-01-05. All runs" in text
    assert "Not measured" not in text
    assert "### A: Poisson" in text and "median of 5 seeds" in text and "### G: " in text
    assert sum(line.endswith(", without Spring") for line in text.splitlines()) == 1
    # Bold and named where it is above, in the summary and in the table.
    assert "**Above the best published error: C at step 1600 (ENGD is 1.1 times lower).**" in text
    assert "| **1.0e-07 above** | 1.0e-07 | 2.0e-07 | 8.9e-08 (ENGD, step 1" in text
    row = next(line for line in text.splitlines() if line.startswith("| C | "))
    assert row.count("above") == 1 and text.count("| Burgers |") == 0
    assert script["page"](text, finished) == text


def test_above_at_no_mark_is_said(finished):
    assert "Above it: at no mark." in script["page"](BEFORE, finished)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "runs" / "D").rename(folder / "D"), "has no runs of D"),
        (lambda folder: (folder / "runs/E/seed-4").rename(folder / "E"), "has 4 of 5 seeds"),
        (lambda folder: (folder / "runs/B/seed-1/run.json").unlink(), "B/seed-1 is not finished"),
        (lambda folder: write(folder, "C", 0, 3200, complete=False, made=70), "after 70 of 3200"),
        (lambda folder: write(folder, "A", 3, 1600), "asked for 1600 steps.* needs 3200"),
        (lambda folder: write(folder, "Kovasznay", 0, 800, complete=False), "Kovasznay/seed-0"),
    ],
)
def test_what_is_not_finished_is_refused(finished, change, words):
    change(finished)
    with pytest.raises(SystemExit, match=words):
        script["page"](BEFORE, finished)


def test_some_equations_alone_and_the_others_are_said_to_be_missing(finished):
    for name in ("D", "F-prime", "G"):
        (finished / "runs" / name).rename(finished / name)
    (finished / "runs/Burgers/seed-0/run.json").unlink()
    text = script["page"](BEFORE, finished, ["E", "A", "B", "C"])
    assert "\n\n**Not measured with it: D, F', G, Burgers.**\n\n### Beside" in text
    assert "### E: heat" in text and "### Burgers" not in text
    assert text.index("### A: ") < text.index("### B: ")
    with pytest.raises(SystemExit, match="unknown: Z"):
        script["page"](BEFORE, finished, ["Z"])


def test_runs_that_are_short_are_shown_if_they_are_named_and_are_said_to_be_short(tmp_path):
    for seed in range(3):
        write(tmp_path, "A", seed, 1700)
    write(tmp_path, "Kovasznay", 0, STEPS["Kovasznay"])
    text = script["page"](BEFORE, tmp_path, ["A", "Kovasznay"])
    words = " ".join(text.split())
    assert "Burgers. Fewer seeds or steps: A (3 of 5 seeds, 1700 of 3200 steps).**" in words
    assert "median of 3 seeds" in text and "### Kovasznay: " in text
    assert "```sh\npullback pde A --seeds 3 --steps 1700\npullback pde Kovasznay\n```" in text
    assert "Other programs" not in text
    write(tmp_path, "A", 0, 1700, cpu=0.1)
    assert "points.\nOther programs had" in script["page"](BEFORE, tmp_path, ["A", "Kovasznay"])
    with pytest.raises(SystemExit, match="has no runs of B"):
        script["page"](BEFORE, tmp_path)
    write(tmp_path, "A", 1, 1700, complete=False, made=70)
    with pytest.raises(SystemExit, match="after 70 of 1700"):
        script["page"](BEFORE, tmp_path, ["A"])


def test_baselines_stand_below_the_table_of_their_equation(finished):
    for seed in (0, 1):
        write(finished, "A-adam-lbfgs", seed, 9000, error=1e-4)
        write(finished, "A-broyden", seed, 9000, error=1e-5)
    text = script["page"](BEFORE, finished)
    after = text[text.index("### A: ") : text.index("### B: ")]
    assert "In the same CPU seconds, median of 2 seeds:" in after
    assert "| Adam + self-scaled Broyden | 9000 | 1 | 1 | 1.0e-05 |" in after
    assert text.count("In the same CPU seconds") == 1


def test_an_averaged_metric_is_said(finished):
    write(finished, "C-memory-0.6", 0, 200)
    text = script["page"](BEFORE, finished)
    assert sum(line.endswith(", metric averaged with 0.6") for line in text.splitlines()) == 1


def test_the_page_has_the_section():
    page = script["PAGE"].read_text(encoding="utf-8")
    assert page.count(script["TITLE"]) == 1 and "python docs/pde.py" in page


def test_methods_are_compared_at_the_shortest_time_of_all():
    """Ours was continued to 100 CPU seconds, and has 3.0e-08 at the 20 of the baseline."""
    mark = lambda step, cpu, error: Measured(
        step=step, seconds=cpu, cpu=cpu, error=error, relative=error, loss=error
    )
    ours = [mark(100, 10.0, 1e-6), mark(400, 20.0, 3e-8), mark(3200, 100.0, 1e-11)]
    text = at_equal_seconds([ours], {"other": [[mark(5000, 20.5, 2e-9)]]})
    assert "| pullback | 400 | 20 | 20 | 3.0e-08" in text and "1.0e-11" not in text
