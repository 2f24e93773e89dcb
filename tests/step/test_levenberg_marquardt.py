"""Levenberg-Marquardt: its gain, its damping, the part of a step that is taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curved import X, Y, close, flat, half_square
from helpers import normal

import pullback as pb


def test_the_gain_of_a_quadratic_problem_is_one_and_damping_falls():
    linear = pb.Composite(lambda p, x: x @ p, half_square)
    opt = pb.NaturalGradientDescent(linear, step=pb.step.LevenbergMarquardt(damping=1e-2))
    params = normal(2, 2, seed=1)
    params, state, record = opt.step(params, opt.init(params), (X, Y))
    close(record.gain, 1.0)
    assert float(record.damping) == 1e-2
    close(state.rule.value, 1e-2 / 3)
    a = np.kron(np.asarray(X), np.eye(2)) / np.sqrt(3)
    r = np.asarray((X @ normal(2, 2, seed=1) - Y).ravel()) / np.sqrt(3)
    d = -np.linalg.solve(a.T @ a + 1e-2 * np.eye(4), a.T @ r)
    close(flat(params) - np.asarray(normal(2, 2, seed=1)).ravel(), d)


def test_a_part_of_the_step_of_levenberg_and_marquardt_and_a_least_damping():
    linear = pb.Composite(lambda p, x: x @ p, half_square)
    start = normal(2, 2, seed=1)

    def step(params, **words):
        opt = pb.NaturalGradientDescent(
            linear, step=pb.step.LevenbergMarquardt(damping=1e-2, **words)
        )
        return opt, *opt.step(params, opt.init(params), (X, Y))

    _, whole, _, _ = step(start)
    opt, half, state, record = step(
        start, rate=lambda count: jnp.where(count < 1, 0.5, 1.0), minimum=5e-3
    )
    close(half - start, (whole - start) / 2)
    # The prediction is for the part that is taken: still exact on a quadratic problem, so that the
    # damping falls, as far as it may.
    close(record.gain, 1.0)
    assert float(record.rate) == 0.5 and float(state.rule.value) == 5e-3
    # The second step is whole.
    there, state, record = opt.step(half, state, (X, Y))
    a = np.kron(np.asarray(X), np.eye(2)) / np.sqrt(3)
    r = np.asarray((X @ half - Y).ravel()) / np.sqrt(3)
    close(flat(there) - flat(half), -np.linalg.solve(a.T @ a + 5e-3 * np.eye(4), a.T @ r))
    assert float(record.rate) == 1.0 and int(state.rule.count) == 2


def test_levenberg_marquardt_rejects_until_it_gains():
    """z = sin(20θ): the undamped step overshoots by far."""
    problem = pb.Composite(lambda p: jnp.sin(20 * p), lambda z: jnp.sum((z - 0.9) ** 2) / 2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt(damping=0.0))
    params, losses = jnp.asarray([0.075]), []
    state = opt.init(params)
    step = jax.jit(opt.step)
    for _ in range(12):
        params, state, record = step(params, state)
        losses.append(float(record.loss))
        assert record.loss_after <= record.loss
    first = opt.step(jnp.asarray([0.075]), opt.init(params))[2]
    assert int(first.trials) > 1 and float(first.damping) > 0
    assert losses[-1] < 1e-20


@pytest.mark.filterwarnings("ignore:the last 20 steps were not taken")
def test_a_run_that_has_converged_starts_again_on_other_samples():
    """Below the rounding of the loss no damping is better than another: λ stays."""
    x = normal(8, 2, seed=1).astype(jnp.float32)
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    target = jnp.sin(7 * x[:, 0])
    done = pb.fit(opt, jnp.zeros(2, jnp.float32), (x, target), 200, until=(), progress=False)
    assert not done.history["accepted"][-20:].any() and float(done.state.rule.value) < 1
    other = target + x @ jnp.asarray([1.0, -2.0], jnp.float32)
    more = pb.fit(opt, done.params, (x, other), 60, state=done.state, until=(), progress=False)
    assert np.isclose(more.history["loss_after"][-1], done.history["loss_after"][-1], rtol=1e-4)
