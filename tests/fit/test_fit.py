"""The loop: records, progress, checkpoints and what can go wrong; a process is killed."""

import errno
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit import checkpoint as _checkpoint
from pullback._fit.batches import as_source
from pullback._fit.outcome import message

X = normal(12, 2, seed=1)
Y = jnp.sin(X @ normal(2, 1, seed=2))
PARAMS = {"w": normal(2, 3, seed=3), "v": normal(3, 1, seed=4)}
SCRIPT = Path(__file__).parents[1] / "scripts" / "resumable.py"


def model(p, x):
    return jnp.tanh(x @ p["w"]) @ p["v"]


def half_square(z, y):
    return jnp.sum((z - y) ** 2, 1) / 2


PROBLEM = pb.Composite(model, half_square)
OPT = pb.NaturalGradientDescent(PROBLEM, step=pb.step.LineSearch())
DRAW = pb.minibatches((X, Y), 4)


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(x, y), a, b))


def test_fit_is_a_loop_of_steps():
    params, state, losses = PARAMS, OPT.init(PARAMS), []
    key = jax.random.key(7)
    for i in range(5):
        params, state, record = OPT.step(params, state, DRAW(jax.random.fold_in(key, i)))
        losses.append(float(record.loss))
    fit = pb.fit(OPT, PARAMS, DRAW, 5, key=7)
    np.testing.assert_allclose(fit.history["loss"], losses, rtol=1e-10)
    np.testing.assert_allclose(fit.params["w"], params["w"], rtol=1e-9)
    assert fit.steps == len(fit.history) == 5 and fit.ended == "all 5 steps were made"
    # Losses and weights of terms are columns of problems with several terms.
    columns = [name for name, value in vars(record).items() if value is not None]
    assert list(fit.history) == columns and {*columns} < {*pb.Record.__dataclass_fields__}
    assert fit.history["rank"].dtype == np.int32
    assert list(fit.history["step"]) == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="there are step, loss"):
        fit.history["accuracy"]
    png = fit.plot()
    assert len(png.axes) == 4


def test_no_steps():
    fit = pb.fit(OPT, PARAMS, (X, Y), 0)
    assert same(fit.params, PARAMS) and len(fit.history) == 0 and fit.steps == 0
    fit.plot()


def test_resume_and_telemetry(tmp_path):
    whole = pb.fit(OPT, PARAMS, DRAW, 9, key=7)
    lines = tmp_path / "log" / "run.jsonl"
    saving = pb.Checkpoints(tmp_path / "run", every_steps=3, keep=2)
    half = pb.fit(OPT, PARAMS, DRAW, 5, key=7, checkpoint=saving, telemetry=lines)
    assert [f.name for f in saving.files()] == ["step-000000005.ckpt", "step-000000003.ckpt"]
    # A line too many, and half a line: what a killed process leaves behind.
    with open(lines, "a") as file:
        file.write(json.dumps({"step": 5, "loss": 1}) + '\n{"step": 6, "lo')
    rest = pb.fit(OPT, PARAMS, DRAW, 9, key=7, checkpoint=saving, telemetry=lines)
    assert same(rest.params, whole.params) and same(
        half.params, pb.fit(OPT, PARAMS, DRAW, 5, key=7).params
    )
    assert np.array_equal(rest.history["loss"], whole.history["loss"]) and len(rest.history) == 9
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(9)) and rows[8]["loss"] == whole.history[
        "loss"
    ][8]
    assert rows[0]["damping"] is None and rows[0]["accepted"] is True
    # Done already: nothing is made again.
    assert same(pb.fit(OPT, PARAMS, DRAW, 9, key=7, checkpoint=saving).params, whole.params)
    with pytest.raises(ValueError, match=r"resume=False\), but there are checkpoints"):
        pb.fit(OPT, PARAMS, DRAW, 9, checkpoint=saving, resume=False)
    # A truncated file is passed over for the one before.
    newest = saving.files()[0]
    newest.write_bytes(newest.read_bytes()[:-200])
    with pytest.warns(pb.FitWarning, match="cannot be read.*the one before is used"):
        again = pb.fit(OPT, PARAMS, DRAW, 9, key=7, checkpoint=saving)
    assert same(again.params, whole.params)


def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch):
    saving = pb.Checkpoints(tmp_path, every_steps=1)
    pb.fit(OPT, PARAMS, DRAW, 1, checkpoint=saving)
    larger = {"w": normal(2, 4, seed=3), "v": normal(4, 1, seed=4)}
    with pytest.raises(
        ValueError, match=r"params\['w'\]: float64\[2, 3\] there, float64\[2, 4\] here"
    ):
        pb.fit(OPT, larger, DRAW, 2, checkpoint=saving)
    other = pb.NaturalGradientDescent(PROBLEM, step=pb.step.LineSearch(shrink=0.3))
    with pytest.raises(ValueError, match=r"optimiser: .*shrink=0\.3"):
        pb.fit(other, PARAMS, DRAW, 2, checkpoint=saving)
    monkeypatch.setattr(_checkpoint, "version", lambda name: "0.0.0")
    with pytest.raises(ValueError, match=f"pullback: {version('pullback')} there, 0.0.0 here"):
        pb.fit(OPT, PARAMS, DRAW, 2, checkpoint=saving)


def test_a_full_disk_does_not_stop_the_run(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_checkpoint.os, "fsync", full)
    with pytest.warns(pb.FitWarning, match="No space left on device.*the run continues") as told:
        fit = pb.fit(OPT, PARAMS, DRAW, 3, checkpoint=pb.Checkpoints(tmp_path, every_steps=1))
    assert fit.steps == 3 and len(told) == 1 and os.listdir(tmp_path) == []


def test_a_nan_in_one_batch(tmp_path):
    batches = [(X, Y), (X.at[0].set(jnp.nan), Y), (X, Y)]
    fit = pb.fit(OPT, PARAMS, batches, 3, throw=False)
    assert list(fit.history["accepted"]) == [True, False, True]
    assert (
        "`batch` contains a NaN" in message(fit.history["result"][1])
        and np.isfinite(fit.params["w"]).all()
    )
    assert same(fit.params, pb.fit(OPT, PARAMS, [batches[0], batches[2]], 2).params)
    with pytest.raises(pb.FitError, match="step 1: `batch` contains a NaN") as caught:
        pb.fit(OPT, PARAMS, batches, 3)
    assert caught.value.fit.steps == 2 and np.isfinite(caught.value.fit.params["w"]).all()


def test_iterators_that_end_or_change_their_shape():
    with pytest.warns(pb.FitWarning, match="ended after 2 of 5 steps"):
        fit = pb.fit(OPT, PARAMS, iter([(X, Y), (X, Y)]), 5)
    assert fit.steps == 2
    with pytest.warns(pb.FitWarning, match="change their shape at step 2") as told:
        fit = pb.fit(OPT, PARAMS, ((X[:n], Y[:n]) for n in (12, 12, 4, 12)), 4)
    assert fit.steps == 4 and len(told) == 1
    with pytest.raises(ValueError, match="end after 1"):
        as_source([(X, Y)], skip=2)
    with pytest.raises(ValueError, match="batches must be"):
        pb.fit(OPT, PARAMS, 3)
    with pytest.raises(ValueError, match="size must be from 1 to 12"):
        pb.minibatches((X, Y), 13)


def test_a_loss_that_rises_for_ever_is_said_and_poisons_nothing():
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2) / 2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.Fixed(1e40))
    with pytest.warns(pb.FitWarning) as told:
        fit = pb.fit(opt, jnp.ones(2), None, 40)
    assert [str(w.message)[:18] for w in told] == ["the loss has risen", "the last 20 steps "]
    assert np.isfinite(fit.params).all() and not fit.history["accepted"][-1]


def test_callbacks_and_interrupts():
    seen = []
    fit = pb.fit(
        OPT,
        PARAMS,
        (X, Y),
        50,
        callback=lambda report: seen.append(report.step) or report.step >= 3,
    )
    assert fit.steps == seen[-1] < 50 and "callback" in fit.ended

    def interrupt(report):
        raise KeyboardInterrupt

    fit = pb.fit(OPT, PARAMS, (X, Y), 50, callback=interrupt)
    assert fit.ended == "interrupted" and fit.steps == len(fit.history) == 1


def test_progress_is_shown_in_a_terminal_only(monkeypatch, capsys):
    pb.fit(OPT, PARAMS, (X, Y), 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    pb.fit(OPT, PARAMS, (X, Y), 2)
    shown = capsys.readouterr().err
    assert "loss" in shown and "rank" in shown and "2/2" in shown


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="steps must be an integer"):
        pb.fit(OPT, PARAMS, (X, Y), 1.5)
    with pytest.raises(ValueError, match="NaturalGradientDescent"):
        pb.fit(PROBLEM, PARAMS, (X, Y))
    with pytest.raises(ValueError, match=r"scan over opt\.step"):
        jax.jit(lambda p: pb.fit(OPT, p, (X, Y)).params)(PARAMS)


def test_bad_options_are_refused():
    for words, make in {
        "folder must be a path": lambda: pb.Checkpoints(3),
        "every_steps must be an integer of at least 1": lambda: pb.Checkpoints("a", every_steps=0),
        "every_seconds must be positive": lambda: pb.Checkpoints("a", every_seconds=0.0),
        "keep must be an integer of at least 1": lambda: pb.Checkpoints("a", keep=0),
        "steps must be an integer of at least 0": lambda: pb.fit(OPT, PARAMS, (X, Y), -1),
        "callback must be a function": lambda: pb.fit(OPT, PARAMS, (X, Y), 1, callback=3),
        "telemetry must be a path": lambda: pb.fit(OPT, PARAMS, (X, Y), 1, telemetry=3),
        "folder must be": lambda: pb.fit(OPT, PARAMS, (X, Y), 1, checkpoint=3),
    }.items():
        with pytest.raises(ValueError, match=words):
            make()
    assert repr(pb.Checkpoints("a", every_steps=3, every_seconds=None)) == (
        "Checkpoints('a', every_steps=3)"
    )


def test_warnings_point_to_the_caller():
    with pytest.warns(pb.FitWarning) as told:
        pb.fit(OPT, PARAMS, [(X, Y)], 2)
    assert [w.filename for w in told] == [__file__]


def start(folder, result, steps):
    command = [sys.executable, str(SCRIPT), str(folder), str(result), str(steps)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )


def kill_and_resume(folder, kills, steps):
    """Kill a process as many times, at random moments after its first step, then let it end; and
    one that is left alone.
    """
    rng = np.random.default_rng(0)
    left_alone = start("none", folder / "alone.npz", steps)
    for _ in range(kills):
        process = start(folder / "run", folder / "killed.npz", steps)
        for _ in range(2):  # "ready", and the first step of this process
            process.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.communicate()
    assert not (folder / "killed.npz").exists(), "killed too late to test anything"
    last = start(folder / "run", folder / "killed.npz", steps)
    assert left_alone.communicate() and left_alone.returncode == 0
    output, _ = last.communicate()
    assert last.returncode == 0
    resumed_at = int(output.splitlines()[1])
    assert resumed_at > kills, "nothing was resumed"
    with np.load(folder / "alone.npz") as alone, np.load(folder / "killed.npz") as killed:
        assert sorted(alone.files) == sorted(killed.files)
        for name in alone.files:
            assert alone[name].tobytes() == killed[name].tobytes(), name


def test_a_killed_process_resumes_bit_by_bit(tmp_path):
    kill_and_resume(tmp_path, kills=2, steps=600)


@pytest.mark.slow
def test_ten_killed_processes_resume_bit_by_bit(tmp_path):
    kill_and_resume(tmp_path, kills=10, steps=6000)


def test_a_failure_names_its_place_in_the_batch():
    y = jnp.zeros((12, 1))
    bad = X.at[3, 1].set(jnp.nan)
    for batches in ((bad, y), lambda key: (bad, y), lambda key, params: (bad, y)):
        with pytest.raises(pb.FitError, match=r"batch\.inputs \(first at index \(3, 1\)\)"):
            pb.fit(OPT, PARAMS, batches, 3)
    with pytest.raises(pb.FitError, match=r"step 0: `batch` contains a NaN"):
        pb.fit(OPT, PARAMS, [(bad, y)], 3)
    signs = pb.Composite(lambda p, x: model(p, x)[:, 0], metric=pb.metric.Bernoulli())
    with pytest.raises(pb.FitError, match=r"Sample 0: -1\.0; Bernoulli admits numbers from 0 to 1"):
        pb.fit(pb.NaturalGradientDescent(signs), PARAMS, (X, -jnp.ones(12)), 3)
    with pytest.raises(ValueError, match=r"fit\(key=0\.5\): key must be an integer"):
        pb.fit(OPT, PARAMS, (X, y), 3, key=0.5)
