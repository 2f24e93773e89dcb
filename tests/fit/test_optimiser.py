"""`fit` with an optimiser of one's own: anything with `init` and `step`."""

import dataclasses
import json
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb

PROBLEM = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
X = normal(6, 3, seed=1)
Y = normal(6, seed=2)
START = normal(3, seed=3)


def mean_loss(params, batch):
    inputs, targets = batch
    return jnp.mean((inputs @ params - targets) ** 2) / 2


class Losses(NamedTuple):
    loss: jax.Array


class GradientDescent(eqx.Module):
    """Gradient descent whose record has nothing but the loss."""

    problem: pb.Composite
    rate: float

    def init(self, params):
        return 0

    def step(self, params, state, batch):
        loss, gradient = jax.value_and_grad(mean_loss)(params, (batch.inputs, batch.targets))
        return params - self.rate * gradient, state + 1, Losses(loss)


def test_a_tiny_optimiser_is_fitted_saved_and_resumed(tmp_path):
    opt = GradientDescent(PROBLEM, 0.1)
    expected = START
    for _ in range(6):
        expected = expected - 0.1 * jax.grad(mean_loss)(expected, (X, Y))
    lines = tmp_path / "run.jsonl"
    for steps in (4, 6):
        fit = pb.fit(opt, START, (X, Y), steps, checkpoint=tmp_path / "run", telemetry=lines)
    np.testing.assert_allclose(fit.params, expected, rtol=1e-12)
    assert int(fit.state) == 6 and list(fit.history.columns) == ["step", "loss"]
    assert [json.loads(line)["step"] for line in lines.read_text().splitlines()] == list(range(6))
    assert "6 steps" in repr(fit) and len(fit.plot().axes) == 4
    faster = dataclasses.replace(opt, rate=0.2)
    with pytest.raises(ValueError, match=r"optimiser: .*rate=0\.2"):
        pb.fit(faster, START, (X, Y), 8, checkpoint=tmp_path / "run")


def test_an_optimiser_that_is_no_equinox_module():
    class Plain:
        init = staticmethod(lambda params: None)
        step = staticmethod(lambda params, state, batch: (params / 2, state, {"loss": params[0]}))

    fit = pb.fit(Plain(), START, None, 3)
    np.testing.assert_allclose(fit.history["loss"], START[0] / 2.0 ** np.arange(3))


def test_an_optimiser_that_is_a_plain_dataclass():
    @dataclasses.dataclass
    class Shrinking:
        rate: float

        def init(self, params):
            return None

        def step(self, params, state, batch):
            record = {"loss": jnp.sum(params**2), "rate": self.rate, "name": "shrinking"}
            return self.rate * params, state, record

    fit = pb.fit(Shrinking(0.5), np.asarray(START), None, 3)
    np.testing.assert_allclose(fit.params, START / 8)
    # Numbers are recorded, words are not.
    assert list(fit.history) == ["step", "loss", "rate"] and set(fit.history["rate"]) == {0.5}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64], ids=str)
def test_random_keys_and_short_floats_are_saved_and_resumed(tmp_path, dtype):
    class Walk(eqx.Module):
        def init(self, params):
            return jax.random.key(1)

        def step(self, params, key, batch):
            key, now = jax.random.split(key)
            record = {"loss": jnp.sum(params**2)}
            return params + jax.random.normal(now, params.shape, params.dtype), key, record

    start = START.astype(dtype)
    whole = pb.fit(Walk(), start, None, 6)
    for steps in (2, 6):
        fit = pb.fit(Walk(), start, None, steps, checkpoint=tmp_path)
    assert fit.params.dtype == dtype and np.array_equal(fit.params, whole.params)
    assert np.array_equal(fit.history["loss"], whole.history["loss"])
    assert np.array_equal(jax.random.key_data(fit.state), jax.random.key_data(whole.state))


def test_a_loss_that_is_not_finite_is_a_failure():
    opt = GradientDescent(PROBLEM, 0.1)
    bad = [(X, Y), (X, Y.at[0].set(jnp.nan)), (X, Y)]
    with pytest.raises(pb.FitError, match="step 1: the loss is nan") as caught:
        pb.fit(opt, START, bad, 3)
    assert caught.value.fit.steps == 2 and int(caught.value.fit.state) == 1
    # A failed step changes nothing, and can be skipped.
    skipped = pb.fit(opt, START, bad, 3, throw=False)
    good = pb.fit(opt, START, [bad[0], bad[2]], 2)
    assert np.array_equal(skipped.params, good.params) and len(skipped.history) == 3
    assert int(skipped.state) == 2 and np.isnan(skipped.history["loss"][1])


def test_parameters_that_are_not_finite_are_a_failure():
    class Dividing(eqx.Module):
        def init(self, params):
            return None

        def step(self, params, state, batch):
            return params / (params - 2), state, {"loss": jnp.sum(params)}

    with pytest.raises(
        pb.FitError, match="step 0: the parameters after it are not finite"
    ) as caught:
        pb.fit(Dividing(), jnp.asarray([2.0]), None, 3)
    assert np.array_equal(caught.value.fit.params, [2.0])


def test_a_failure_that_the_optimiser_reports_itself():
    class Stubborn(GradientDescent):
        def step(self, params, state, batch):
            return params, state + 1, {"loss": jnp.zeros(()), "failed": state == 2}

    opt = Stubborn(PROBLEM, 0.1)
    with pytest.raises(pb.FitError, match="step 2: the record of the optimiser reports a failure"):
        pb.fit(opt, START, (X, Y), 5)
    assert int(pb.fit(opt, START, (X, Y), 5, throw=False).state) == 5


def test_what_is_not_recorded_is_not_shown(monkeypatch, capsys):
    fit = pb.fit(GradientDescent(PROBLEM, 0.1), START, (X, Y), 12)
    first, last = fit.history["loss"][[0, -1]]
    assert repr(fit.history) == f"History(12 steps, loss {first:.3g} -> {last:.3g})"
    assert fit.history._repr_html_().count("<tr>") == 12 and "..." in fit.history._repr_html_()
    assert repr(fit).startswith("Fit(12 steps, loss") and "<table>" in fit._repr_html_()
    assert [len(axes.lines) for axes in fit.plot().axes] == [1, 0, 0, 0]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    pb.fit(GradientDescent(PROBLEM, 0.1), START, (X, Y), 2)
    shown = capsys.readouterr().err
    assert "loss" in shown and "rank" not in shown


def test_what_is_no_optimiser_raises():
    with pytest.raises(ValueError, match=r"init\(params\).*step\(params, state, batch\)"):
        pb.fit(object(), START, (X, Y), 1)

    class NoLoss(GradientDescent):
        def step(self, params, state, batch):
            return params, state, {"value": jnp.zeros(())}

    with pytest.raises(ValueError, match=r"NoLoss\.step.*`loss`"):
        pb.fit(NoLoss(PROBLEM, 0.1), START, (X, Y), 1)


def returning(result):
    class Own(GradientDescent):
        def step(self, params, state, batch):
            return result(params, state)

    return Own(PROBLEM, 0.1)


@pytest.mark.parametrize(
    "words, result",
    [
        (r"must return \(params, state, record\), got tuple of length 2", lambda p, s: (p, s)),
        (r"must return \(params, state, record\), got list", lambda p, s: [p, s, {"loss": p[0]}]),
        ("params is float64.3. before the step and float32", lambda p, s: (p.astype("f4"), s, 0)),
        ("state is int64.. before the step and nothing after", lambda p, s: (p, None, 0)),
        ("that has a `loss`.* got int", lambda p, s: (p, s, 0)),
        ("'loss' of the record has the shape", lambda p, s: (p, s, {"loss": p})),
        (
            "'parts' of the record holds 2 arrays",
            lambda p, s: (p, s, {"loss": p[0], "parts": {"a": p[0], "b": p[1]}}),
        ),
        (
            "'step' of the record must be the number of the step",
            lambda p, s: (p, s, {"loss": p[0], "step": s + 1}),
        ),
    ],
)
def test_a_step_that_breaks_the_contract_raises(words, result):
    with pytest.raises(ValueError, match=words):
        pb.fit(returning(result), START, (X, Y), 2)


def test_parameters_that_are_python_numbers_raise():
    class Plain:
        init = staticmethod(lambda params: None)
        step = staticmethod(
            lambda params, state, batch: (params - 1.0, state, {"loss": jnp.asarray(params)})
        )

    with pytest.raises(ValueError, match=r"params is 2\.0 before the step and 1\.0 after it"):
        pb.fit(Plain(), 2.0, None, 2)
