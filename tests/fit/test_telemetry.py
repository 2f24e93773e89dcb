"""Telemetry: one line per step, and no line of another run is ever lost."""

import errno
import json

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit import telemetry

PROBLEM = pb.Composite(lambda p: p, lambda z: jnp.sum((z - 1) ** 2) / 2)
OPT = pb.NaturalGradientDescent(PROBLEM, step=pb.step.Fixed(0.5))
START = normal(3, seed=1)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_fresh_run_never_erases_an_existing_file(tmp_path):
    path = tmp_path / "log" / "run.jsonl"
    fit = pb.fit(OPT, START, None, 3, telemetry=path)
    assert [row["loss"] for row in rows(path)] == list(fit.history["loss"])
    before = path.read_bytes()
    shown = r'telemetry=".*run-2\.jsonl".*delete.*checkpoint='
    with pytest.raises(ValueError, match=shown):
        pb.fit(OPT, START, None, 3, telemetry=path)
    with pytest.raises(ValueError, match="3 lines"):
        pb.fit(OPT, START, None, 3, telemetry=str(path), checkpoint=tmp_path / "run")
    assert path.read_bytes() == before


def test_an_empty_file_is_filled(tmp_path):
    path = tmp_path / "run.jsonl"
    path.touch()
    pb.fit(OPT, START, None, 2, telemetry=path)
    assert [row["step"] for row in rows(path)] == [0, 1]


def test_a_resumed_run_keeps_a_file_that_is_not_its_own(tmp_path):
    saving = pb.Checkpoints(tmp_path / "run", every_steps=2)
    pb.fit(OPT, START, None, 2, checkpoint=saving)
    notes = tmp_path / "notes.txt"
    notes.write_text("to do: write the paper\nand sleep\n")
    with pytest.raises(ValueError, match="line 1 is no record of a step"):
        pb.fit(OPT, START, None, 4, checkpoint=saving, telemetry=notes)
    assert notes.read_text() == "to do: write the paper\nand sleep\n"
    other = tmp_path / "other.jsonl"
    pb.fit(OPT, START + 1, None, 6, telemetry=other)
    with pytest.raises(ValueError, match=r"step 0 has the loss .* there"):
        pb.fit(OPT, START, None, 4, checkpoint=saving, telemetry=other)
    assert len(rows(other)) == 6
    # A file that begins with the resumption is fine.
    late = tmp_path / "late.jsonl"
    fit = pb.fit(OPT, START, None, 4, checkpoint=saving, telemetry=late)
    assert [row["step"] for row in rows(late)] == [2, 3]
    assert np.array_equal(fit.history["step"], np.arange(4))


def test_a_folder_is_no_telemetry_file(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        pb.fit(OPT, START, None, 1, telemetry=tmp_path)


def test_a_full_disk_ends_the_telemetry_and_not_the_run(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    append = telemetry.Telemetry.append

    def full(self, rows):
        if rows["step"][0] > 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, rows)

    monkeypatch.setattr(telemetry.Telemetry, "append", full)
    with pytest.warns(pb.FitWarning, match=r"run\.jsonl could not be written.*No space") as told:
        fit = pb.fit(OPT, START, None, 4, telemetry=path)
    assert fit.steps == 4 and len(told) == 1 and len(rows(path)) == 1
    assert told[0].filename == __file__
    assert repr(telemetry.Telemetry(path)) == f"Telemetry({str(path)!r}, 1 lines)"
