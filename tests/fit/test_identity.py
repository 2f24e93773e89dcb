"""What determines a run: the same in every process, and another one if anything has changed."""

import functools
import json
import os
import re
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import normal

import pullback as pb
from pullback._fit.identity import differences, identity

X = normal(6, 2, seed=1)
Y = normal(6, 1, seed=2)
START = normal(2, 1, seed=3)
SCALE = 2.0
COUNTS = []


def helper(x):
    return SCALE * x


def model(p, x):
    COUNTS.append(1)
    return helper(x) @ p


def loss(z, y):
    return jnp.sum((z - y) ** 2, 1) / 2


def described(opt=None, batches=(X, Y), seed=0, start=START):
    return identity(opt or optimiser(), batches, jax.random.key(seed), start)


def optimiser(f=model, g=loss, weights=None, **options):
    measure = None if weights is None else pb.Weights(weights)
    return pb.NaturalGradientDescent(pb.Composite(f, g, measure=measure), **options)


def changes(there, here):
    return differences(json.loads(json.dumps(there)), here, True)


def test_the_same_run_is_the_same():
    assert changes(described(), described()) == ([], [])
    COUNTS.append(1)
    assert changes(described(), described()) == ([], [])


WEIGHTS = np.full(6, 1 / 6)


def closed(number):
    return lambda p, x: number * x @ p


def documented(p, x):
    """Another docstring, and other names."""
    COUNTS.append(1)
    return helper(x) @ p


class Net(eqx.Module):
    width: int

    def __call__(self, p, x):
        return self.width * x @ p


class OtherNet(Net):
    def __call__(self, p, x):
        return self.width * x @ p + 1


class Chained(eqx.Module):
    """An optimiser that holds one of Optax, which is made of closures."""

    optax: optax.GradientTransformation

    def init(self, params):
        return self.optax.init(params)

    def step(self, params, state, batch):
        updates, state = self.optax.update(params, state)
        return optax.apply_updates(params, updates), state, {"loss": jnp.sum(params)}


@pytest.mark.parametrize(
    "words, there, here",
    [
        ("measure.values has other numbers", lambda: optimiser(weights=WEIGHTS),
         lambda: optimiser(weights=np.linspace(0, 1, 6))),
        ("problem.model has other code", optimiser, lambda: optimiser(lambda p, x: x @ p + 1)),
        ("problem.loss has other code", optimiser, lambda: optimiser(g=lambda z, y: z[:, 0])),
        (r"problem.model.number=3.0 here, 2.0 there", lambda: optimiser(closed(2.0)),
         lambda: optimiser(closed(3.0))),
        ("model.number has other numbers", lambda: optimiser(closed(jnp.ones(2))),
         lambda: optimiser(closed(jnp.zeros(2)))),
        ("problem.model.keywords.b=2 here, 1 there",
         lambda: optimiser(functools.partial(model, b=1)),
         lambda: optimiser(functools.partial(model, b=2))),
        ("problem.model.width=3 here, 2 there", lambda: optimiser(Net(2)),
         lambda: optimiser(Net(3))),
        ("OtherNet", lambda: optimiser(Net(2)), lambda: optimiser(OtherNet(2))),
        ("shrink=0.3 here, 0.5 there", lambda: optimiser(step=pb.step.LineSearch()),
         lambda: optimiser(step=pb.step.LineSearch(shrink=0.3))),
        ("solver", lambda: optimiser(solver=pb.solver.Dual()),
         lambda: optimiser(solver=pb.solver.SVD())),
        ("problem.metric", optimiser,
         lambda: pb.NaturalGradientDescent(pb.Composite(model, loss, pb.metric.Bernoulli()))),
        ("step_size=-0.002 here, -0.001 there", lambda: Chained(optax.adam(0.001)),
         lambda: Chained(optax.adam(0.002))),
    ],
)  # fmt: skip
def test_another_optimiser_is_another_run(words, there, here):
    changed, noted = changes(described(there()), described(here()))
    assert noted == [] and any(re.search(words, x) for x in changed), changed
    assert changes(described(here()), described(here())) == ([], [])


def test_functions_that_a_model_calls_count(monkeypatch):
    before = described()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert changes(before, described())[0] == [
        "optimiser: problem.model.helper.SCALE=3.0 here, 2.0 there"
    ]
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert changes(before, described())[0][0] == "optimiser: problem.model.helper has other code"


def test_docstrings_and_wrappers_do_not_count():
    assert changes(described(), described(optimiser(documented))) == ([], [])
    wrapped = described(optimiser(jax.jit(model)))
    assert changes(wrapped, described(optimiser(jax.jit(model)))) == ([], [])


def test_counters_do_not_count():
    calls = 0

    def counted(p, x):
        nonlocal calls
        calls += 1
        return x @ p

    before = described(optimiser(counted))
    calls = 3
    assert changes(before, described(optimiser(counted))) == ([], [])


@pytest.mark.parametrize(
    "words, there, here",
    [
        ("key has other numbers", {}, {"seed": 1}),
        ("batches: 1 has other numbers", {}, {"batches": (X, Y + 1)}),
        (
            r"batches: 0=float64\[3, 2\] here, float64\[6, 2\] there",
            {},
            {"batches": (X[:3], Y[:3])},
        ),
        ("batches: size=3 here, 2", {"batches": pb.minibatches((X, Y), 2)},
         {"batches": pb.minibatches((X, Y), 3)}),
        ("batches: batch.targets has other", {"batches": pb.minibatches((X, Y), 2)},
         {"batches": pb.minibatches((X, 2 * Y), 2)}),
        ("batches: first.0 has other", {"batches": [(X, Y)]}, {"batches": [(-X, Y), (X, Y)]}),
        ("batches: ", {}, {"batches": iter([(X, Y)])}),
    ],
)  # fmt: skip
def test_other_data_are_another_run(words, there, here):
    changed, noted = changes(described(**there), described(**here))
    assert noted == [] and any(re.search(words, x) for x in changed), changed


def test_more_batches_are_the_same_run():
    longer = described(batches=[(X, Y), (X, Y)])
    assert changes(described(batches=[(X, Y)]), longer) == ([], [])


def test_last_bits_are_a_warning():
    near = described(batches=(X, Y * (1 + 1e-15)))
    changed, noted = changes(described(), near)
    assert changed == [] and noted == [
        "batches: 1 has other numbers (float64[6, 1]) in the last bits"
    ]
    far = described(batches=(X, Y * (1 + 1e-9)))
    assert changes(described(), far)[0] == ["batches: 1 has other numbers (float64[6, 1])"]
    integers = described(batches=(X, jnp.arange(6))), described(batches=(X, jnp.arange(6) + 1))
    assert len(changes(*integers)[0]) == 1


def test_a_module_among_the_parameters_is_code_too():
    changed, _ = changes(described(start=Net(2)), described(start=OtherNet(2)))
    assert any("OtherNet" in x for x in changed)


def test_another_start_is_a_warning():
    changed, noted = changes(described(), described(start=START + 1))
    assert changed == [] and len(noted) == 1 and "which are not used" in noted[0]


def test_code_of_another_python_is_not_compared():
    there, here = described(), described(optimiser(lambda p, x: x @ p + 1))
    assert all("other code" not in x for x in differences(there, here, False)[0])


def test_any_content_can_be_compared():
    for there in (
        {},
        {"key": None},
        {"key": 3},
        {"key": []},
        {"key": [1, 2, 3]},
        {"key": [[]] * 3},
    ):
        assert differences(there, described(), True)[0]


def test_the_description_is_the_same_in_every_process():
    code = """
import json
import jax
jax.config.update("jax_enable_x64", True)
import test_identity as t, pullback as pb, optax
runs = [t.described(), t.described(t.Chained(optax.adam(0.1))), t.described(t.optimiser(t.Net(2))),
        t.described(t.optimiser(jax.jit(t.model), step=pb.step.LevenbergMarquardt(),
                    momentum=pb.Spring(0.5)), pb.minibatches((t.X, t.Y), 2)),
        t.described(t.optimiser(lambda p, x: x @ p if 3 in {1, 2, 3} else {"a", "b", "c"}))]
print(json.dumps(runs))
"""
    paths = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]
    outputs = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
        outputs.append(subprocess.check_output([sys.executable, "-c", code], env=environment))
    assert outputs[0] == outputs[1]
    assert b"0x" not in outputs[0]


def test_a_changed_run_is_refused_or_resumed_with_a_warning(tmp_path):
    saving = pb.Checkpoints(tmp_path, every_steps=1)
    opt = optimiser(weights=WEIGHTS)
    pb.fit(opt, START, (X, Y), 1, key=1, checkpoint=saving)
    other = optimiser(weights=WEIGHTS * np.arange(6))
    with pytest.raises(ValueError, match=r"measure\.values has other numbers.*\n.*compare=False"):
        pb.fit(other, START, (X, Y), 2, key=1, checkpoint=saving)
    with pytest.raises(ValueError, match="key has other numbers"):
        pb.fit(opt, START, (X, Y), 2, key=2, checkpoint=saving)
    with pytest.raises(ValueError, match="batches: 0 has other numbers"):
        pb.fit(opt, START, (X + 1, Y), 2, key=1, checkpoint=saving)
    with pytest.warns(pb.FitWarning, match="which are not used"):
        pb.fit(opt, START + 1, (X, Y), 2, key=1, checkpoint=saving)
    trusting = pb.Checkpoints(tmp_path, compare=False)
    with pytest.warns(pb.FitWarning, match="measure.values has other numbers.*the run resumes"):
        assert pb.fit(other, START, (X, Y), 3, key=1, checkpoint=trusting).steps == 3
    # From then on it is the changed run.
    assert pb.fit(other, START, (X, Y), 4, key=1, checkpoint=saving).steps == 4
