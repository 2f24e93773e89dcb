"""Samples that are spread over devices: the answer of one device, from a share of the work each.

The devices are those of one process, forced to have eight (`tests/scripts/devices.py`): JAX takes
the flag when it starts.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "devices.py"
MODELS = ("dense", "conv", "attention", "scan", "pde", "scores")
SOLVERS = ("SVD", "Primal", "Dual", "Krylov", "Auto")
PRODUCT = itertools.product(
    MODELS, SOLVERS, ("MoorePenrose", "Tikhonov"), ("Mean", "Sum", "Weights"),
    ("Auto", "Explicit"), ("4", "2", "1"),
)  # fmt: skip
# Shuffled with a fixed stride, so that a sample of neighbours has something of everything.
CASES = ["-".join(case) for case in PRODUCT]
CASES = [CASES[(k * 389) % len(CASES)] for k in range(len(CASES))]


def start(names, script=SCRIPT, devices=8):
    flags = f"--xla_force_host_platform_device_count={devices}"
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    env = os.environ | {"XLA_FLAGS": f"{flags} {quick}", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, str(script), *names], capture_output=True, text=True, env=env,
        timeout=3600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return {line["case"]: line for line in map(json.loads, run.stdout.splitlines())}


@pytest.fixture(scope="module")
def found(request):
    """What the process found for all cases of this run."""
    wanted = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and "case" in getattr(item, "callspec", _NONE).params
    ]
    return start(wanted)


class _NONE:
    params = ()


@pytest.mark.parametrize("case", CASES)
def test_the_answer_of_one_device(case, found):
    line = found[case]
    assert "error" not in line, line["error"]
    bound = max(1e-12, 1e-14 * line["condition"] ** (1 if "Tikhonov" in case else 2))
    assert max(line["vector"], line["pushforward"]) < bound, line
    assert max(line["covector"], line["value"]) < 1e-13, line
    assert line["rank"][0] == line["rank"][1]
    assert line["shape"][0] == line["shape"][1]
    assert line["result"] == ["successful"] * 2 or line["result"][0] == line["result"][1]
    # Every device has the same bits, and the pushforward lies where the samples are.
    assert line["equal"]
    assert line["split"] == (line["spread"] > 1) == (not case.endswith("-1"))


EXACT = ("joint_loss", "terms", "coupled", "derivative", "own_map")


@pytest.mark.parametrize("case", EXACT)
def test_other_problems(case, found):
    line = found[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-11
    assert len(set(line.get("results", ("successful",)))) == 1
    assert line.get("undeclared", "coupled_samples").startswith("coupled_samples")
    if case == "own_map":
        unnamed, marks, no_mesh, no_axis = line["words"]
        assert 'Composite(..., over="data")' in unnamed
        assert "check_vma=False" in marks
        assert "there is no mesh" in no_mesh and "jax.set_mesh" in no_mesh
        assert "Composite(over=('dat',)): the mesh has ('data',)" in no_axis


@pytest.mark.parametrize("case", ["bad_input"])
def test_bad_input_is_named(case, found):
    nan, params = found[case]["words"]
    assert "batch.inputs (first at index (5, 1))" in nan
    assert "params['v'] is sharded over the mesh axis 'data'" in params
    assert "jax.device_put(params" in params


RULES = ("LineSearch", "LevenbergMarquardt", "TrustRegion", "Geodesic", "Spring")


@pytest.mark.parametrize("case", [f"rule-{r}-{k}" for r in RULES for k in ("Auto", "Explicit")])
def test_steps_are_those_of_one_device(case, found):
    line = found[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-10
    assert line["results"][0] == line["results"][1]


@pytest.mark.parametrize("case", ["training-Auto", "training-Explicit"])
def test_training_is_sharded_in_and_out_and_resumes(case, found):
    line = found[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-11
    assert line["resumed"]
    assert line["devices"] == 4
    assert line["kind"].endswith(case.split("-")[1])
