"""Telemetry: one line per step, and no line of another run is ever lost."""

import errno
import json
import os
import resource
import shutil
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit import checkpoint, telemetry

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


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path, monkeypatch):
    """The same script, as the page says: its first lines are set aside. Another run raises."""
    path, folder = tmp_path / "run.jsonl", tmp_path / "run"
    run = lambda opt=OPT, telemetry=path: pb.fit(
        opt, START, None, 4, telemetry=telemetry, checkpoint=folder
    )

    def killed(self, snapshot, parts):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.warns(pb.FitWarning, match="No space"):
        patch.setattr(checkpoint.Store, "save", killed)
        run()
    with open(path, "ab") as file:
        file.write(b'{"step": 4, "lo')
    written = path.read_bytes()
    with pytest.raises(ValueError, match="the file exists and has 5 lines"):
        run(pb.NaturalGradientDescent(PROBLEM, step=0.25))
    other = tmp_path / "other.jsonl"
    other.write_bytes(written)
    with pytest.raises(ValueError, match="the file exists and has 5 lines"):
        run(telemetry=other)
    assert path.read_bytes() == other.read_bytes() == written
    with pytest.warns(pb.FitWarning, match=r"set aside as run\.jsonl\.before-1"):
        fit = run()
    assert [row["loss"] for row in rows(path)] == list(fit.history["loss"])
    assert (tmp_path / "run.jsonl.before-1").read_bytes() == written
    assert sorted(x.name for x in folder.iterdir()) == ["history.rows", "step-000000004.ckpt"]
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="the file exists and has 4 lines"):
        run()


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


def whole_lines(steps):
    """The lines of a run that nothing interrupts."""
    history = pb.fit(OPT, START, None, steps).history
    return [json.dumps(row) + "\n" for row in history.rows()]


def test_what_could_not_be_written_is_written_later(tmp_path, monkeypatch):
    """The disk is full for some time, and half a line was written before it was."""
    path = tmp_path / "run.jsonl"
    append = telemetry.Telemetry.append
    full = []

    def often_full(self, rows):
        if rows["step"][-1] in (0, 3):
            return append(self, rows)
        full.append(rows)
        self.torn = os.stat(path).st_size
        path.write_bytes(path.read_bytes() + b'{"step": 1, "lo')
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(telemetry, "SOONEST", 0.0)
    monkeypatch.setattr(telemetry.Telemetry, "append", often_full)
    with pytest.warns(pb.FitWarning, match="No space left.*written when they can be") as told:
        pb.fit(OPT, START, [None] * 4, 4, telemetry=path, callback=lambda report: None)
    assert len(told) == 1 and full
    assert path.read_text() == "".join(whole_lines(4))


def test_a_disk_that_is_full_in_the_middle_of_a_line(tmp_path):
    """A real one: the system refuses every byte after the 1000th."""
    path = tmp_path / "run.jsonl"
    lines = "".join(whole_lines(8))
    assert len(lines) > 1100
    log = telemetry.Telemetry(path)
    history = pb.fit(OPT, START, None, 8).history
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        failure = log.write([history])
        assert isinstance(failure, OSError) and failure.errno == errno.EFBIG
        assert path.stat().st_size == 1000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    # Not at once again, but at the end of the run.
    assert log.write([history]) is None and path.stat().st_size == 1000
    assert log.write([history], last=True) is None
    assert path.read_text() == lines


def test_a_folder_that_goes_during_the_run(tmp_path):
    path = tmp_path / "log" / "run.jsonl"

    def remove(report):
        if report.step == 1:
            shutil.rmtree(tmp_path / "log")

    pb.fit(OPT, START, None, 4, telemetry=path, callback=remove)
    assert [row["step"] for row in rows(path)] == [1, 2, 3]


@pytest.mark.parametrize("name", ["a file/run.jsonl", "run\ud800.jsonl", "run\0.jsonl"])
def test_a_place_that_cannot_be_written_does_not_end_the_run(tmp_path, name):
    (tmp_path / "a file").touch()
    saving = pb.Checkpoints(tmp_path / "run")
    with pytest.warns(pb.FitWarning, match=r"jsonl could not be written") as told:
        fit = pb.fit(OPT, START, None, 3, checkpoint=saving, telemetry=f"{tmp_path}/{name}")
    assert fit.steps == 3 and len(told) == 1 and len(saving.files()) == 1
    str(told[0].message).encode()  # can be printed


def test_a_record_that_is_no_json_does_not_end_the_run(tmp_path, monkeypatch):
    def strange(value):
        raise TypeError("Object of type strange is not JSON serializable")

    monkeypatch.setattr(telemetry.json, "dumps", strange)
    with pytest.warns(pb.FitWarning, match="could not be written .*not JSON"):
        assert pb.fit(OPT, START, None, 3, telemetry=tmp_path / "run.jsonl").steps == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 4 steps, and its lines."""
    folder = tmp_path_factory.mktemp("finished")
    saving = pb.Checkpoints(folder / "run", every_steps=2)
    pb.fit(OPT, START, None, 4, checkpoint=saving, telemetry=folder / "run.jsonl")
    return folder


@pytest.mark.parametrize(
    "name, damage",
    [
        ("cut in a line", lambda lines: "".join(lines)[:-100]),
        ("cut after a line", lambda lines: "".join(lines[:2])),
        ("cut in the first line", lambda lines: lines[0][:9]),
        ("cut before a newline", lambda lines: "".join(lines)[:-1]),
        ("empty", lambda lines: ""),
        ("a gap", lambda lines: lines[0] + lines[3]),
        ("a line twice", lambda lines: "".join([*lines[:2], *lines[1:]])),
        ("more words", lambda lines: "".join(lines).replace('{"step": 1', '{"a": 1, "step": 1')),
        ("steps too many", lambda lines: "".join(lines) + '{"step": 4, "loss": 1}\n'),
        ("zeros at the end", lambda lines: "".join(lines[:3]) + "\0" * 50),
        ("no UTF-8 at the end", lambda lines: "".join(lines[:3]) + "\udcff\udcfe"),
        ("whole", lambda lines: "".join(lines)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
@pytest.mark.parametrize("steps", [4, 6])
def test_a_damaged_file_is_restored_from_the_checkpoint(finished, tmp_path, name, damage, steps):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert lines == whole_lines(4)
    path.write_bytes(damage(lines).encode("utf-8", "surrogateescape"))
    fit = pb.fit(OPT, START, None, steps, checkpoint=tmp_path / "run", telemetry=path)
    assert fit.steps == steps and path.read_text() == "".join(whole_lines(steps))


def test_a_file_that_begins_late_stays_so(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    late = tmp_path / "late.jsonl"
    pb.fit(OPT, START, None, 6, checkpoint=tmp_path / "run", telemetry=late)
    late.write_bytes(late.read_bytes()[:-20])
    pb.fit(OPT, START, None, 8, checkpoint=tmp_path / "run", telemetry=late)
    assert late.read_text() == "".join(whole_lines(8)[4:])


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    path.write_text("mine\n")

    def refused(self):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refused)
    with pytest.raises(ValueError, match=r"cannot be read .*Permission denied.*Name another file"):
        pb.fit(OPT, START, None, 2, telemetry=path)


def test_a_pipe_takes_lines(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pb.fit(OPT, START, None, 2, telemetry=pipe)
    assert os.read(end, 100_000).decode() == "".join(whole_lines(2))
    os.close(end)
