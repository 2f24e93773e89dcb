"""Samples that are spread over devices: the answer of one device, from a share of the work each.

The devices are those of one process, forced to have eight (`tests/scripts/devices.py`): JAX takes
the flag when it starts. `make test` runs a sample of the product, in one process; `make test-all`
runs all of it, in one process for each model and solver, which share what one device answers.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import seed

SCRIPT = Path(__file__).parents[1] / "scripts" / "devices.py"
MODELS = ("dense", "conv", "attention", "scan", "pde", "scores")
SOLVERS = ("SVD", "Primal", "Dual", "Krylov", "Auto")
REST = (("MoorePenrose", "Tikhonov"), ("Mean", "Sum", "Weights"), ("Auto", "Explicit"), "8421")
CASES = ["-".join(case) for case in itertools.product(MODELS, SOLVERS, *REST)]
SAMPLE = 5
# A stride without a common factor, so that neighbouring seeds have something of everything.
STRIDE = 389


def start(names, script=SCRIPT, devices=8):
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, str(script), *names], capture_output=True, text=True, env=env,
        timeout=3600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return {line["case"]: line for line in map(json.loads, run.stdout.splitlines())}


def sample(seed):
    """Neighbouring seeds have no case in common, until all have been taken."""
    return [CASES[k * STRIDE % len(CASES)] for k in range(seed * SAMPLE, (seed + 1) * SAMPLE)]


def test_samples_cover_the_product():
    seeds = range(40, 40 + len(CASES) // SAMPLE)
    assert {case for seed in seeds for case in sample(seed)} == set(CASES)


def assert_the_answer_of_one_device(case, line):
    assert "error" not in line, line["error"]
    bound = max(1e-12, 1e-14 * line["condition"] ** (1 if "Tikhonov" in case else 2))
    assert max(line["vector"], line["pushforward"]) < bound, line
    assert max(line["covector"], line["value"]) < 1e-13, line
    assert line["rank"][0] == line["rank"][1], line
    assert line["shape"][0] == line["shape"][1], line
    assert line["result"][0] == line["result"][1], line
    several = int(case.split("-")[-1]) > 1
    assert line["shown"] == [several, False], line
    assert line["where"][1] == "None", line
    assert line["where"][0].startswith(f"{case[-1]} over 'data'; parameters") == several, line
    # Every device has the same bits, and the pushforward lies where the samples are.
    assert line["equal"], line
    assert line["split"] == (line["spread"] > 1) == (not case.endswith("-1")), line


def test_the_answer_of_one_device():
    for case, line in start(sample(seed())).items():
        assert_the_answer_of_one_device(case, line)


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("model", MODELS)
def test_the_whole_product_over_devices(model, solver):
    cases = [case for case in CASES if case.startswith(f"{model}-{solver}-")]
    lines = start(cases)
    assert sorted(lines) == sorted(cases)
    for case, line in lines.items():
        assert_the_answer_of_one_device(case, line)


EXACT = ("joint_loss", "terms", "coupled", "derivative", "own_map")


@pytest.mark.parametrize("case", EXACT)
def test_other_problems(case):
    line = start([case])[case]
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


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_everything_works_under_a_mesh_that_is_set(kind):
    line = start([f"under-{kind}"])[f"under-{kind}"]
    assert "error" not in line, line["error"]
    assert {name: x for name, x in line["gaps"].items() if not x < 1e-8} == {}


def test_bad_input_is_named():
    nan, params = start(["bad_input"])["bad_input"]["words"]
    assert "batch.inputs (first at index (5, 1))" in nan
    assert "params['v'] is sharded over the mesh axis 'data'" in params
    assert "jax.device_put(params" in params


RULES = (
    "LineSearch",
    "GridSearch",
    "DampingSearch",
    "LevenbergMarquardt",
    "TrustRegion",
    "Geodesic",
    "Spring",
    "HeavyBall",
)


@pytest.mark.parametrize("case", [f"rule-{r}-{k}" for r in RULES for k in ("Auto", "Explicit")])
def test_steps_are_those_of_one_device(case):
    line = start([case])[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-10
    assert line["results"][0] == line["results"][1]
    # Parameters that were on one device come out whole on each.
    assert line["devices"] == [4] and line["whole"]


@pytest.mark.parametrize("case", ["training-Auto", "training-Explicit"])
def test_training_is_sharded_in_and_out_and_resumes(case):
    line = start([case])[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-11
    assert line["resumed"]
    assert line["devices"] == 4
    assert line["kind"].endswith(case.split("-")[1])
