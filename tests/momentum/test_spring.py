"""Momenta against dense formulas written with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from curved import close, dense, half_square, near
from helpers import normal

import pullback as pb


def test_spring_is_the_smallest_correction_of_the_last_step():
    a, r, _ = dense()
    previous = np.linspace(-1, 1, a.shape[1])
    pinv = np.linalg.pinv(a)

    def direction(momentum, inverse=None):
        found = jax.jit(lambda p: momentum.direction(near(pb.solver.SVD(), inverse), p))
        return found(jnp.asarray(previous))

    expected = 0.7 * previous - pinv @ (r + a @ (0.7 * previous))
    close(direction(pb.Spring(0.7)), expected)
    # What the batch sees is the natural gradient step; what it does not see is the last step.
    close(a @ expected, -a @ pinv @ r)
    kernel = np.eye(a.shape[1]) - pinv @ a
    close(kernel @ expected, 0.7 * kernel @ previous)
    m = a.T @ a + 0.1 * np.eye(a.shape[1])
    # argmin ½|Ad + r|² + λ/2 |d - μp|²
    by_hand = np.linalg.solve(m, 0.1 * 0.7 * previous - a.T @ r)
    close(direction(pb.Spring(0.7), pb.Tikhonov(0.1)), by_hand)
    close(direction(pb.HeavyBall(0.7)), 0.7 * previous - pinv @ r)
    close(direction(pb.Spring(0.7, max_norm=0.1)), 0.1 * expected / np.linalg.norm(expected))


def test_spring_solves_what_no_minibatch_determines():
    """A consistent linear system, two equations at a time: with the minimum-norm correction
    (Kaczmarz with memory) it is solved.
    """
    solution, x = normal(6, 1, seed=1), normal(40, 6, seed=2)
    problem = pb.Composite(lambda p, x: x @ p, half_square)
    opt = pb.NaturalGradientDescent(problem, momentum=pb.Spring(0.5))

    def body(carry, index):
        batch = jax.lax.dynamic_slice_in_dim(x, 2 * index, 2)
        params, state, record = opt.step(*carry, (batch, batch @ solution))
        return (params, state), record

    start = jnp.zeros((6, 1))
    (params, _), records = jax.lax.scan(body, (start, opt.init(start)), jnp.tile(jnp.arange(20), 5))
    assert np.abs(params - solution).max() < 2e-3 * np.abs(solution).max()
    assert records.loss.shape == (100,) and bool(jnp.all(records.accepted))
