"""`SVD` squares no condition number, in rows of one scale and in graded ones."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from exact import conditioned, dense, exact, linear, vector
from helpers import distance

import pullback as pb
from pullback import testing
from pullback.inverse import Dampable
from pullback.solver._graded import GradedFactors, graded_factors, thin_svd

SHAPES = [(6, 10), (10, 6)]
SOLVER = pb.solver.SVD()
pytestmark = pytest.mark.usefixtures("eager")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_condition_number_is_not_squared(shape):
    a = conditioned(*shape, 1e10)
    r = a @ vector(shape[1])
    factors = linear(a).factorise(pb.MoorePenrose(), SOLVER)
    assert distance(factors.solve_lifted(jnp.asarray(r)), exact(a, r)) < 1e-5
    assert int(factors.rank) == 6
    # A covector takes the inverse twice.
    a = conditioned(*shape, 1e4)
    factors, g = linear(a).factorise(pb.MoorePenrose(), SOLVER), a.T @ vector(shape[0])
    assert distance(factors.solve_covector(jnp.asarray(g)), exact(a, g=g)) < 1e-7


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inverse", [pb.MoorePenrose(), pb.TruncatedRank(3)], ids=["all", "three"])
def test_one_decomposition_serves_every_damping(shape, inverse):
    a, r, g = conditioned(*shape, 100.0), vector(shape[0]), vector(shape[1])
    factors = linear(a).factorise(Dampable(inverse), SOLVER)
    for damping in (0.0, 1e-15, 1e-6, 0.03, 10.0):
        damped, (lifted, covector) = factors.damped(damping), dense(a, inverse, damping)
        assert distance(damped.solve_lifted(jnp.asarray(r)), lifted @ r) < 1e-11, damping
        if damping != 1e-15:
            assert distance(damped.solve_covector(jnp.asarray(g)), covector @ g) < 1e-8, damping
        assert int(damped.rank) == int(factors.rank)


@pytest.mark.parametrize(
    "solver", [pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal()], ids=lambda s: s.name
)
def test_a_small_damping_does_not_amplify_rounding(solver):
    """A has no kernel, so that λ beside s² ≥ 1e-4 changes nothing."""
    a = conditioned(10, 6, 100.0)
    g = a.T @ vector(10)
    damped = linear(a).factorise(Dampable(pb.MoorePenrose()), solver).damped(1e-16)
    assert distance(damped.solve_covector(jnp.asarray(g)), exact(a, g=g, damping=1e-16)) < 1e-9


@pytest.mark.parametrize("shape", SHAPES)
def test_the_decomposition_is_that_of_A(shape):
    a = conditioned(*shape, 100.0)
    factors = linear(a).factorise(pb.TruncatedRank(3), SOLVER).factors
    parts = factors.decomposition
    np.testing.assert_allclose(parts.s, np.linalg.svd(a, compute_uv=False), atol=1e-14)
    eta, w = jnp.asarray(vector(shape[1])), jnp.asarray(vector(6))
    np.testing.assert_allclose(parts.coordinates(parts.combine(w)), w, atol=1e-13)
    gram = parts.combine(parts.s**2 * parts.coordinates(eta))
    np.testing.assert_allclose(gram, a.T @ a @ eta, atol=1e-13)
    v = np.linalg.svd(a)[2][:3].T
    np.testing.assert_allclose(factors.project(eta), v @ v.T @ eta, atol=1e-13)
    assert factors.knows_row_space and factors.kernel_exact and factors.formed_rows is None
    spectrum = factors.spectrum
    assert int(spectrum.rank) == 3 and not spectrum.graded and not spectrum.fallback
    np.testing.assert_allclose([spectrum.largest, spectrum.smallest], parts.s[jnp.asarray([0, 2])])
    np.testing.assert_allclose(spectrum.cutoff, 10 * np.finfo(float).eps)


def test_rounding_does_not_come_back_through_a_large_value_on_the_kernel():
    """h₀ = 1e12, and a singular value that is zero up to rounding."""
    a = conditioned(6, 10, 10.0)
    a[5] = a[4]
    inverse = testing.random_filter(1)
    inverse = eqx.tree_at(lambda f: f.outside, inverse, jnp.asarray(1e12))
    factors, r = linear(a).factorise(inverse, SOLVER), vector(6)
    assert distance(factors.solve_lifted(jnp.asarray(r)), dense(a, inverse)[0] @ r) < 1e-3
    s = np.asarray(factors.factors.s)
    assert s[5] == 0 and int(factors.rank) == 5


def test_a_wide_matrix_is_decomposed_as_its_transpose():
    for shape in SHAPES:
        a = jnp.asarray(conditioned(*shape, 10.0))
        u, s, vt = thin_svd(a)
        assert u.shape == (shape[0], 6) and vt.shape == (6, shape[1])
        np.testing.assert_allclose((u * s[None, :]) @ vt, a, atol=1e-14)


WEIGHTS = {
    "equal": np.zeros(10),
    "mild": np.linspace(0, -6, 10),
    "steep": np.linspace(0, -300, 10),
    "absent": np.concatenate([np.linspace(0, -300, 9), [-np.inf]]),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_graded_rows(shape, weights):
    """Against 900 digits: weights that cancel, weights for an orthogonal factorisation, weights
    that take elimination, and a row that is absent.
    """
    a, log_scale = conditioned(*shape, 10.0), WEIGHTS[weights][-shape[0] :]
    r, g = vector(shape[0]), a.T @ (np.exp(2 * log_scale.clip(-20)) * vector(shape[0]))
    there = np.isfinite(log_scale)
    a[~there] = 0
    factors = graded_factors(jnp.asarray(a), jnp.asarray(log_scale), pb.MoorePenrose())
    assert isinstance(factors, GradedFactors) and bool(factors.spectrum.graded)
    full = shape[0] < shape[1]
    assert bool(factors.full) == full
    assert int(factors.spectrum.rank) == min(there.sum(), shape[1])
    present = a[there], r[there], log_scale[there]
    expected = exact(present[0], present[1], weights=present[2])
    assert distance(factors.solve_lifted(jnp.asarray(r)), expected) < 1e-11
    eta = jnp.asarray(vector(shape[1]))
    v = np.linalg.svd(present[0])[2][: int(factors.spectrum.rank)].T
    np.testing.assert_allclose(factors.project(eta), v @ v.T @ eta, atol=1e-12)
    if weights in ("equal", "mild"):
        scaled = np.exp(log_scale)[:, None] * a
        expected = exact(scaled, g=g)
        assert distance(factors.solve_covector(jnp.asarray(g)), expected) < 1e-8


def test_graded_rows_of_zeros_take_no_part():
    rng = np.random.default_rng(0)
    rows, r, g = rng.standard_normal((4, 6)), rng.standard_normal(4), rng.standard_normal(6)
    logs = np.array([0.0, -50.0, -5.0, -20.0])
    alone = graded_factors(jnp.asarray(rows), jnp.asarray(logs), pb.MoorePenrose())
    # Heavier than the lightest of the others, as its rounding would be.
    with_zeros = graded_factors(
        jnp.asarray(np.insert(rows, 1, 0.0, axis=0)),
        jnp.asarray(np.insert(logs, 1, -3.0)),
        pb.MoorePenrose(),
    )
    assert with_zeros.full and alone.full
    lifted = with_zeros.solve_lifted(jnp.asarray(np.insert(r, 1, 1e9)))
    assert distance(lifted, alone.solve_lifted(jnp.asarray(r))) < 1e-13
    g = jnp.asarray(g)
    assert distance(with_zeros.solve_covector(g), alone.solve_covector(g)) < 1e-12


def test_only_a_pseudo_inverse_that_drops_nothing_takes_graded_rows():
    example = testing.prescribed(4, 4, 7, metric=pb.metric.Bernoulli())
    metric = pb.pullback(*example)
    graded = {
        type(inverse): isinstance(metric.factorise(inverse, SOLVER).factors, GradedFactors)
        for inverse in (pb.MoorePenrose(), pb.Tikhonov(0.1), pb.TruncatedRank(2))
    }
    assert graded == {pb.MoorePenrose: True, pb.Tikhonov: False, pb.TruncatedRank: False}
    cut = metric.factorise(pb.MoorePenrose(rtol=1e-3), SOLVER).factors
    assert not isinstance(cut, GradedFactors)
