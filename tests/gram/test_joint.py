"""The kernel across terms, from the factors of their layers, against the dense rows."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._gram.across import as_factors, joint_block, joint_kernel, joint_product
from pullback._gram.joint import find, joint_factors

PARAMS = {
    "w": normal(6, 20),
    "b": normal(20, seed=1),
    "u": normal(20, 20, seed=2) / 4,
    "c": normal(20, seed=3),
    "v": normal(20, 3, seed=4),
    "k": normal(seed=5),
    "e": normal(5, 6, seed=6),
}


def network(p, x):
    h = jnp.tanh(x @ p["w"] + p["b"][None])
    return jnp.tanh(h @ p["u"] + p["c"][None]) @ p["v"]


def without_shift(p, x):
    return jnp.tanh(jnp.tanh(x @ p["w"]) @ p["u"]) @ p["v"] * p["k"]


def twice(p, x):
    return (network(p, x) + network(p, x**2))[:, :1]


def first_layer(p, x):
    return jnp.sum(jnp.tanh(x @ p["w"] + p["b"][None]), axis=1)


def words(p, x):
    return network(p, p["e"][x])


X, CODES = normal(9, 6, seed=7), jnp.asarray([0, 3, 3, 1])
INPUTS = {network: X, without_shift: X[:4], twice: X[2:7], first_layer: X[:3], words: CODES}
PAIRS = [
    (network, network),
    (network, without_shift),
    (network, twice),
    (first_layer, network),
    (words, network, twice),
    (words, words),
]


def whitened(*models):
    terms = [pb.Composite(model) for model in models]
    weights = tuple(0.5 + k for k in range(len(models)))
    batch = tuple((INPUTS[model],) for model in models)
    return pb.pullback(pb.Terms(terms, weights=weights), PARAMS, batch).whitened


@pytest.mark.parametrize("models", PAIRS, ids=lambda x: " ".join(f.__name__ for f in x))
def test_kernel_and_product_are_those_of_the_rows(models):
    rows = whitened(*models)
    plan = find(rows)
    assert plan is not None
    assert plan.groups
    assert sorted(plan.order) == list(range(rows.shape[1]))
    factors = joint_factors(rows, plan, rows.scale)
    a = np.asarray(rows.scale[:, None] * rows.unit_rows())
    k = np.asarray(joint_kernel(factors))
    assert np.linalg.norm(np.tril(k) - np.tril(a @ a.T)) < 1e-13 * np.linalg.norm(a @ a.T)
    y = normal(rows.shape[0])
    expected = a @ (a.T @ np.asarray(y))
    assert np.linalg.norm(joint_product(factors, y) - expected) < 1e-13 * np.linalg.norm(expected)


def test_a_leaf_is_kept_in_one_way():
    plan = find(whitened(network, without_shift))
    # A shift that one term adds and the other does not is a leaf of its own.
    assert sorted(group.order.shape[0] for group in plan.groups) == [6, 20, 20]
    plan = find(whitened(network, network))
    assert sorted(group.order.shape[0] for group in plan.groups) == [7, 20, 21]


def test_many_tiles_are_one_matrix(monkeypatch):
    monkeypatch.setattr("pullback._gram.across.TILE", 256)
    rows = whitened(network, without_shift)
    factors = joint_factors(rows, find(rows))
    a = np.asarray(rows.unit_rows())
    expected = np.tril(a @ a.T)
    assert np.linalg.norm(np.tril(joint_kernel(factors)) - expected) < 1e-13 * np.linalg.norm(
        expected
    )


def test_the_rows_are_not_formed(monkeypatch):
    from pullback._rows.rows import Rows

    problem = pb.Terms((pb.Composite(network, square), pb.Composite(twice, square)))
    monkeypatch.setattr(Rows, "unit_rows", None)
    batch = ((X, normal(9, 3)), (X[2:7], normal(5, 1)))
    ng = pb.natural_gradient(
        problem, PARAMS, batch, inverse=pb.Tikhonov(0.1), solver=pb.solver.Dual()
    )
    assert float(ng.stats.residual) < 1e-12


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def test_a_block_between_devices_may_leave_out_what_a_panel_does_not_take():
    # Tiles of 181 rows: some are left out, and none that is needed.
    one, other = normal(700, 5, seed=1), normal(700, 5, seed=2)
    found = np.asarray(joint_block(as_factors(one), as_factors(other), ahead=40))
    whole = np.asarray(one) @ np.asarray(other).T
    needed = np.arange(700)[None, :] < np.arange(700)[:, None] + 40
    assert np.allclose(found[needed], whole[needed], rtol=1e-13, atol=1e-13)
    assert np.sum(found == 0) > 80_000
