"""One run on the devices of several processes, started by `jax.distributed` over loopback.

`tests/scripts/processes.py` is what each process runs. A process that waits for another one without
end would be killed here after `PATIENCE` seconds, and the test would fail.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "processes.py"
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
PATIENCE = 600
BOUND = 60
"""The heartbeats of the script end after 10 seconds; a machine may be busy."""
KILLS = int(os.environ.get("PROCESS_KILLS", "10"))


def start(folder, *cases, number=2, devices=2):
    """Processes that run some cases."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    several = f"--xla_force_host_platform_device_count={devices} {FLAGS}"
    bound = "--xla_cpu_collective_timeout_seconds=120"
    env = os.environ | {
        "XLA_FLAGS": f"{several} {bound}" if number > 1 else FLAGS,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_PREEMPTION_SERVICE": "0",
    }
    words = [str(number), str(port), str(folder), *cases]
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(place), *words], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for place in range(number)
    ]  # fmt: skip


def ended(processes, patience=PATIENCE):
    """What each process printed; those that do not end are killed, and raise."""
    try:
        return [process.communicate(timeout=patience)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def run(folder, *cases, number=2, devices=2):
    """What each process found."""
    processes = start(folder, *cases, number=number, devices=devices)
    printed = ended(processes)
    assert [process.returncode for process in processes] == [0] * number, "\n".join(printed)
    return [json.loads((folder / f"found{k}.json").read_text()) for k in range(number)]


def gap(a, b):
    return np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "devices"), [(2, 2), (4, 1)])
def test_processes_find_what_one_finds(tmp_path, number, devices):
    cases = ("gradient", "uneven", "iterators", "training-6", "chains-6")
    one = run(tmp_path / "one", *cases, number=1)[0]
    cases = ("gradient", "uneven", "iterators", "training-3", "chains-3")
    first = run(tmp_path / "many", *cases, number=number, devices=devices)
    # A second call resumes what the first has saved: one folder, one file, written by process 0.
    again = run(tmp_path / "many", "training-6", "chains-6", number=number, devices=devices)
    for place in range(number):
        found = first[place] | again[place]
        assert found == first[0] | again[0], "the same bits on every process"
        for case in ("gradient", "uneven", "iterators"):
            for name, numbers in found[case].items():
                assert gap(numbers, one[case][name]) < 1e-11, (case, name)
        assert gap(found["training-6"]["fit"], one["training-6"]["fit"]) < 1e-11
        assert gap(found["chains-6"]["sampler"], one["chains-6"]["sampler"]) < 1e-11
        assert found["training-6"]["losses"][:3] == found["training-3"]["losses"]
        assert found["training-6"]["evaluation"] == [0.0] * 6, "that of process 0"
        assert found["chains-6"]["split"], "saved in parts, restored where it was"
    lines = (tmp_path / "many" / "lines.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(6))


@pytest.mark.slow
def test_a_run_moves_to_another_number_of_processes(tmp_path):
    one = run(tmp_path / "one", "training-6", number=1)[0]
    run(tmp_path / "many", "training-2")
    run(tmp_path / "many", "training-4", number=1)
    for found in run(tmp_path / "many", "training-6", number=4, devices=1):
        assert gap(found["training-6"]["fit"], one["training-6"]["fit"]) < 1e-11


WORDS = {
    "lengths": ("batches of different shapes", "float64[4, 2]", "float64[8, 2]", "pullback.shard"),
    "lengths in fit": ("the processes disagree", "float64[4, 2]", "float64[8, 2]"),
    "axis": ("over must be one of the axes of the mesh, ('data',)",),
    "named axis": ("Composite(over=('date',)): the mesh has ('data',)",),
    "dtypes": ("process 0 has inputs: float64[2]", "process 1 has inputs: float32[2]"),
    "targets": ("targets have shape (3, 2), but the inputs have 8 samples",),
    "steps": ("the processes disagree", "steps=3", "steps=4"),
    "no steps": ("fit(steps=-1)",),
    "key": ("the processes disagree", "key=0", "key=1"),
    "start": ("the processes have different parameters", "only batches differ"),
    "start of fit": ("the processes disagree", "steps=3", "checksum"),
    "damping": ("the processes have different parameters",),
    "nan": ("batch.inputs (first at index (5, 1), process 1)",),
    "uneven nan": ("batch.inputs (first at index (4, 1), process 1, where it is sample 2)",),
    "targets of a likelihood": ("Sample 4 (process 1, where it is sample 2): -1.0; Poisson",),
    "nan in fit": ("step 0", "batch.inputs (first at index (5, 1), process 1)"),
    "folder": ("the processes [1] do not see the folder",),
    "iterator": ("the disk is gone",),
    # How many batches are taken at once depends on the clock.
    "short iterator": ("the processes disagree", "Process 0 has", " batches, "),
    "callback": ("no such column",),
    "evaluate": ("no such column",),
    "params": ("params['v'] is sharded over the mesh axis 'data'",),
}


@pytest.mark.slow
def test_bad_input_is_named_on_every_process(tmp_path):
    for found in run(tmp_path / "bad", "bad"):
        assert found["bad"].keys() == WORDS.keys()
        for name, words in WORDS.items():
            assert all(word in found["bad"][name] for word in words), (name, found["bad"][name])


@pytest.mark.slow
def test_a_callback_of_process_0_ends_the_run_on_all(tmp_path):
    first, second = (found["stopped"] for found in run(tmp_path / "stopped", "stopped"))
    assert first == second
    assert first["0"].startswith("the callback ended it after ")
    assert first["1"] == "all 40 steps were made"


def killed(folder, steps, number, rng, at=None):
    """Start a run, kill one of its processes, and return what the others said.

    `at` is the number of lines after which it is killed; by default any moment of the run.
    """
    processes = start(folder, f"walk-{steps}", number=number, devices=1)
    place = int(rng.integers(number))
    wait = int(rng.integers(0, 6)) if at is None else at
    for _ in range(wait):  # "ready", and then a line for every few steps
        if not processes[place].stdout.readline():
            break
    time.sleep(rng.uniform(0, 0.2))
    processes[place].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    printed = ended(processes, BOUND)
    assert time.monotonic() - begun < BOUND
    codes = [process.returncode for process in processes]
    assert codes[place] == -signal.SIGKILL
    assert all(code != 0 for code in codes), "nobody goes on alone"
    return [printed[k] for k in range(number) if k != place]


LOST = (
    "another process of this run has ended or does not answer",
    "JAX distributed service detected fatal errors",
    "coordination service",
)


def check_kills(folder, steps, number, kills, seed):
    alone = run(folder / "alone", f"walk-{steps}", number=number, devices=1)[0]
    rng = np.random.default_rng(seed)
    for kill in range(kills):
        # The first one after a few steps, so that there is something to resume.
        for said in killed(folder / "run", steps, number, rng, at=3 if kill == 0 else None):
            assert any(words in said for words in LOST), said
    assert list((folder / "run" / "walk").glob("step-*.ckpt")), "nothing was saved"
    for found in run(folder / "run", f"walk-{steps}", number=number, devices=1):
        assert found == json.loads((folder / "alone" / "found0.json").read_text())
    assert alone[f"walk-{steps}"]["losses"][-1] > 0
    left = [name for name in os.listdir(folder / "run" / "walk") if name.startswith(".")]
    assert left == [], "temporary files and locks of killed runs"


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
def test_a_killed_process_ends_the_others_and_the_run_resumes_bit_by_bit(tmp_path, number):
    check_kills(tmp_path, 300, number, KILLS, seed=number)
