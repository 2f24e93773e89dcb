"""What is built on a problem gives on two terms what it gives on the one stacked problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb

PARAMS = {"w": normal(1, 5), "b": normal(5, seed=1), "v": normal(5, 1, seed=2)}
X, XB, YB = normal(4, 1, seed=3), normal(2, 1, seed=4), normal(2, 1, seed=5)


def network(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"]


def residual(p, x):
    """A derivative plus a force."""
    return jax.jvp(lambda x: network(p, x), (x,), (jnp.ones_like(x),))[1] + jnp.sin(x)


def square(z, *y):
    return jnp.sum((z - y[0]) ** 2 if y else z**2, axis=1) / 2


def either(p, inputs):
    x, inside = inputs
    return jnp.where(inside[:, None], residual(p, x), network(p, x))


TERMS = pb.Terms(
    inside=pb.Composite(residual, square),
    boundary=pb.Composite(network, square, measure=pb.Sum()),
    weights={"inside": 0.7, "boundary": 3.0},
)
TWO = {"inside": (X,), "boundary": (XB, YB)}
MEASURE = pb.Weights(jnp.asarray([0.7 / 4] * 4 + [3.0] * 2))
STACKED = pb.Composite(either, square, measure=MEASURE)
ONE = (
    (jnp.concatenate([X, XB]), jnp.arange(6) < 4),
    jnp.concatenate([jnp.zeros((4, 1)), YB]),
)


def descend(**words):
    """Three steps of an optimiser: where they lead, and what they record."""

    def run(problem, batch):
        opt = pb.NaturalGradientDescent(problem, **words)
        params, state, seen = PARAMS, opt.init(PARAMS), []
        for _ in range(3):
            params, state, record = opt.step(params, state, batch)
            seen += [record.loss, record.loss_after, record.metric_norm]
        return params, seen

    return run


def follow(problem, batch):
    sol = pb.flow(problem, PARAMS, batch, t1=0.5, rtol=1e-9, atol=1e-12)
    return sol.params


def look(problem, batch):
    """What does not depend on the basis of a kernel."""
    page = pb.examine(problem, PARAMS, batch)
    return page.rank, page.seen_rank, page.spectrum, page.unseen @ page.unseen.T


def invariance(problem, batch):
    """Of a damped inverse: the undamped one reaches every target here, whatever the weights are."""
    f, damped = pb.Units(60.0), pb.Tikhonov(0.1)
    found = pb.check_invariance(
        problem, PARAMS, batch, reparametrisation=f, method=damped, counts=()
    )
    return found.model, found.parameters, found.discrepancies


READERS = {
    "flow": follow,
    "examine": look,
    "invariance": invariance,
    "GridSearch": descend(step=pb.step.GridSearch()),
    "DampingSearch": descend(step=pb.step.DampingSearch()),
    "TrustRegion": descend(step=pb.step.TrustRegion(radius=0.5)),
    "HeavyBall": descend(step=pb.step.Fixed(0.1), momentum=pb.HeavyBall(0.8)),
    "TruncatedRank": descend(step=pb.step.Fixed(0.1), inverse=pb.TruncatedRank(3)),
}


@pytest.mark.parametrize("name", READERS)
def test_terms_are_the_stacked_problem(name):
    found, expected = READERS[name](TERMS, TWO), READERS[name](STACKED, ONE)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and np.all(np.isfinite(a))
        assert np.linalg.norm(a - b) <= 1e-10 * (1 + np.linalg.norm(b)), name
