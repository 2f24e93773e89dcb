"""The first steps of `fit` are compiled with less effort, as an optimiser declares."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._fit import run
from pullback._natural import effort

X, Y, START = normal(6, 3), normal(6, seed=1), normal(3, seed=2)


def problem():
    return pb.Composite(lambda p, x: jnp.tanh(x @ p), lambda z, y: (z - y) ** 2 / 2)


@pytest.fixture
def made(monkeypatch):
    """The effort of every chunk, and its steps."""
    chunks, real = [], run.run_chunk

    def seen(level, task, *arrays):
        chunk = real(level, task, *arrays)
        begun = int(task.start)
        chunks.append((level, begun + int(task.first), begun + int(chunk.made)))
        return chunk

    monkeypatch.setattr(run, "run_chunk", seen)
    return chunks


def test_the_effort_changes_at_a_step_and_resumed_runs_have_the_same_bits(
    made, monkeypatch, tmp_path
):
    monkeypatch.setattr(effort, "PATIENCE", 2 * X.size)  # 3 parameters, 6 samples: until step 3
    opt = pb.NaturalGradientDescent(problem(), step=0.5)
    whole = pb.fit(opt, START, (X, Y), 9)
    assert [begun for _, begun, _ in made[1:]] == [end for *_, end in made[:-1]]
    assert all((level, end <= 3) in {(0, True), (None, False)} for level, _, end in made)
    for steps in (2, 4, 9):
        resumed = pb.fit(opt, START, (X, Y), steps, checkpoint=tmp_path)
    assert np.array_equal(resumed.params, whole.params)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])
    params, state = START, opt.init(START)
    for _ in range(9):
        params, state, _ = opt.step(params, state, (X, Y))
    np.testing.assert_allclose(whole.params, params, rtol=1e-12)


@pytest.mark.parametrize("batches", ["same", "drawn", "listed"])
def test_what_is_declared_counts_whatever_the_batches_are(made, batches):
    given = {
        "same": (X, Y),
        "drawn": lambda key, params: (jax.random.normal(key, (6, 3)), Y),
        "listed": [(X, Y)] * 4,
    }
    pb.fit(pb.NaturalGradientDescent(problem(), step=0.5), START, given[batches], 4)
    assert {level for level, *_ in made} == {0}


class Descent(eqx.Module):
    """Gradient descent; how many steps are compiled with little effort."""

    def init(self, params):
        return None

    def step(self, params, state, batch):
        loss, gradient = jax.value_and_grad(
            lambda p: jnp.mean((batch.inputs @ p - batch.targets) ** 2)
        )(params)
        return params - 0.1 * gradient, state, {"loss": loss}

    def efforts(self, params, batch):
        assert params.shape == (3,) and batch.inputs.shape == (6, 3)
        return 1, 2


class Other(Descent):
    """A step of its own."""

    def step(self, params, state, batch):
        return super().step(2 * params, state, batch)


def test_optimisers_of_ones_own(made):
    pb.fit(Descent(), START, (X, Y), 4)
    assert all(level == (1 if end <= 2 else None) for level, _, end in made)
    made.clear()
    pb.fit(Other(), START, (X, Y), 4)
    assert {level for level, *_ in made} == {None}


def test_a_large_problem_takes_all_from_the_start(made, monkeypatch):
    monkeypatch.setattr(effort, "SMALL", X.size - 1)
    pb.fit(pb.NaturalGradientDescent(problem(), step=0.5), START, (X, Y), 2)
    assert {level for level, *_ in made} == {None}
