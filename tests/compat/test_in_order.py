"""No two devices meet in different collectives: `tests/scripts/ordered.py` reads the programs.

That they could is seen in a program that is compiled, always; at run time it takes large arrays and
chance (`tests/solver/test_devices_memory.py` runs some).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "ordered.py"
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
SOLVERS = ("SVD", "Primal", "panels-Primal", "Dual", "panels-Dual", "Krylov")


def run(*cases, flags=QUICK):
    flags = f"--xla_force_host_platform_device_count=8 {flags}"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), *cases]
    done = subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_conditions_and_loops_of_a_small_program_are_ordered():
    (line,) = run("toy")
    # Nothing orders them by itself, and nothing else changes.
    assert line["plain"]["unordered"] > 20
    assert line["ordered"]["unordered"] == 0, line
    assert line["ordered"]["containers"] == line["plain"]["containers"] >= 6
    assert line["equal"]


def check(*cases, flags=QUICK):
    for line in run(*cases, flags=flags):
        assert line["containers"] > 0
        assert line["unordered"] == 0, line


def test_solvers_order_their_collectives():
    check("dense-Krylov-MoorePenrose-64", "panels-dense-Dual-Tikhonov-64")


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_orders_its_collectives(solver):
    first, _, last = solver.rpartition("-")
    named = f"{first}-" * bool(first)
    both = [f"{named}dense-{last}-{inverse}-512" for inverse in ("Tikhonov", "MoorePenrose")]
    # Compiled as users compile it.
    check(*both, f"{named}scores-{last}-Tikhonov-512", flags="")
