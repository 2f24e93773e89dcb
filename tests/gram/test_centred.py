"""K and G of rows without their mean, from factors, against extended precision by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance

import pullback as pb
from pullback._gram.centred import centred_kernel, centred_product
from pullback._gram.structured import find, metric_gram, structured_factors

WIDE = np.longdouble
RNG = np.random.default_rng(0)
COUNT = 24
WEIGHTS = RNG.uniform(0.2, 1.0, COUNT)
WEIGHTS[5] = 0.0


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def layers(*sizes):
    pairs = itertools.pairwise(sizes)
    return [(RNG.normal(size=(a, b)) / np.sqrt(a), RNG.normal(size=b) / 10) for a, b in pairs]


PARAMS = {q: layers(4, 12, 10, q) for q in (1, 2)}


def network(p, x):
    for w, b in p[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ p[-1][0] + p[-1][1]


def jacobian(p, x):
    """The rows of the network, (N, q, P), by hand."""
    p = [(w.astype(WIDE), b.astype(WIDE)) for w, b in p]
    seen = [x.astype(WIDE)]
    for w, b in p[:-1]:
        seen.append(np.tanh(seen[-1] @ w + b))
    q = p[-1][1].size
    d = np.broadcast_to(np.eye(q, dtype=WIDE), (x.shape[0], q, q))
    rows = []
    for layer in reversed(range(len(p))):
        weights = seen[layer][:, None, :, None] * d[:, :, None, :]
        rows.append(np.concatenate([weights.reshape(x.shape[0], q, -1), d], axis=2))
        d = (d @ p[layer][0].T) * (1 - seen[layer] ** 2)[:, None, :]
    return np.concatenate(rows[::-1], axis=2)


def whitened(p, x):
    """A, and the norm of the mean row in it."""
    rows, weights = jacobian(p, x), WEIGHTS.astype(WIDE)
    mean = np.tensordot(weights / weights.sum(), rows, 1)
    a = np.sqrt(weights)[:, None, None] * (rows - mean[None])
    return a.reshape(-1, rows.shape[2]), float(np.sqrt(weights.sum() * np.sum(mean**2)))


def samples(spread):
    rng = np.random.default_rng(1)
    return rng.normal(size=4) + spread * rng.normal(size=(COUNT, 4))


def problem(q, model=network):
    model = model if q > 1 else lambda p, x, model=model: model(p, x)[:, 0]
    measure = pb.Weights(jnp.asarray(WEIGHTS))
    return pb.Composite(model, lambda z: z, pb.metric.Scores(), measure)


@jax.jit
def grams(p, x, y):
    q = p[-1][1].size
    rows = pb.pullback(problem(q), p, (x,)).whitened
    found, single = find(rows), find(rows, single=True)
    factors = structured_factors(rows, found)
    kernel = centred_kernel(factors, rows.root.mean, rows.scale)
    image = centred_product(factors, rows.root.mean, rows.scale, y)
    metric = metric_gram(rows, single)
    place = np.argsort(single.order)
    full = jnp.tril(metric.matrix) + jnp.tril(metric.matrix, -1).T
    return kernel, full[place][:, place], image, rows.noise, metric.lost


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6, 1e-8])
def test_the_mean_is_taken_off_before_anything_is_squared(spread, q):
    """The error is that of rows that are formed and centred: eps times the mean row."""
    p, x = PARAMS[q], samples(spread)
    a, mean = whitened(p, x)
    y = np.random.default_rng(2).normal(size=a.shape[0])
    found = grams(p, jnp.asarray(x), jnp.asarray(y))
    kernel, metric, image, noise, lost = jax.tree.map(np.asarray, found)
    lower = np.tril(kernel.matrix)
    full = lower + np.tril(lower, -1).T
    size = np.linalg.norm(a.astype(float))
    allowed = 4 * np.finfo(float).eps * (mean + size)
    assert np.linalg.norm((full - a @ a.T).astype(float)) < allowed * size
    assert np.linalg.norm((metric - a.T @ a).astype(float)) < allowed * size
    error = np.linalg.norm((image - a @ (a.T @ y)).astype(float))
    assert error < 10 * allowed * size * np.linalg.norm(y)
    # What is taken off afterwards is of second order in the spread.
    assert float(kernel.lost) < 2 * min(spread, 1.0) ** 2 * size**2
    assert float(lost) < 2 * min(spread, 1.0) ** 2 * size**2 + allowed**2
    np.testing.assert_allclose(noise, max(a.shape) * np.finfo(float).eps * mean, rtol=1e-6)


def test_rows_that_no_factor_shows_alike_are_rounding_and_said_to_be():
    """x ⊗ d of ±x and an even function: equal rows, from factors whose means are zero."""
    even = lambda p, x: jnp.sum(jnp.tanh(x @ p["w"]) ** 2, axis=1)
    signs = np.where(np.arange(COUNT) % 2 == 0, 1.0, -1.0)
    x = jnp.asarray(signs[:, None] * RNG.normal(size=(1, 8)))
    scores = pb.Composite(even, lambda z, y: z * y, pb.metric.Scores())
    y = jnp.asarray(RNG.normal(size=COUNT))
    y = y - jnp.mean(y)
    p = {"w": jnp.asarray(RNG.normal(size=(8, 6)))}
    for solver in (pb.solver.Dual(), pb.solver.Primal()):
        ng = pb.natural_gradient(scores, p, (x, y), solver=solver)
        assert int(ng.stats.rank) == 0 and not np.any(ng.vector["w"])
    # One sample that is a little off is one direction, far below the mean that is taken off.
    moved = x.at[0, 0].add(1e-5)
    a = np.asarray(
        jax.vmap(lambda x: jax.grad(lambda w: even({"w": w}, x[None])[0])(p["w"]))(moved)
    )
    a = (a - a.mean(0)).reshape(COUNT, -1) / np.sqrt(COUNT)
    s = np.linalg.svd(a, compute_uv=False)
    for solver in (pb.solver.Dual(), pb.solver.Primal()):
        ng = pb.natural_gradient(scores, p, (moved, y), solver=solver, throw=False)
        assert float(ng.stats.cutoff) > 1e-3 * s[0], "that of the mean, and not of what is left"
        assert int(ng.stats.rank) == np.sum(s > float(ng.stats.cutoff))


def looked_up(p, x):
    """An embedding, a convolution at few positions, and a leaf that enters no product."""
    h = p["table"][x].reshape(x.shape[0], -1)
    h = jnp.tanh(h @ p["w"] + p["b"]) * jnp.exp(p["free"])
    seen = jnp.tanh(jnp.stack([h[:, :4] @ p["tied"], h[:, 4:] @ p["tied"]], axis=1))
    return jnp.sum(seen, axis=1)


LOOKED_UP = {
    "table": jnp.asarray(RNG.normal(size=(6, 3))),
    "w": jnp.asarray(RNG.normal(size=(6, 8))),
    "b": jnp.asarray(RNG.normal(size=8)),
    "free": jnp.asarray(RNG.normal(size=8) / 5),
    "tied": jnp.asarray(RNG.normal(size=(4, 2))),
}


@pytest.mark.parametrize("inverse", [pb.Tikhonov(1e-3), pb.MoorePenrose()], ids=repr)
@pytest.mark.parametrize("q", [1, 2])
def test_look_ups_positions_and_free_leaves(q, inverse):
    x = jnp.asarray(RNG.integers(0, 6, size=(COUNT, 2)))
    y = jnp.asarray(RNG.normal(size=(COUNT, 2)))
    scores = pb.Composite(
        lambda p, x: looked_up(p, x)[:, :q],
        lambda z, y: jnp.sum(z * y[:, :q], axis=1),
        pb.metric.Scores(),
        pb.Weights(jnp.asarray(WEIGHTS)),
    )
    assert find(pb.pullback(scores, LOOKED_UP, (x,)).whitened).factors
    expected = pb.natural_gradient(
        scores, LOOKED_UP, (x, y), inverse=inverse, solver=pb.solver.SVD()
    )
    for solver in (pb.solver.Dual(), pb.solver.Primal()):
        found = pb.natural_gradient(scores, LOOKED_UP, (x, y), inverse=inverse, solver=solver)
        assert distance(found.vector, expected.vector) < 1e-9


def test_a_model_that_mixes_samples():
    """The statistics of a batch enter the rows before the mean is taken off."""

    def normalised(p, x):
        h = x @ p["w"]
        h = (h - jnp.mean(h, axis=0)) / jnp.sqrt(1e-2 + jnp.var(h, axis=0))
        return jnp.tanh(h) @ p["v"]

    p = {"w": jnp.asarray(RNG.normal(size=(4, 6))), "v": jnp.asarray(RNG.normal(size=6))}
    x, y = jnp.asarray(samples(1.0)), jnp.asarray(RNG.normal(size=COUNT))
    scores = pb.Composite(normalised, lambda z, y: z * y, pb.metric.Scores(), coupled=True)
    rows = jax.jacobian(lambda p: normalised(p, x))(p)
    rows = np.concatenate([np.asarray(rows[k]).reshape(COUNT, -1) for k in ("v", "w")], axis=1)
    a = (rows - rows.mean(0)) / np.sqrt(COUNT)
    g = rows.T @ np.asarray(y - jnp.mean(y)) / COUNT
    expected = np.linalg.solve(a.T @ a + 1e-2 * np.eye(a.shape[1]), g)
    for solver in (pb.solver.Dual(), pb.solver.Primal()):
        found = pb.natural_gradient(
            scores, p, (x, y - jnp.mean(y)), inverse=pb.Tikhonov(1e-2), solver=solver
        )
        assert distance(found.vector, expected) < 1e-10
