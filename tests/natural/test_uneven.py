"""Ten samples on four devices: the answer of ten samples on one, whatever fills up the shares.

One process with four forced devices computes all cases of a run (`tests/scripts/uneven.py`).
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback._natural.failure import place_of
from pullback._problem.batch import Batch
from pullback._problem.padding import Padded, filled_up, positions, shares, trimmed

SCRIPT = Path(__file__).parents[1] / "scripts" / "uneven.py"
MEASURES, SOLVERS = ("Mean", "Sum", "Weights"), ("SVD", "Primal", "Dual", "Krylov", "Auto")
SHARDED = [
    "-".join(("sharded", *case))
    for case in itertools.product(("Auto", "Explicit"), MEASURES, SOLVERS)
]
OTHERS = ("few", "joint", "terms", "coupled", "likelihood", "scores", "metric_batch", "named",
          "own_jit", "others", "optax-Auto", "optax-Explicit", "held_out-Auto",
          "held_out-Explicit")  # fmt: skip
SOURCES = ("batch", "minibatches", "list", "iterator")
TRAINING = [f"training-{kind}-{source}" for source in SOURCES for kind in ("Auto", "Explicit")]


@pytest.fixture(scope="module")
def found(request):
    """What the process found for all cases of this run."""
    items = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params["case"] for item in items if hasattr(item, "callspec")]
    flags = "--xla_force_host_platform_device_count=4"
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    env = os.environ | {"XLA_FLAGS": f"{flags} {quick}", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), *wanted], capture_output=True, text=True, env=env,
        timeout=3600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return {line["case"]: line for line in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("case", SHARDED)
def test_uneven_samples(case, found):
    line = found[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-12
    assert line["rank"][0] == line["rank"][1]
    assert line["shape"][0] == line["shape"][1]
    assert line["results"][0] == line["results"][1] == "successful"
    assert line["same"]


@pytest.mark.parametrize("case", OTHERS)
def test_uneven_problems(case, found):
    line = found[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-11, line
    assert line.get("same", True)
    assert len(set(map(tuple, line.get("shape", ())))) <= 1


@pytest.mark.parametrize("case", TRAINING)
def test_uneven_training(case, found):
    line = found[case]
    assert "error" not in line, line["error"]
    assert line["gap"] < 1e-10 and line["losses"] < 1e-11, line
    assert line["resumed"] and line["devices"] == 4


@pytest.mark.parametrize("case", ["bad"])
def test_bad_shards_are_named(case, found):
    assert "error" not in found[case], found[case]["error"]
    axis, mesh, targets, none, cut, drawn, nan = found[case]["words"]
    assert "over must be one of the axes of the mesh, ('data',)" in axis
    assert "mesh must be a jax.sharding.Mesh" in mesh
    assert "the inputs have 10 samples" in targets
    assert "without inputs" in none
    assert "was padded for 4 devices with 3, 3, 3, 1 samples" in cut
    assert "there are 10 samples" in drawn
    assert "Found in batch.inputs (first at index (9, 1))" in nan


def test_shares_and_positions():
    for count in range(1, 30):
        for size in range(1, 9):
            counts = shares(count, size)
            length = size * max(counts)
            assert sum(counts) == count and len(counts) == size and max(counts) == counts[0]
            np.testing.assert_array_equal(positions(counts, length), np.arange(count))
    np.testing.assert_array_equal(positions((1, 0, 2), 6), [0, 4, 5])


def test_trimmed_is_the_inverse_of_filled_up():
    key = jax.random.split(jax.random.key(0), 5)
    batch = Batch({"x": jnp.arange(10.0).reshape(5, 2), "key": key}, jnp.arange(5))
    padded = filled_up(batch, 4)
    assert isinstance(padded.inputs, Padded) and padded.inputs.counts == (2, 2, 1, 0)
    again = trimmed(padded)
    np.testing.assert_array_equal(again.inputs["x"], batch.inputs["x"])
    np.testing.assert_array_equal(again.targets, batch.targets)
    assert jnp.all(jax.random.key_data(again.inputs["key"]) == jax.random.key_data(key))
    assert filled_up(batch, 5) is batch


def test_what_fills_a_share_reaches_nothing():
    """On one device, with holes between the samples and NaN in them."""
    x, y = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2), jnp.asarray([1.0, -1.0, 0.5])
    places = np.asarray([0, 4, 5])
    wide = lambda a: jnp.full((6, *a.shape[1:]), jnp.nan).at[places].set(a)
    padded = Batch(Padded(wide(x), (1, 0, 2)), wide(y))
    for measure in (pb.Mean(), pb.Sum(), pb.Weights(jnp.asarray([0.2, 0.3, 0.5]))):
        problem = pb.Composite(
            lambda p, x: jnp.tanh(x @ p), lambda z, y: (z - y) ** 2, None, measure
        )
        objective = problem.at(padded)
        p = jnp.asarray([0.3, -0.4])
        assert jnp.allclose(objective.value(p), problem.at((x, y)).value(p), rtol=1e-15)
        want = problem.measure.observations(3, float)
        assert objective.problem.measure.observations(6, float) == want
        np.testing.assert_array_equal(
            objective.problem.measure.weights(6, float)[places], measure.weights(3, float)
        )


def test_a_failure_has_the_number_of_the_sample():
    """Not that of its entry, and not of what fills a share."""
    x = jnp.full((6, 2), jnp.nan).at[jnp.asarray([0, 4, 5])].set(1.0)
    model = lambda p, x: x @ p
    problem = pb.Composite(model, lambda z, y: (z - y) ** 2)
    bad = x.at[5, 1].set(jnp.inf)

    def message(problem, result, inputs, targets):
        batch = Batch(Padded(inputs, (1, 0, 2)), targets)
        return place_of(getattr(pb.RESULTS, result), problem, jnp.ones(2), batch)

    y = jnp.zeros(6)
    assert message(problem, "nonfinite_batch", bad, y).endswith(
        "batch.inputs (first at index (2, 1))."
    )
    assert message(problem, "nonfinite_batch", x, y) == ""
    assert message(problem, "nonfinite_outputs", bad, y).endswith("outputs (first at index (2,)).")
    problem = pb.Composite(model, metric=pb.metric.Poisson())
    said = message(problem, "bad_targets", jnp.ones((6, 2)), y.at[5].set(-1.0))
    assert said.startswith(" Sample 2: -1.0; Poisson admits")
