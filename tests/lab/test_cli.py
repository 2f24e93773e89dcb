"""The command line and the machinery of runs, on claims made for the purpose
(tests/scripts/made_claims.py), in real processes.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pullback_lab.cli import app
from pullback_lab.report import run as _run
from pullback_lab.report.result import Damaged, load

SCRIPTS = Path(__file__).parents[1] / "scripts"
# A shell without job control starts what it puts into the background with SIGINT ignored, and
# children inherit that.
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import made_claims, pullback_lab.cli as cli
cli.REGISTRY = made_claims.REGISTRY
sys.argv = ["pullback", "reproduce", *sys.argv[1:]]
cli.main()
"""


@pytest.fixture
def reproduce(folder):
    return lambda *arguments: CliRunner().invoke(
        app, ["reproduce", "--out", str(folder / "report"), *arguments]
    )


def runs(folder, name):
    path = folder / f"{name}.runs"
    return len(path.read_text()) if path.exists() else 0


def started(folder, *names):
    """The command in a process of its own."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path]),
        "MADE_CLAIMS": str(folder),
    }
    command = [sys.executable, "-c", START, *names, "--out", str(folder / "report")]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def wait_for(condition, seconds=240.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_what_agrees_with_the_record_is_printed_and_written_and_not_run_again(reproduce, folder):
    result = reproduce("good", "corrected")
    assert result.exit_code == 0, result.output
    assert (
        "2 of 2 verdicts are those on record" in result.output
        and "holds with correction" in result.output
    )
    assert re.search(r"as stated +error & <rest> +1e-12 +≤ 1e-09 +yes", result.output)
    assert result.output.rstrip().endswith("index.html")
    written = json.loads((folder / "report/results.json").read_text())
    assert (
        written["results"][0]["verdict"] == "holds"
        and written["results"][1]["rows"][0]["label"] == "as printed"
    )
    assert written["versions"]["jax"] and written["missing"] == [
        "wrong",
        "broken",
        "dying",
        "slow",
        "chancy",
        "homeless",
    ]
    summary = (folder / "report/summary.md").read_text()
    assert (
        "--budget quick --seeds 1" in summary
        and "1 holds, 1 holds with correction (the conclusion stands in 1, changes in 0), 0 does"
        in summary
    )
    assert "| holds | error & <rest> | 1e-12 ≤ 1e-09 |" in summary
    assert (folder / "report/claims/good.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "report/claims/good.svg").read_bytes()
    data = load(folder / "report/claims", "good").data
    assert (
        np.isnan(data["bad"][0])
        and np.isinf(data["bad"][1])
        and data["pair"] == [1, 2.5]
        and data["name"] == "line"
    )

    again = reproduce("good", "corrected")
    assert again.exit_code == 0 and "2 of 2 claims were finished before" in again.output
    assert runs(folder, "good") == runs(folder, "corrected") == 1
    other = reproduce("good", "--seeds", "2")  # another budget
    assert (
        other.exit_code == 0
        and "made with another budget, version or source are not used again: good." in other.output
        and runs(folder, "good") == 2
    )


def test_what_differs_raises_or_dies_does_not_stop_the_rest(reproduce, folder):
    result = reproduce("dying", "broken", "wrong", "good")
    assert result.exit_code == 1, result.output
    assert (
        "1 of 4 verdicts are those on record" in result.output and "[/red] <boom>" in result.output
    )
    assert (
        "does not hold (on record: holds)" in result.output
        and "ended with code -9" in result.output
    )
    written = {
        r["name"]: r for r in json.loads((folder / "report/results.json").read_text())["results"]
    }
    assert [written[name]["agrees"] for name in ("good", "wrong", "broken", "dying")] == [
        True,
        False,
        False,
        False,
    ]
    assert written["wrong"]["rows"][0]["measured"] == "nan"
    page = (folder / "report/index.html").read_text()
    assert "&lt;boom&gt;" in page and "error &amp; &lt;rest&gt;" in page
    reproduce("broken", "good", "wrong")  # an error is no result; a verdict that differs is one
    assert [runs(folder, name) for name in ("broken", "good", "wrong")] == [2, 1, 1]


def test_a_damaged_result_is_named_and_run_again(reproduce, folder):
    assert reproduce("good").exit_code == 0
    store = folder / "report/claims"
    whole = (store / "good.json").read_text()
    damages = {
        "cut off": whole[: len(whole) // 2],
        "checksum": whole.replace("1e-12", "1e-13"),
        "fields": "[1, 2]",
        "another": whole.replace('"name": "good"', '"name": "wrong"'),
    }
    for text in damages.values():
        (store / "good.json").write_text(text)
        with pytest.raises(Damaged):
            load(store, "good")
    (store / "good.json").write_text(whole)
    picture = (store / "good.png").read_bytes()
    (store / "good.png").write_bytes(picture[:-1])
    with pytest.raises(Damaged, match=r"good\.png"):
        load(store, "good")
    (store / "good.png").write_bytes(picture)
    assert load(store, "good").name == "good"

    (store / "good.json").write_text(damages["cut off"])
    (store / ".good.json.1.tmp").write_text("what a killed process leaves")
    result = reproduce("good")
    assert (
        result.exit_code == 0
        and "good.json is damaged" in result.output
        and runs(folder, "good") == 2
    )
    assert list(store.glob(".*")) == []


def test_whatever_stands_in_the_place_of_a_result_is_named_and_run_again(reproduce, folder):
    store = folder / "report/claims"
    (store / "good.json").mkdir(parents=True)
    (store / "corrected.json").write_text("[" * 100_000)
    (folder / "report/index.html").mkdir()
    result = reproduce("good", "corrected")
    assert result.exit_code == 0, result.output
    assert "good.json is damaged (it is a folder)" in result.output.replace("\n", " ")
    assert "corrected.json is damaged (it is truncated or not JSON)" in (
        result.output.replace("\n", " ")
    )
    assert (folder / "report/index.html").is_file()
    again = reproduce("good", "corrected")
    assert again.exit_code == 0 and runs(folder, "good") == runs(folder, "corrected") == 1


def test_what_was_written_before_the_end_is_finished_although_nobody_was_told(
    reproduce, folder, monkeypatch
):
    assert reproduce("good").exit_code == 0
    written, aside = folder / "report/claims/good.json", folder / "aside.json"
    written.rename(aside)

    def ended(*args):
        aside.rename(written)
        raise KeyboardInterrupt

    monkeypatch.setattr(_run, "run_all", ended)
    result = reproduce("good", "corrected")
    assert result.exit_code == 130 and "Interrupted: 1 of 2 were not finished" in result.output, (
        result.output
    )


@pytest.mark.parametrize(("kill", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_goes_on_where_it_was(folder, kill, code):
    process = started(folder, "good", "slow", "corrected")
    wait_for(lambda: (folder / "report/claims/good.json").exists() and runs(folder, "slow"))
    process.send_signal(kill)
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    assert "Traceback" not in err
    if kill is signal.SIGINT:
        assert (
            re.search("Interrupted: [12] of 3 were not finished", out)
            and "the same command resumes the run" in err
        )
        assert "Not run: " in (folder / "report/index.html").read_text()
    (folder / "go").touch()
    process = started(folder, "good", "slow", "corrected")
    out, err = process.communicate(timeout=480)
    assert process.returncode == 0, err
    assert (
        runs(folder, "good") == 1 and runs(folder, "slow") == 2
    )  # one process or two: `corrected` may have been run before or not
    assert "claims were finished before" in err and re.search(r"slow: holds \(", err)


@pytest.mark.parametrize("lost", ["recv", "send"])
def test_a_worker_whose_parent_is_gone_ends_without_a_word(folder, lost):
    """Killed with words unread the parent resets the connection; the moment cannot be met from
    outside, so that it is played.
    """
    code = f"""
import os, pathlib
import made_claims
from pullback_lab.report import workers
from pullback_lab.papers import Budget
class Gone:
    def recv(self):
        if {lost!r} == "recv":
            raise ConnectionResetError
        return workers.Task("good", pathlib.Path({str(folder)!r}), Budget())
    def send(self, words):
        raise BrokenPipeError
workers.work(Gone(), made_claims.REGISTRY, os.getppid())
"""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *sys.path]),
        "MADE_CLAIMS": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "") and runs(folder, "good") == (lost == "send")


def test_unknown_claims_are_refused_with_the_nearest(reproduce):
    result = reproduce("good", "corected")
    assert (
        result.exit_code == 2
        and "no claim 'corected'" in result.output
        and "corrected?" in result.output
    )


@pytest.mark.parametrize(
    "arguments", [["--seeds", "0"], ["--seeds", "few"], ["--budget", "huge"], ["--nonsense"]]
)
def test_bad_options_are_refused(reproduce, folder, arguments):
    result = reproduce("good", *arguments)
    assert result.exit_code == 2 and arguments[0] in result.output and runs(folder, "good") == 0


@pytest.mark.parametrize("place", ["report", "report/claims"])
def test_a_folder_that_cannot_be_written_is_refused(reproduce, folder, place):
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    result = reproduce("good")
    assert (
        result.exit_code == 2
        and "cannot write to" in result.output
        and "Traceback" not in result.output
    )
    assert path.read_text() == "mine"


def test_claims_are_listed():
    out = CliRunner().invoke(app, ["claims"]).output
    assert all(
        words in out
        for words in ("theorem-2", "figure-eight-numbers", "holds with correction", "van Oostrum")
    )


def test_a_result_that_cannot_be_written_is_reported(reproduce, folder):
    result = reproduce("homeless")
    assert result.exit_code == 1 and "its result could not be written" in result.output
    assert "0 of 1 verdicts are those on record" in result.output
    assert not (folder / "report/claims").exists()  # the parent does not try again


def test_help_answers_within_a_second_and_imports_nothing_heavy():
    heavy = {"jax", "numpy", "matplotlib", "scipy", "equinox", "pullback"}
    code = f"""
import sys, pullback_lab.cli as cli
sys.argv = ["pullback", "--help"]
try:
    cli.main()
except SystemExit:
    pass
print(sorted({heavy!r} & set(sys.modules)))
"""
    seconds = []
    for _ in range(5):
        clock = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        seconds.append(time.perf_counter() - clock)
    assert done.stdout.rstrip().endswith("[]"), done.stdout
    assert all(name in done.stdout for name in ("reproduce", "claims", "bench"))
    assert min(seconds) < 1.0  # a fifth of a second on an idle machine


def test_a_name_is_checked_without_importing_claims(folder):
    code = """
import sys, pullback_lab.cli as cli
sys.argv = ["pullback", "reproduce", "theorem-22"]
try:
    cli.main()
except SystemExit as end:
    print(end.code, sorted({"jax", "pullback"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip() == "2 []" and "theorem-2" in done.stderr


def test_public_names_are_there_after_the_import():
    names = ("natural_gradient", "testing.check_metric", "pde.Equation", "solver.Dual")
    code = "; ".join(["import pullback as pb", *(f"pb.{name}" for name in names)])
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_benchmark_is_found_in_a_checkout_only(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench"])
    assert result.exit_code == 2 and "make bench" in result.output
