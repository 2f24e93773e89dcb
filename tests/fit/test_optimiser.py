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


def test_a_loss_that_is_not_finite_is_a_failure():
    opt = GradientDescent(PROBLEM, 0.1)
    bad = [(X, Y), (X, Y.at[0].set(jnp.nan)), (X, Y)]
    with pytest.raises(pb.FitError, match="step 1: the loss is nan"):
        pb.fit(opt, START, bad, 3)


def test_what_is_no_optimiser_raises():
    with pytest.raises(ValueError, match=r"init\(params\).*step\(params, state, batch\)"):
        pb.fit(object(), START, (X, Y), 1)

    class NoLoss(GradientDescent):
        def step(self, params, state, batch):
            return params, state, {"value": jnp.zeros(())}

    with pytest.raises(ValueError, match="NoLoss.step.*`loss`"):
        pb.fit(NoLoss(PROBLEM, 0.1), START, (X, Y), 1)
