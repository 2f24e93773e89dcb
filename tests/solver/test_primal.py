"""`Primal`: the metric from factors or from blocks of rows, refined and damped."""

import jax.numpy as jnp
import numpy as np
import pytest
from exact import conditioned, dense, exact, linear, network, vector
from helpers import distance

import pullback as pb
from pullback import testing

SHAPES = [(6, 10), (10, 6)]
WAYS = [pb.solver.Primal(), pb.solver.Primal(structured=False)]
INVERSES = [pb.MoorePenrose(), pb.Tikhonov(0.03), testing.random_filter(1)]
pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.parametrize("inverse", INVERSES, ids=lambda x: type(x).__name__)
def test_structure_changes_nothing(inverse):
    """The structured metric has its parameters in another order."""
    metric, a = network(samples=8, width=2)
    r, g = vector(a.shape[0]), vector(a.shape[1])
    lifted, covector = dense(a, inverse)
    for solver in WAYS:
        factors = metric.factorise(inverse, solver)
        assert (factors.factors.order is None) == (not solver.structured)
        assert distance(factors.solve_lifted(jnp.asarray(r)), lifted @ r) < 1e-10
        assert distance(factors.solve_covector(jnp.asarray(g)), covector @ g) < 1e-9
        assert factors.factors.formed_rows is None


@pytest.mark.parametrize("solver", WAYS, ids=["structured", "generic"])
@pytest.mark.parametrize("shape", SHAPES)
def test_refinement_recovers_what_squaring_loses(shape, solver):
    a = conditioned(*shape, 1e6)
    r = a @ vector(shape[1])
    factors = linear(a).factorise(pb.MoorePenrose(), solver)
    values, vectors = np.linalg.eigh(a.T @ a)
    values, vectors = values[-6:], vectors[:, -6:]
    naive = (vectors / values) @ vectors.T @ a.T @ r
    expected = exact(a, r)
    assert distance(naive, expected) > 1e-7
    assert distance(factors.solve_lifted(jnp.asarray(r)), expected) < 1e-8
    assert int(factors.rank) == 6


@pytest.mark.parametrize("shape", SHAPES)
def test_a_covector_outside_the_range(shape):
    a, g = conditioned(*shape, 1e4), vector(shape[1])
    factors = linear(a).factorise(pb.MoorePenrose(), pb.solver.Primal())
    assert distance(factors.solve_covector(jnp.asarray(g)), exact(a, g=g)) < 1e-7


def test_where_cholesky_proves_nothing_eigenvectors_take_its_place():
    """G has rank 6 of 10, and λ is below its rounding."""
    a, w = conditioned(6, 10, 10.0), vector(10)
    r = a @ w
    factors = linear(a).factorise(pb.Tikhonov(1e-17), pb.solver.Primal())
    assert bool(factors.spectrum.fallback)
    image = a @ np.asarray(factors.solve_lifted(jnp.asarray(r)))
    np.testing.assert_allclose(image, r, atol=1e-9)


@pytest.mark.parametrize("solver", WAYS, ids=["structured", "generic"])
def test_the_decomposition_is_that_of_A(solver):
    metric, a = network(samples=8, width=2)
    eta, size = vector(a.shape[1]), a.shape[1]
    factors = metric.factorise(pb.TruncatedRank(3), solver).factors
    parts = factors.decomposition
    np.testing.assert_allclose(parts.s, np.linalg.svd(a, compute_uv=False), atol=1e-6)
    gram = parts.combine(parts.s**2 * parts.coordinates(jnp.asarray(eta)))
    np.testing.assert_allclose(gram, a.T @ a @ eta, atol=1e-10)
    w = jnp.asarray(vector(size))
    np.testing.assert_allclose(parts.coordinates(parts.combine(w)), w, atol=1e-12)
    v = np.linalg.svd(a)[2][:3].T
    np.testing.assert_allclose(factors.project(jnp.asarray(eta)), v @ v.T @ eta, atol=1e-10)
    assert factors.knows_row_space and factors.kernel_exact
