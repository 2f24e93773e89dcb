"""One run on the devices of several processes, started by `jax.distributed` over loopback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "processes.py"
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def run(folder, what, number=2, devices=2):
    """What each process found, and what it printed if it failed."""
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
    start = lambda place: subprocess.Popen(
        [sys.executable, str(SCRIPT), str(place), str(number), str(port), str(folder), what],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    processes = [start(place) for place in range(number)]
    try:
        printed = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * number, "\n".join(printed)
    return [json.loads((folder / f"found{k}.json").read_text()) for k in range(number)]


def gap(a, b):
    return np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(b)


@pytest.mark.slow
def test_two_processes_make_one_run(tmp_path):
    alone, many = tmp_path / "alone", tmp_path / "many"
    alone.mkdir()
    many.mkdir()
    one = run(alone, "gradient,fit6", number=1)[0]
    first, second = run(many, "gradient,nan,fit3")
    for name in ("SVD", "Primal", "Dual", "Krylov"):
        assert first[name] == second[name]
        assert gap(first[name], one[name]) < 1e-11
    assert "on another process than 0" in first["nan"]
    assert "at index (5, 1), process 1" in second["nan"]
    # A second call goes on where the first has ended: one folder, one file, written by process 0.
    for found in run(many, "fit6"):
        assert found["ended"] == "all 6 steps were made"
        assert gap(found["fit"], one["fit"]) < 1e-11
        assert found["losses"][:3] == first["losses"]
    lines = (many / "lines.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(6))
