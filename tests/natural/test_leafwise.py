"""Parameters that are sharded, FSDP and tensor parallel: they stay so, and the answer is the same.

The devices are eight of one process (`tests/scripts/leafwise.py`), as in `test_devices.py`.
"""

import itertools
from pathlib import Path

import pytest
from natural.test_devices import start

from pullback.solver._cost import KRYLOV_STEPS

SCRIPT = Path(__file__).parents[1] / "scripts" / "leafwise.py"
MODELS = ("dense", "conv", "softmax", "outside", "complex")
INVERSES = ("Tikhonov", "MoorePenrose")
WAYS = ("fsdp", "tensor", "both", "own", "only")
KINDS = ("Auto", "Explicit")
CASES = ["-".join(case) for case in itertools.product(MODELS, INVERSES, WAYS, KINDS)]
SOME = (
    "dense-Tikhonov-fsdp-Auto",
    "softmax-MoorePenrose-tensor-Explicit",
    "outside-Tikhonov-both-Explicit",
    "complex-Tikhonov-own-Auto",
)


def assert_the_answer_of_one_device(line):
    bound = max(1e-12, 1e-15 * line["condition"])
    assert line["vector"] < bound, line
    # The reference squares the condition number of A.
    assert line["reference"] < 10 * bound, line
    assert max(line["covector"], line["value"]) < 1e-13, line
    assert line["pushforward"] < bound, line
    assert line["result"] == ["successful"] * 2, line
    assert line["rank"][0] == line["rank"][1], line
    assert line["shape"][0] == line["shape"][1], line
    assert line["shares"][1] == pytest.approx(line["shares"][0], rel=1e-8, nan_ok=True), line
    assert line["residual"] < 1e-8, line
    assert line["where"][0] == "None", line
    assert line["where"][1].startswith("8 over 'data', 'model'; "), line
    assert line["where"][1].endswith("parameters in parts"), line
    assert line["kept"] and line["split"], line


@pytest.mark.parametrize("case", SOME)
def test_sharded_leaves_have_the_answer_of_one_device(case):
    assert_the_answer_of_one_device(start([case], SCRIPT)[case])


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_whole_product(model):
    cases = [case for case in CASES if case.startswith(f"{model}-")]
    lines = start(cases, SCRIPT)
    assert sorted(lines) == sorted(cases)
    for line in lines.values():
        assert_the_answer_of_one_device(line)


def test_terms_that_do_not_divide():
    line = start(["terms"], SCRIPT)["terms"]
    assert max(line["vector"], line["losses"], line["pushforward"]) < 1e-11, line
    assert line["shape"][0] == line["shape"][1]
    assert line["result"] == ["successful"] * 2


def test_what_cannot_be_done_is_named():
    words = start(["refused"], SCRIPT)["refused"]["words"]
    for name, solver in (("Primal", "solver=Primal()"), ("Nystrom", "preconditioner=Nystrom")):
        assert "is sharded over the mesh axis 'data'" in words[name]
        assert solver in words[name] and "Krylov()) keeps them sharded" in words[name]
    assert "metric_batch=... cannot" in words["metric_batch"]
    assert "params['mid'] (first at index (13, 2))" in words["nan"]
    assert "is not differentiated" in words["grad"]


def test_a_plan_has_the_traffic_of_sharded_parameters():
    line = start(["hlo-fsdp-64"], SCRIPT)["hlo-fsdp-64"]
    for loop in line["loops"]:
        taken = KRYLOV_STEPS * sum(size for _, size in loop)
        assert taken / 1.2 < line["sent"] < 1.2 * taken, line
    assert line["bytes"] / 2 < line["memory"] < 3 * line["bytes"], line
    assert "each device of 8 shares of the samples has 512 rows, its parameters" in line["text"]
    assert line["fits"] == {"SVD": False, "Dual": False, "Primal": False, "Krylov": True}
    assert "needs all parameters on every device" in line["text"]
    assert "is sharded over the mesh axis 'data'" in line["words"]
    assert "Krylov()) keeps them sharded; solver=Auto() cannot" in line["words"]


@pytest.mark.slow
def test_1e8_parameters_are_gathered_once_an_iteration():
    line = start(["hlo-fsdp-5000"], SCRIPT)["hlo-fsdp-5000"]
    leaves = sorted(line["leaves"].values())
    assert len(line["loops"]) == 2
    for loop in line["loops"]:
        for kind in ("all-gather", "reduce-scatter"):
            assert sorted(size for found, size in loop if found == kind) == leaves
        assert sum(size for _, size in loop) < 2.01 * sum(leaves)
    # Beside leaves, no more than the rows: not the batch, not A, not J.
    gathered = {size for kind, size in line["all"] if kind == "all-gather"}
    assert all(size in leaves or size <= 512 * 8 * 4 for size in gathered)
    assert all("data" in spec for spec in line["kept"])


@pytest.mark.slow
def test_1e8_parameters_in_tensor_parallel_are_not_gathered():
    line = start(["hlo-tensor-5000"], SCRIPT)["hlo-tensor-5000"]
    assert len(line["loops"]) == 2
    for loop in line["loops"]:
        assert {kind for kind, _ in loop} == {"all-reduce"}
        # The gradient over two shares of the samples, in quarters; and activations.
        assert sum(size for _, size in loop) < sum(line["leaves"].values()) / 4 + 2 * line["batch"]
    assert all(size <= 512 * 8 * 4 for kind, size in line["all"] if kind == "all-gather")
    assert [spec for spec in line["kept"] if "model" in spec] == line["kept"][:3]
