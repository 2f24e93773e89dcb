"""Outputs (N, 1) and targets (N,) that broadcast to pairs of samples are refused by name."""

import jax
import jax.numpy as jnp
import optax
import pytest

import pullback as pb

X = jnp.arange(10.0).reshape(5, 2) / 7
Y = jnp.sin(jnp.arange(5.0))
W = jnp.asarray([[0.3], [-0.2]])

column = lambda p, x: x @ p
row = lambda p, x: (x @ p)[:, 0]


@pytest.fixture(autouse=True)
def promotion():
    """As a user has it: ranks are promoted without a word."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize(
    ("model", "y", "cure"), [(column, Y, "[:, None]"), (row, Y[:, None], "[:, 0]")]
)
@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: jnp.mean((z - y) ** 2),
        lambda z, y: jnp.mean((z - y) ** 2, 1),
        jax.jit(lambda z, y: jnp.sum(optax.sigmoid_binary_cross_entropy(z, y), axis=-1)),
    ],
)
def test_pairs_are_refused_with_the_cure(model, y, cure, loss):
    problem = pb.Composite(model, loss)
    words = rf"broadcasts outputs of shape .* and targets of shape .*\(5, 5\).*targets\{cure}"
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(problem, W, (X, y))
    with pytest.raises(ValueError, match=words):
        pb.fit(pb.NaturalGradientDescent(problem), W, (X, y), 2)


@pytest.mark.parametrize(
    ("model", "y", "loss"),
    [
        (column, Y, lambda z, y: (z[:, 0] - y) ** 2),
        (column, Y, lambda z, y: jnp.mean((z.ravel() - y) ** 2)),
        (column, Y, jax.vmap(lambda z, y: (z[0] - y) ** 2)),
        (column, Y, lambda z, y: z[:, 0] ** 2),
        (column, Y, lambda z, y: jnp.arange(5.0) * (z[:, 0] - y) ** 2),
        (column, Y[:, None], lambda z, y: jnp.mean((z - y) ** 2, 1)),
        (row, Y, lambda z, y: (z - y) ** 2),
        # An output for each target: (5, 5) is meant.
        (lambda p, x: jnp.tanh(x @ p @ jnp.ones((1, 5))), jnp.eye(5), lambda z, y: (z - y)[:, 1]),
    ],
)
def test_what_is_meant_passes(model, y, loss):
    got = pb.natural_gradient(pb.Composite(model, loss), W, (X, y))
    assert bool(jnp.all(jnp.isfinite(got.vector)))


def test_one_sample_broadcasts_with_itself_only():
    problem = pb.Composite(column, lambda z, y: jnp.mean((z - y) ** 2, 1))
    got = pb.natural_gradient(problem, W, (X[:1], Y[:1]))
    assert got.value == pytest.approx(float((X[0] @ W[:, 0] - Y[0]) ** 2))
