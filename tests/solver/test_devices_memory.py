"""Samples over eight devices: what each is sent, how much memory it takes, and the shared Cholesky
factorisation of K (`tests/scripts/distributed.py`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.solver._cost import KRYLOV_STEPS

SCRIPT = Path(__file__).parents[1] / "scripts" / "distributed.py"


def run(*cases):
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    flags = f"--xla_force_host_platform_device_count=8 {quick}"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SCRIPT), *cases]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_shared_cholesky_factorisation_is_that_of_numpy():
    # More panels than one, the last one narrower, on more and on fewer devices.
    dealt = "dealt-2-70", "dealt-4-101", "dealt-8-261"
    for line in run("panels-2-70", "panels-4-100", "panels-8-264", *dealt):
        assert line["panels"] > 1
        assert line["gap"] < 1e-12
        assert line["diagonal"] < 1e-14
        assert line["pivots"] == [True, False]


def test_a_decomposition_of_tall_rows_is_that_of_numpy():
    (line,) = run("tall-4-80-7")
    # Orthogonal also where singular values are small.
    assert max(line["orthogonal"], line["rows"]) < 1e-14
    assert line["values"] < 1e-9


@pytest.mark.slow
def test_the_answer_of_a_tall_svd_is_that_of_one_device():
    for line in run("few-MoorePenrose", "few-Tikhonov"):
        assert line["gap"] < 1e-13
        assert line["ranks"][0] == line["ranks"][1] == 4


def test_a_matrix_above_the_bound_is_refused():
    (line,) = run("refused")
    assert line["fine"] == ["successful"] * 2
    kernel, rows = line["words"]
    assert "K is 8 x 8, 4.77e-07 GiB, and its eigenvectors would be computed on each of 4" in kernel
    assert "inverse=pullback.Tikhonov(...)" in kernel and "pullback.solver.Krylov()" in kernel
    assert "A is 8 x 6, 3.58e-07 GiB, and this solver would copy it to each of 4" in rows
    assert "solver=pullback.solver.Primal()" in rows and "pullback.solver.Dual()" in rows


def test_statistics_say_where_things_were():
    (line,) = run("where")
    where = {
        "SVD": "parameters on each; samples, A in parts",
        "Primal": "parameters, G on each; samples in parts",
        "Dual": "parameters on each; samples, K in parts",
        "Krylov": "parameters on each; samples in parts",
    }
    for name, words in where.items():
        said, shown, text = line["found"][name]
        assert said == shown == f"4 over 'data'; {words}"
        assert text.endswith("4 devices)")
    first, second = line["compiled"]
    assert first == second > 0, "the second call compiles nothing"


SMALL = ("dense-Dual-Tikhonov-Weights-Explicit-2", "dense-Primal-Tikhonov-Weights-Auto-8")
MORE = (
    "conv-Primal-Tikhonov-Mean-Explicit-4",
    "scores-Primal-Tikhonov-Weights-Auto-2",
    "conv-Dual-Tikhonov-Weights-Explicit-4",
    "scores-Dual-Tikhonov-Mean-Auto-8",
    "pde-Dual-Tikhonov-Sum-Auto-4",
)


def check_answers(cases):
    for line in run(*(f"small-{case}" for case in cases)):
        assert max(line["vector"], line["pushforward"]) < 1e-12 * max(1, line["condition"] / 100)
        assert line["result"] == ["successful"] * 2
        assert line["equal"]


def test_the_answer_with_k_or_g_in_panels_is_that_of_one_device():
    check_answers(SMALL)


@pytest.mark.slow
def test_more_answers_with_k_or_g_in_panels():
    check_answers(MORE)


def check_programs(cases, memory):
    for line in run(*cases):
        (m, size), (samples, inputs) = line["shape"], map(int, line["case"].split("-")[2:4])
        batch, rows, jacobian = 8 * samples * inputs, 8 * m * size, 8 * samples * 3 * size
        # Neither the batch nor A nor J is copied to every device.
        assert not {batch, rows, jacobian} & set(line["gathers"]), line
        assert max(line["gathers"]) < rows / 4, line
        if "Krylov" in line["case"]:
            check_iterations(line)
        else:
            assert line["planned"] / 1.2 < line["sent"] < 1.2 * line["planned"], line
        assert line["each"] <= memory * line["alone"], line
        # The plan does not count the model, which is most of what `Krylov` takes.
        most = 3 if "Krylov" in line["case"] else 2
        assert line["memory"] / 2 < line["each"] < most * line["memory"], line
        assert line["devices"] == 8
        assert "each of 8 devices has" in line["text"]


def check_iterations(line):
    """The solution and its correction are iterations that only sum P numbers each time."""
    vector = 8 * line["shape"][1]
    # The third one runs once, if a residual is in doubt.
    assert len(line["loops"]) == 3, line
    assert all(vector <= size < 1.1 * vector for size in line["loops"]), line
    outside, planned = outside_of_iterations(line)
    assert planned / 1.2 < outside < 1.2 * planned, line


def outside_of_iterations(line):
    """What `Krylov` sends outside of its iterations, which are counted once, and what is planned.

    The solution and its correction are iterations.
    """
    vector = 8 * line["shape"][1]
    return line["sent"] - 2 * vector, line["planned"] - KRYLOV_STEPS * vector


def test_an_iteration_of_krylov_sends_a_vector_on_the_parameters():
    check_programs(["Krylov-Tikhonov-4096-16-32"], 1 / 4)


def test_primal_sends_the_metric_once_and_shares_the_rows():
    check_programs(["Primal-Tikhonov-16384-16-8"], 1 / 4)


@pytest.mark.slow
def test_dual_keeps_its_rows_of_k():
    check_programs(["Dual-Tikhonov-2048-16-512"], 1 / 4)


@pytest.mark.slow
def test_a_tall_svd_sends_triangles():
    check_programs(["SVD-Tikhonov-8192-12-4"], 1 / 4)


@pytest.mark.slow
def test_devices_share_the_factorisation_of_a_large_metric():
    # P = 1064: G is larger than what each device would factorise a copy of.
    check_programs(["Primal-Tikhonov-65536-16-56"], 1 / 2)


MODELS = ("conv", "attention", "scan", "pde", "scores")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_no_model_gathers_its_batch_or_its_rows(model):
    solvers = ("SVD", "Primal", "Dual", "Krylov")
    lines = run(*(f"program-{model}-{solver}-2048" for solver in solvers))
    assert len(lines) == len(solvers)
    for line in lines:
        assert not {line["batch"], line["rows"]} & set(line["gathers"]), line
        sent, planned = line["sent"], line["planned"]
        if "Krylov" in line["case"]:
            sent, planned = outside_of_iterations(line)
        assert planned / 1.2 < sent < 1.2 * planned, line


LARGE = """
import json, sys
import jax, numpy as np, _shares
jax.config.update("jax_enable_x64", True)
flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
def prepared(name, size, damping, count):
    mesh = jax.make_mesh((count,), ("data",), devices=jax.devices()[:count])
    return _shares.prepared(name, size, mesh, damping=damping)
for name, size, damping, first, times in json.loads(sys.argv[1]):
    alone = np.asarray(prepared(name, size, damping, first)[1]["vector"])
    for count in (2, 4, 8):
        call, found = prepared(name, size, damping, count)
        vectors = [found["vector"]] + [flat(call()) for _ in range(times)]
        gap = max(np.linalg.norm(v - alone) for v in vectors) / np.linalg.norm(alone)
        print(json.dumps([name, count, float(gap)]), flush=True)
"""
LARGE_CASES = {
    # Solver, samples and width, damping, the number of devices to compare with, and repetitions.
    "Dual": ("Dual", (768, 230), 1e-3, 1, 8),
    "Dual, undamped": ("Dual", (200, 230), None, 2, 2),
    "Primal": ("Primal", (12288, 84), 1e-3, 2, 2),
    "Primal, undamped": ("Primal", (12288, 84), None, 2, 2),
    "Krylov": ("Krylov", (12288, 84), 1e-3, 2, 2),
    "Krylov, undamped": ("Krylov", (12288, 12), None, 2, 2),
    "SVD": ("SVD", (8192, 12), 1e-3, 2, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE_CASES)
def test_devices_meet_in_the_same_collectives_where_arrays_are_large(case):
    """Small programs run one operation after another; large ones do not, and have hung here.

    `tests/compat/test_in_order.py` reads in programs that this cannot happen.
    """
    examples = str(Path(__file__).parents[2] / "examples")
    path = os.pathsep.join(filter(None, (examples, os.environ.get("PYTHONPATH"))))
    flags = "--xla_force_host_platform_device_count=8"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", LARGE, json.dumps([LARGE_CASES[case]])], capture_output=True,
        text=True, env=env, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [count for _, count, _ in found] == [2, 4, 8]
    # What is not damped is conditioned worse.
    assert max(gap for *_, gap in found) < (1e-12 if LARGE_CASES[case][2] else 1e-8), found
