"""The kernel from rows: lower blocks, and rows that are kept for products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance

import pullback as pb
from pullback import pde
from pullback._gram.kernel import kernel_of_rows
from pullback._gram.structured import find


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
