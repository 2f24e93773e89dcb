"""Small problems that are called directly compile with less effort, others with all of it."""

import jax
import jax.numpy as jnp
from helpers import normal

import pullback as pb
from pullback._natural.effort import FULL, PATIENCE, SMALL, effort
from pullback._problem.batch import as_batch

X, Y = normal(6, 3), normal(6, seed=1)


def dense(p, x):
    return jnp.tanh(x @ p)


def looped(p, x):
    return jax.lax.fori_loop(0, 2, lambda _, z: jnp.tanh(z), x @ p)


def convolved(p, x):
    return jnp.sum(jnp.stack([jnp.convolve(row, p, mode="same") for row in x]), axis=1)


def chosen(model, count=6, step=0):
    x = jnp.ones((count, 3))
    return effort(pb.Composite(model), normal(3, seed=2), as_batch((x,))).at(step)


def test_a_loop_or_a_convolution_takes_more():
    assert chosen(dense) == 0
    assert chosen(looped) == chosen(convolved) == 1


def test_large_problems_and_long_loops_take_all():
    assert chosen(dense, SMALL // 3) == 0 and chosen(dense, SMALL // 3 + 1) is None
    assert chosen(dense, step=PATIENCE // 18) == 0
    assert chosen(dense, step=PATIENCE // 18 + 1) is None


def test_a_model_without_a_hash_and_one_without_data():
    class Network(dict):
        def __call__(self, p, x):
            return x @ p

    assert chosen(Network()) == 1
    assert effort(pb.Composite(lambda p: p), normal(3), as_batch(None)) == FULL


def test_the_same_numbers_with_every_effort(monkeypatch):
    problem = pb.Composite(dense, lambda z, y: (z - y) ** 2 / 2)
    opt = pb.NaturalGradientDescent(problem, step=0.5)
    state = opt.init(X[0])
    moved = opt.step(X[0], state, (X, Y))[0]
    monkeypatch.setattr("pullback._natural.effort.PATIENCE", -1)
    other = opt.step(X[0], state, (X, Y))[0]
    assert jnp.allclose(moved, other, rtol=1e-13, atol=0)
