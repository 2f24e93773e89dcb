"""The script of docs/devices.md, run as it stands: on forced devices, on processes, under Slurm."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
SCRIPT, SHARDED, REST = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
FORCED = "--xla_force_host_platform_device_count"


def outputs(folder, content, arguments, more=({},), devices=1):
    """What processes print that run the script, each with arguments and an environment."""
    (folder / "train.py").write_text(content)
    env = os.environ | {"XLA_FLAGS": f"{FORCED}={devices} {QUICK}", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "train.py", *words], env=env | extra, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for words, extra in zip(arguments, more, strict=True)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), printed
    return [out for out, _ in printed]


def loss_of(printed):
    return float(re.search(r"loss (\S+)", printed).group(1))


def test_it_runs_on_forced_devices(tmp_path):
    check = "\nprint(jax.tree.map(lambda v: v.shape, vector), jax.device_count())"
    (printed,) = outputs(tmp_path, SCRIPT + SHARDED + REST + check, [[]], devices=4)
    assert "process 0: loss" in printed and loss_of(printed) < 1e-2
    assert "\nP('model',)\n" in printed
    assert printed.rstrip().endswith("{'v': (4,), 'w': (1, 4)} 4")
    assert list((tmp_path / "run").glob("step-*.ckpt"))


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.slow
def test_it_runs_on_two_processes_and_under_slurm(tmp_path):
    for name in ("one", "hand", "slurm"):
        (tmp_path / name).mkdir()
    (one,) = outputs(tmp_path / "one", SCRIPT, [[]])
    address = f"127.0.0.1:{free_port()}"
    by_hand = outputs(
        tmp_path / "hand", SCRIPT, [[address, "2", str(place)] for place in range(2)], [{}, {}]
    )
    # What `srun` sets, and JAX reads.
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2",
             "SLURM_STEP_NUM_NODES": "1", "JAX_COORDINATOR_PORT": str(free_port())}  # fmt: skip
    tasks = [slurm | {"SLURM_PROCID": str(k), "SLURM_LOCALID": str(k)} for k in range(2)]
    tasks = outputs(tmp_path / "slurm", SCRIPT, [[], []], tasks, devices=2)
    for place, printed in enumerate([*by_hand, *tasks]):
        assert f"process {place % 2}: loss" in printed
        assert loss_of(printed) == pytest.approx(loss_of(one), rel=0.1)


def test_the_job_file_starts_the_script():
    job = re.search(r"#!/bin/bash\n.*?```", PAGE, flags=re.DOTALL).group(0)
    assert "srun --kill-on-bad-exit=1 python train.py" in job and "#SBATCH --requeue" in job
