"""Kills and corruption in numbers, with the counts printed.

`make kills` runs 50 kills -9 and 10 000 damaged files, `make test-all` a tenth of them.

Each outcome is "identical" (the bits of a run that nothing interrupts), "refused" (a clear error)
or "wrong" (anything else, an uncaught exception too), of which there must be none.
"""

import collections
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from walk import OPT, START, bits

import pullback as pb
from pullback._fit.checkpoint import parse
from pullback._fit.ledger import read_ledger
from pullback._fit.sealed import Damaged

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KILLS", "5"))
FLIPS = int(os.environ.get("FLIPS", "1000"))
SCRIPT = Path(__file__).parents[1] / "scripts" / "resumable.py"


@pytest.fixture
def say(capsys):
    """Prints a line although pytest keeps what is printed."""

    def line(words):
        with capsys.disabled():
            print(f"\n{words}", flush=True)

    return line


def start(folder, result, steps, **options):
    words = [sys.executable, str(SCRIPT), str(folder), str(result), str(steps)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def arrays(path):
    with np.load(path) as stored:
        return {name: stored[name].tobytes() for name in stored.files}


def test_kills(tmp_path, say):
    """At random moments of the start, the steps and the saves; telemetry is compared too."""
    rng = np.random.default_rng(0)
    steps = 100 * KILLS
    alone = start("none", tmp_path / "alone.npz", steps)
    # The first kills come while the process starts, the later ones after its first step.
    for number in range(KILLS):
        process = start(tmp_path / "run", tmp_path / "killed.npz", steps)
        if number % 5:
            for _ in range(2):  # "ready", and the first step of this process
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.3))
        else:
            time.sleep(rng.uniform(0, 5))
        process.kill()
        process.communicate()
    assert not (tmp_path / "killed.npz").exists(), "killed too late to test anything"
    last = start(tmp_path / "run", tmp_path / "killed.npz", steps)
    output, errors = last.communicate()
    assert last.returncode == 0, errors
    resumed_at = int(output.splitlines()[1])
    assert resumed_at > KILLS // 2, "nothing was resumed"
    assert alone.communicate() and alone.returncode == 0
    assert arrays(tmp_path / "alone.npz") == arrays(tmp_path / "killed.npz")
    left = [name for name in os.listdir(tmp_path / "run") if name.startswith(".")]
    assert left == [], "temporary files and locks of killed runs"
    rows = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    with np.load(tmp_path / "alone.npz") as whole:
        assert [row["loss"] for row in rows] == whole["loss"].tolist()
    assert [row["step"] for row in rows] == list(range(steps))
    say(f"{KILLS} kills -9, resumed at step {resumed_at} of {steps} in the end: identical bits")


@pytest.fixture
def saved(tmp_path):
    saving = pb.Checkpoints(tmp_path / "run", every_steps=5)
    pb.fit(OPT, START, None, 10, checkpoint=saving)
    return tmp_path / "run"


def flipped(content, rng):
    place = int(rng.integers(8 * len(content)))
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def same(read, good):
    """Whether manifest and arrays are those that were written, bit by bit."""
    return read[0] == good[0] and {
        name: (x.dtype, x.shape, x.tobytes()) for name, x in read[1].items()
    } == {name: (x.dtype, x.shape, x.tobytes()) for name, x in good[1].items()}


def test_flips_read(saved, say):
    """Every reader on changed bytes: one bit, and in every fourth case a cut, zeros, more bits."""
    rng = np.random.default_rng(1)
    newest = (saved / "step-000000010.ckpt").read_bytes()
    rows = (saved / "history.rows").read_bytes()
    good = parse(newest)
    count = collections.Counter()

    def read(content):
        try:
            return "identical" if same(parse(content), good) else "wrong"
        except Damaged:
            return "refused"

    for number in range(FLIPS):
        once = flipped(newest, rng)
        count["flip", read(once)] += 1
        if number % 4 == 0:
            begin, size = map(int, rng.integers(len(newest), size=2))
            count["more flips", read(flipped(flipped(once, rng), rng))] += 1
            count["cut", read(newest[:begin])] += 1
            count["zeros", read(newest[:begin] + bytes(size) + newest[begin + size :])] += 1
        (saved / "history.rows").write_bytes(flipped(rows, rng))
        try:
            read_ledger(saved / "history.rows", good[0]["history"])
            count["flip in the history", "wrong"] += 1
        except Damaged:
            count["flip in the history", "refused"] += 1
    for damage in dict.fromkeys(damage for damage, _ in count):
        outcomes = {outcome: n for (kind, outcome), n in count.items() if kind == damage}
        say(f"{sum(outcomes.values())} files, {damage}: {outcomes}")
    assert not any(outcome == "wrong" for _, outcome in count)
    # Zeros in the place of zeros change nothing.
    assert {damage for damage, outcome in count if outcome == "identical"} <= {"zeros"}


def test_flips_resumed(saved, tmp_path, say):
    """The whole of `fit` on a folder in which one bit of one file is flipped."""
    rng = np.random.default_rng(2)
    whole = bits(pb.fit(OPT, START, None, 12))
    names = sorted(os.listdir(saved))
    count = collections.Counter()
    for number in range(FLIPS // 20):
        folder = tmp_path / f"copy {number}"
        shutil.copytree(saved, folder)
        name = names[number % len(names)]
        (folder / name).write_bytes(flipped((folder / name).read_bytes(), rng))
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                fit = pb.fit(OPT, START, None, 12, checkpoint=folder)
            found = "identical" if bits(fit) == whole else "wrong"
            # Unless the older file was changed, which is not looked at.
            assert len(told) == (0 if "005" in name else 1)
        except ValueError as refusal:
            found = "refused" if "no checkpoint in" in str(refusal) else "wrong"
        count[found] += 1
        shutil.rmtree(folder)
    say(f"{FLIPS // 20} runs resumed after one flipped bit: {dict(count)}")
    assert count["wrong"] == 0 and count["identical"] > count["refused"]


def test_full_disk(tmp_path, say):
    """The system refuses bytes beyond a limit, at another place of the files in every run."""
    whole = bits(pb.fit(OPT, START, None, 40))
    rng = np.random.default_rng(3)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    failed = 0
    try:
        for number in range(20):
            folder = tmp_path / str(number)
            saving = pb.Checkpoints(folder, every_steps=2)
            lines = tmp_path / f"{number}.jsonl"
            pb.fit(OPT, START, None, 10, checkpoint=saving, telemetry=lines)
            largest = max(path.stat().st_size for path in [*folder.iterdir(), lines])
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(rng.integers(200, largest + 500)), hard))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                fit = pb.fit(OPT, START, None, 30, checkpoint=saving, telemetry=lines)
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert fit.steps == 30 and len(told) <= 2
            assert all("could not be written" in str(x.message) for x in told)
            failed += bool(told)
            # There is space again: whatever was saved is whole.
            again = pb.fit(OPT, START, None, 40, checkpoint=saving, telemetry=lines)
            assert bits(again) == whole and len(lines.read_text().splitlines()) == 40
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert failed > 10
    say(f"20 runs, on {failed} of which the disk was full: none ended, all resumed: identical bits")


def test_folders_without_permission(say):
    """As a user whom permissions bind: root may write anywhere."""
    code = """
import os, sys, pathlib
import equinox as eqx, jax.numpy as jnp
import pullback as pb
class Never(eqx.Module):
    def init(self, params): raise AssertionError("too late")
    def step(self, params, state, batch): raise AssertionError("too late")
params = jnp.ones(2)  # What is imported late, nobody may have the permission to read.
if os.getuid() == 0:
    os.seteuid(65534)
try:
    pb.fit(Never(), params, None, 3, checkpoint=sys.argv[1])
except ValueError as refusal:
    print(refusal)
"""
    # The folders of pytest are for their owner only.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        for place in (folder, f"{folder}/below"):
            words = [sys.executable, "-c", code, place]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert "the folder cannot be written" in done.stdout, done.stderr
            assert "Permission denied" in done.stdout
    say("a folder without permission: refused before anything was computed")


def test_two_at_once(tmp_path, say):
    """Runs that are started together: one makes the steps, the others end at once with an error."""
    crowd = [start(tmp_path / "run", tmp_path / f"{i}.npz", 300) for i in range(3)]
    ended = [(*process.communicate(), process.returncode) for process in crowd]
    codes = [code for *_, code in ended]
    pids = [str(process.pid) for process in crowd]
    refusals = [errors for _, errors, code in ended if code != 0]
    # One that starts after another has ended resumes what is done already.
    assert 0 in codes
    for errors in refusals:
        assert "saves a run in this folder" in errors.splitlines()[-1]
        assert any(f"process {pid} on" in errors for pid in pids)
    results = [arrays(tmp_path / f"{i}.npz") for i in range(3) if (tmp_path / f"{i}.npz").exists()]
    assert len(results) == codes.count(0) and all(result == results[0] for result in results)
    say(f"3 runs at once on a folder: {codes.count(0)} done, {len(refusals)} refused by name")


def test_every_write_may_fail(tmp_path, monkeypatch, say):
    """The n-th call of the system fails, for every n that a run reaches."""
    whole = bits(pb.fit(OPT, START, None, 12))
    calls = ("open", "fsync", "replace", "ftruncate", "write")
    real = {name: getattr(os, name) for name in calls}
    count = collections.Counter()
    for number in range(200):
        folder = tmp_path / str(number)
        pb.fit(OPT, START, None, 4, checkpoint=pb.Checkpoints(folder, every_steps=2))
        left = number
        reached = False

        def failing(name):
            def call(*args, **options):
                nonlocal left, reached
                if str(args[0]).startswith(str(tmp_path)) or isinstance(args[0], int):
                    left -= 1
                    if left == -1:
                        reached = True
                        raise OSError(errno.EIO, "Input/output error")
                return real[name](*args, **options)

            return call

        for name in calls:
            monkeypatch.setattr(os, name, failing(name))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                saving = pb.Checkpoints(folder, every_steps=2)
                fit = pb.fit(OPT, START, None, 10, checkpoint=saving)
            assert bits(fit) == bits(pb.fit(OPT, START, None, 10))
            count["went on"] += 1
        except ValueError as refusal:
            assert "cannot be written" in str(refusal) or "no checkpoint in" in str(refusal)
            count["refused"] += 1
        finally:
            monkeypatch.undo()
        if not reached:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert bits(pb.fit(OPT, START, None, 12, checkpoint=folder)) == whole
    say(f"each of {number} calls of the system failed once: {dict(count)}; identical bits after")
    assert not reached
