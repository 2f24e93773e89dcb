"""Eigenvectors of K and G, where cond(A)² is past rounding."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance

import pullback as pb


@pytest.mark.parametrize(
    ("solver", "shape"), [(pb.solver.Dual(), (30, 50)), (pb.solver.Primal(), (50, 30))], ids=str
)
def test_what_is_outside_the_range_does_not_come_in_through_the_eigenvectors(solver, shape):
    """Rank 20, cond(A) = 1e5: eigenvectors of K and G are off by eps cond², 1e-6. Targets that no
    parameters reach, and a parameter covector that no targets give.
    """
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((size, 20)))[0] for size in shape)
    s, y, g = np.logspace(0, -5, 20), rng.standard_normal(shape[0]), rng.standard_normal(shape[1])
    x = shape[0] ** 0.5 * (u * s) @ v.T
    problem, start, batch = (
        pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2),
        jnp.zeros(shape[1]),
        tuple(map(jnp.asarray, (x, y))),
    )
    ng = pb.natural_gradient(problem, start, batch, solver=solver)
    assert (
        ng.stats.rank == 20 and distance(ng.vector, -(v / s) @ (u.T @ y) / shape[0] ** 0.5) < 1e-10
    )
    factors = pb.pullback(problem, start, batch).factorise(pb.MoorePenrose(), solver)
    assert distance(factors.solve_covector(jnp.asarray(g)), (v / s**2) @ (v.T @ g)) < 1e-9
