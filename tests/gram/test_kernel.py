"""The kernel from rows: lower blocks, and rows that are kept for products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance

import pullback as pb
from pullback import pde
from pullback._gram import joint
from pullback._gram.apply import products
from pullback._gram.factors import Factors
from pullback._gram.kernel import kernel, kernel_of_rows
from pullback._gram.structured import find, structured_factors


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("inverse", [pb.MoorePenrose(), pb.Tikhonov(1e-3)], ids=str)
def test_rows_of_many_positions_are_kept_for_products(inverse):
    """A Laplacian in four dimensions has nine positions per weight: all leaves are rows, in the
    order of the walk and not of the parameters.
    """
    rng = np.random.default_rng(5)
    params = [
        jnp.asarray(rng.standard_normal(shape)) for shape in ((7, 4), (7,), (5, 7), (5,), (1, 5))
    ]

    def one(p, x):
        u = lambda x: (p[4] @ jnp.tanh(p[2] @ jnp.tanh(p[0] @ x + p[1]) + p[3]))[0]
        return pde.laplacian(u, x)

    x = jnp.asarray(rng.standard_normal((12, 4))).at[0].set(jnp.nan)
    measure = pb.Weights(jnp.asarray(np.linspace(0.0, 2.0, 12)))
    problem = pb.Composite(
        lambda p, x: jax.vmap(one, (None, 0))(p, x), lambda r: r**2 / 2, measure=measure
    )
    metric = pb.pullback(problem, params, (x,))
    rows = metric.whitened
    plan = find(rows)
    assert plan is not None and not plan.factors
    assert not np.array_equal(plan.order, np.arange(metric.size))
    factorised = metric.factorise(inverse, pb.solver.Dual())
    kept, rows = factorised.rows, rows.divided_by(factorised.shift)
    assert kept.dense is not None and kept.order is not None
    assert distance(kept.dense, rows.unit_rows()[:, kept.order]) < 1e-13
    v, y = jnp.sin(jnp.arange(metric.size)), jnp.cos(jnp.arange(metric.rows))
    assert distance(kept.mv(v), rows.mv(v)) < 1e-13
    assert distance(kept.rmv(y), rows.rmv(y)) < 1e-13
    found, expected = (
        pb.natural_gradient(problem, params, (x,), inverse=inverse, solver=s)
        for s in (pb.solver.Dual(), pb.solver.SVD())
    )
    assert distance(found.vector, expected.vector) < 1e-9


@pytest.mark.parametrize("m", [1, 100, 300])
def test_the_kernel_of_rows_is_made_of_lower_blocks(m):
    """Not by a natural gradient, whose refinement forgives a kernel that is a little off."""
    rows = np.random.default_rng(m).standard_normal((m, 7))
    found = np.asarray(kernel_of_rows(jnp.asarray(rows)))
    assert distance(np.tril(found), np.tril(rows @ rows.T)) < 1e-15
    assert m < 300 or found[0, -1] == 0, "nothing is computed above the diagonal blocks"


def pinn(width=9, d=3, n=13):
    """Rows of a Laplacian plus a value, with a weight of zero and an absent sample."""
    rng = np.random.default_rng(7)
    shapes = ((d, width), (width,), (width, width), (width,), (width, 2), (2,))
    params = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]

    def u(p, x):
        h = jnp.tanh(jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3])
        return jnp.sum(jnp.sin(h @ p[4] + p[5]))

    def one(p, x):
        return pde.laplacian(lambda y: u(p, y), x) + u(p, x)

    x = jnp.asarray(rng.standard_normal((n, d))).at[0].set(jnp.nan)
    measure = pb.Weights(jnp.asarray(np.linspace(0.0, 2.0, n)))
    problem = pb.Composite(
        lambda p, x: jax.vmap(one, (None, 0))(p, x), lambda r: r**2 / 2, measure=measure
    )
    return problem, params, (x,)


@pytest.mark.parametrize("columns", [1, 300, 2**23])
def test_rows_of_large_leaves_are_formed_some_columns_at_a_time(monkeypatch, columns):
    """From one input at a time to all, where the last ones overlap those before."""
    monkeypatch.setattr("pullback._gram.factors.LARGE", 100)
    monkeypatch.setattr("pullback._gram.kernel.COLUMNS", columns * 9 * 13 * 8 // 100 + 1)
    monkeypatch.setattr("pullback._gram.kernel.row_blocks", lambda n: 3)
    problem, params, batch = pinn()
    rows = pb.pullback(problem, params, batch).whitened
    plan = find(rows)
    assert plan is not None and any(group.formed for group in plan.factors)
    dense = np.asarray(rows.scale[:, None] * rows.unit_rows())
    found = kernel(structured_factors(rows, plan, rows.scale))
    assert distance(np.tril(found), np.tril(dense @ dense.T)) < 1e-14


@pytest.mark.parametrize("large", [100, 2**20])
def test_products_from_factors_are_those_of_the_model(monkeypatch, large):
    monkeypatch.setattr("pullback._gram.factors.LARGE", large)
    problem, params, batch = pinn(64)
    rows = pb.pullback(problem, params, batch).whitened
    plan = joint.find(rows)
    assert plan is not None and plan.groups
    apply = products(joint.joint_factors(rows, plan, rows.scale), plan)
    assert apply is not None
    dense = np.asarray(rows.scale[:, None] * rows.unit_rows())
    v, y = jnp.sin(jnp.arange(dense.shape[1])), jnp.cos(jnp.arange(dense.shape[0]))
    assert distance(apply.mv(v), dense @ v) < 1e-14
    assert distance(apply.rmv(y), dense.T @ y) < 1e-14
    found, expected = (
        pb.natural_gradient(problem, params, batch, inverse=pb.Tikhonov(1e-3), solver=solver)
        for solver in (pb.solver.Dual(), pb.solver.SVD())
    )
    assert distance(found.vector, expected.vector) < 1e-10


@pytest.mark.parametrize("tile", [8 * 5**2, 8 * 11**2, 2**18])
def test_leaves_of_different_positions_have_tiles_of_their_own(monkeypatch, tile):
    """What two tiles share is added once."""
    monkeypatch.setattr("pullback._gram.kernel.TILE", tile)
    rng = np.random.default_rng(3)
    shapes = [(13, 1, 4), (13, 3, 5), (13, 6, 2)]
    x = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
    d = [jnp.asarray(rng.standard_normal((13, 2, t, 3))) for _, t, _ in shapes]
    rows = jnp.asarray(rng.standard_normal((13, 2, 7)))
    dense = [np.einsum("nti,nqto->nqio", a, b).reshape(26, -1) for a, b in zip(x, d, strict=True)]
    whole = np.concatenate([*dense, np.asarray(rows).reshape(26, -1)], axis=1)
    found = kernel(Factors(tuple(x), tuple(d), rows, (False,) * 3))
    assert distance(np.tril(found), np.tril(whole @ whole.T)) < 1e-14
