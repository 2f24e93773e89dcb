"""What `Dual` and `Primal` share: eigenvectors of K and G, and Cholesky where they are damped."""

import jax.numpy as jnp
import numpy as np
import pytest
from exact import conditioned, dense, exact, linear, vector
from helpers import distance

import pullback as pb
from pullback.inverse import Dampable

SHAPES = [(6, 10), (10, 6)]
BOTH = [pb.solver.Dual(), pb.solver.Primal()]


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


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("solver", BOTH, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_decomposition_serves_every_damping(shape, solver):
    a, r, g = conditioned(*shape, 100.0), vector(shape[0]), vector(shape[1])
    for inverse in (pb.MoorePenrose(), pb.TruncatedRank(3)):
        factors = linear(a).factorise(Dampable(inverse), solver)
        for damping in (0.0, 1e-6, 0.03, 10.0):
            damped, (lifted, covector) = factors.damped(damping), dense(a, inverse, damping)
            assert distance(damped.solve_lifted(jnp.asarray(r)), lifted @ r) < 1e-9, damping
            assert distance(damped.solve_covector(jnp.asarray(g)), covector @ g) < 1e-8, damping


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("solver", BOTH, ids=str)
@pytest.mark.parametrize("damping", [1e-3, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_damped_by_cholesky(shape, damping, solver):
    a, r, g = conditioned(*shape, 100.0), vector(shape[0]), vector(shape[1])
    factors = linear(a).factorise(pb.Tikhonov(damping), solver)
    assert distance(factors.solve_lifted(jnp.asarray(r)), exact(a, r, damping=damping)) < 1e-12
    found = factors.solve_covector(jnp.asarray(g))
    assert distance(found, exact(a, g=g, damping=damping)) < 1e-12
    inner = factors.factors
    assert not bool(factors.spectrum.fallback) and int(factors.rank) == -1
    assert inner.decomposition is None and not inner.knows_row_space
    assert np.all(np.isnan(inner.project(jnp.asarray(g))))
    with pytest.raises(ValueError, match=f"{solver.name}Factors cannot be damped"):
        inner.damped(jnp.asarray(0.1))
