"""`Dual`: the kernel from factors or from rows, refined, damped, and where weights cancel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import conditioned, dense, exact, linear, network, vector
from helpers import distance
from jax.extend.core import jaxprs_in_params

import pullback as pb
from pullback import testing
from pullback._rows.rows import Rows

SHAPES = [(6, 10), (10, 6)]
WAYS = [pb.solver.Dual(), pb.solver.Dual(structured=False)]
INVERSES = [pb.MoorePenrose(), pb.Tikhonov(0.03), testing.random_filter(1)]
pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.parametrize("inverse", INVERSES, ids=lambda x: type(x).__name__)
def test_structure_changes_nothing(inverse):
    metric, a = network(samples=4, width=8)
    r, g = vector(a.shape[0]), vector(a.shape[1])
    lifted, covector = dense(a, inverse)
    for solver in WAYS:
        factors = metric.factorise(inverse, solver)
        assert distance(factors.solve_lifted(jnp.asarray(r)), lifted @ r) < 1e-11
        assert distance(factors.solve_covector(jnp.asarray(g)), covector @ g) < 1e-10
        made = factors.factors.formed_rows
        assert (made is None) == solver.structured
        if made is not None:
            np.testing.assert_allclose(made.mv(jnp.asarray(g)), a @ g, atol=1e-12)


def test_the_kernel_from_factors_never_forms_A(monkeypatch):
    """No array of m P numbers, and no call that makes one."""
    metric, a = network(samples=4, width=8)
    m, size = a.shape

    def solve(r, g):
        factors = pb.solver.Dual().factorise(metric.whitened, pb.MoorePenrose())
        return factors.solve_lifted(r), factors.solve_covector(g), factors.project(g)

    monkeypatch.setattr(Rows, "unit_rows", None)
    with jax.disable_jit(False):
        program = jax.make_jaxpr(solve)(jnp.ones(m), jnp.ones(size))
    assert largest(program.jaxpr) < m * size


def largest(jaxpr):
    """Return the number of entries of the largest array of a program."""
    sizes = [getattr(v.aval, "size", 0) for e in jaxpr.eqns for v in (*e.invars, *e.outvars)]
    inner = [largest(j) for e in jaxpr.eqns for j in jaxprs_in_params(e.params)]
    return max([0, *sizes, *inner])


@pytest.mark.parametrize("solver", WAYS, ids=["structured", "formed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_refinement_recovers_what_squaring_loses(shape, solver):
    a, g = conditioned(*shape, 1e6), vector(shape[1])
    r = a @ g
    factors = linear(a).factorise(pb.MoorePenrose(), solver)
    values, vectors = np.linalg.eigh(a @ a.T)
    values, vectors = values[-6:], vectors[:, -6:]
    naive = a.T @ (vectors / values) @ vectors.T @ r
    expected = exact(a, r)
    assert distance(naive, expected) > 1e-7
    assert distance(factors.solve_lifted(jnp.asarray(r)), expected) < 1e-9
    assert int(factors.rank) == 6


def test_where_cholesky_proves_nothing_eigenvectors_take_its_place():
    """K has rank 6 of 10, and λ is below its rounding."""
    a = conditioned(10, 6, 10.0)
    r = a @ vector(6)
    factors = linear(a).factorise(pb.Tikhonov(1e-17), pb.solver.Dual())
    assert bool(factors.spectrum.fallback)
    assert distance(factors.solve_lifted(jnp.asarray(r)), exact(a, r, damping=1e-17)) < 1e-9
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2, measure=pb.Sum())
    example = problem, jnp.zeros(6), (jnp.asarray(a), jnp.asarray(r))
    ng = pb.natural_gradient(*example, inverse=pb.Tikhonov(1e-17), solver=pb.solver.Dual())
    assert bool(ng.stats.fallback) and "Cholesky fell back on eigenvectors" in str(ng.stats)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_decomposition_is_that_of_A(shape):
    a, eta, w = conditioned(*shape, 100.0), vector(shape[1]), vector(6)
    factors = linear(a).factorise(testing.random_filter(1), pb.solver.Dual()).factors
    parts = factors.decomposition
    count = parts.s.size
    np.testing.assert_allclose(parts.s[:6], np.linalg.svd(a, compute_uv=False), atol=1e-9)
    assert count == shape[0] and np.all(np.asarray(parts.s[6:]) <= float(parts.resolution))
    gram = parts.combine(parts.s**2 * parts.coordinates(jnp.asarray(eta)))
    np.testing.assert_allclose(gram, a.T @ a @ eta, atol=1e-11)
    padded = jnp.asarray(np.concatenate([w, np.zeros(count - 6)]))
    np.testing.assert_allclose(parts.coordinates(parts.combine(padded)), padded, atol=1e-9)
    np.testing.assert_allclose(parts.resolution, np.sqrt(10 * np.finfo(float).eps) * parts.s[0])


@pytest.mark.parametrize("solver", WAYS, ids=["structured", "formed"])
@pytest.mark.parametrize("repeated", [False, True], ids=["onto", "repeated row"])
def test_weights_cancel_where_rows_are_independent(solver, repeated):
    """Logits up to 60: the weights span 1e13, past what K resolves."""
    x = conditioned(6, 10, 10.0)
    logits = np.linspace(0.0, 60.0, 6)
    if repeated:
        x[1], logits = x[0], np.linspace(0.0, 3.0, 6)
    y = (np.arange(6) % 2).astype(float)
    offset = jnp.asarray(logits * np.sign(y - 0.5))
    problem = pb.Composite(lambda p, x: x[0] @ p + x[1], metric=pb.metric.Bernoulli())
    example = problem, jnp.zeros(10), ((jnp.asarray(x), offset), jnp.asarray(y))
    factors = pb.pullback(*example).factorise(pb.MoorePenrose(), solver)
    assert bool(factors.spectrum.graded) == (not repeated)
    assert int(factors.rank) == (5 if repeated else 6)
    r, weights = vector(6), np.asarray(pb.pullback(*example).whitened.log_scale)
    scaled = np.exp(weights)[:, None] * x
    found = factors.solve_lifted(jnp.asarray(r))
    if not repeated:
        assert distance(found, exact(x, r, weights=weights)) < 1e-10
        return
    assert distance(found, np.linalg.pinv(scaled) @ (np.exp(weights) * r)) < 1e-10
    g = scaled.T @ vector(6, seed=3)
    found = factors.solve_covector(jnp.asarray(g))
    assert distance(found, np.linalg.pinv(scaled.T @ scaled, rcond=1e-12) @ g) < 1e-8


@pytest.mark.parametrize("damping", [1e-9, 1e-11, 1e-13])
def test_what_of_r_is_outside_the_range_does_not_cost_digits(damping):
    """7 rows, 2 parameters: K + λ has 5 eigenvalues λ, along which y is r/λ."""
    a = conditioned(7, 2, 3.0)
    r = vector(7)
    factors = linear(a).factorise(pb.Tikhonov(damping), pb.solver.Dual())
    assert not bool(factors.spectrum.fallback)
    found = factors.solve_lifted(jnp.asarray(r))
    assert distance(found, exact(a, r, damping=damping)) < 1e-12


@pytest.mark.parametrize("logit, resolved", [(6.0, True), (8.0, False), (12.0, False)])
def test_a_direction_that_weights_hide_is_refused(logit, resolved):
    """A light sample alone decides the third parameter: its weight is above the cut-off, and its
    singular value below.
    """
    x = jnp.asarray([[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0.02]], jnp.float32)
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())
    params = jnp.asarray([0.3, -0.2, logit / 0.02], jnp.float32)
    batch = x, jnp.asarray([0, 1, 1, 0], jnp.float32)
    ng = pb.natural_gradient(problem, params, batch, solver=pb.solver.Dual(), throw=False)
    wanted = pb.RESULTS.successful if resolved else pb.RESULTS.unresolved
    assert ng.result == wanted


def test_weights_cancel_whatever_the_metric_ignores():
    """A masked output has rows of zeros, which must not count against a full row rank."""
    metric = pb.metric.Masked(pb.metric.Bernoulli(), jnp.asarray([True, False]))
    loss = lambda z, y: jnp.sum(jax.nn.softplus(z) - y * z, axis=1)
    problem = pb.Composite(lambda p, x: x @ p, loss, metric)
    x = jnp.asarray([[1.0, 0.2], [0.3, 1.0]], jnp.float32)
    params = jnp.asarray(np.linalg.solve(x, [[0.5, 0.1], [16.0, 0.4]]), jnp.float32)
    batch = x, jnp.asarray([[1, 0], [0, 1]], jnp.float32)
    found = pb.natural_gradient(problem, params, batch, solver=pb.solver.Dual())
    assert int(found.stats.rank) == 2
    # (σ(z) - y)/σ'(z), the ambient gradient of each sample, whatever its weight.
    z = np.asarray(x, float) @ np.asarray(params, float)[:, 0]
    ambient = np.asarray([-(1 + np.exp(-z[0])), 1 + np.exp(z[1])])
    expected = np.linalg.solve(np.asarray(x, float), ambient)
    np.testing.assert_allclose(found.vector[:, 0], expected, rtol=1e-4)
