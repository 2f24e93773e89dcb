"""Wasserstein metrics against quantiles, optimal maps and the heat equation."""

import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry_metrics import compiled, normal, positive_definite

import pullback as pb
from pullback import metric as m
from pullback._base.tree import all_finite
from pullback.metric._wasserstein_covariance import lyapunov


def test_wasserstein_gaussian_against_the_quantile_integral():
    u, z = (
        {"mean": jnp.array([0.3]), "scale": jnp.array([1.4])},
        {"mean": jnp.array([-0.5]), "scale": jnp.array([0.6])},
    )
    levels = (np.arange(20_000) + 0.5) / 20_000
    normal_quantiles = np.array([statistics.NormalDist().inv_cdf(p) for p in levels])
    quantile = lambda a: a["mean"][0] + a["scale"][0] * normal_quantiles
    squared = np.mean((quantile(u) - quantile(z)) ** 2)
    np.testing.assert_allclose(m.WassersteinGaussian().divergence(u, z), squared / 2, rtol=1e-3)
    as_covariance = lambda a: {"mean": a["mean"], "covariance": a["scale"].reshape(1, 1) ** 2}
    full = compiled(
        m.WassersteinGaussianCovariance().divergence, as_covariance(u), as_covariance(z)
    )
    np.testing.assert_allclose(full, m.WassersteinGaussian().divergence(u, z), rtol=1e-13)


def test_wasserstein_covariance_against_an_optimal_map():
    """x -> m + Tx with T positive definite is the gradient of a convex function, hence optimal
    (Brenier): its cost is W₂².
    """
    covariance, t, shift = positive_definite(3), positive_definite(3, seed=1), normal(3)
    z, u = (
        {"mean": jnp.zeros(3), "covariance": covariance},
        {"mean": shift, "covariance": t @ covariance @ t},
    )
    gap = np.eye(3) - t
    cost = np.trace(gap @ covariance @ gap.T) + shift @ shift
    np.testing.assert_allclose(
        compiled(m.WassersteinGaussianCovariance().divergence, u, z), cost / 2, rtol=1e-12
    )


def test_lyapunov_derivative_where_eigenvalues_coincide():
    covariance, x = jnp.eye(2), positive_definite(2)
    step = jnp.array([[0.3, 0.1], [0.1, -0.2]])
    _, slope = jax.jvp(lambda s: lyapunov(s, x), (covariance,), (step,))
    h = 1e-6
    np.testing.assert_allclose(
        slope,
        (lyapunov(covariance + h * step, x) - lyapunov(covariance - h * step, x)) / (2 * h),
        atol=1e-8,
    )
    reverse = jax.grad(lambda s: jnp.sum(lyapunov(s, x) ** 2))(covariance)
    np.testing.assert_allclose(
        jnp.sum(reverse * step), 2 * jnp.sum(lyapunov(covariance, x) * slope), rtol=1e-12
    )


def test_gradient_flow_of_the_entropy_is_the_heat_equation_on_the_graph():
    edges, weights = ((0, 1), (1, 2), (2, 3)), jnp.array([1.0, 0.5, 2.0])
    p = jnp.array([0.05, 0.5, 0.1, 0.35])
    laplacian = np.zeros((4, 4))
    for (i, j), w in zip(edges, weights, strict=True):
        e = np.eye(4)[i] - np.eye(4)[j]
        laplacian += float(w) * np.outer(e, e)
    np.testing.assert_allclose(
        compiled(m.WassersteinGraph(edges, weights).sharp, p, 1 + jnp.log(p)),
        laplacian @ p,
        rtol=1e-12,
    )
    arithmetic = compiled(
        m.WassersteinGraph(edges, weights, m.ArithmeticMean()).sharp, p, 1 + jnp.log(p)
    )
    assert np.abs(arithmetic - laplacian @ p).max() > 0.01


def test_logarithmic_mean_is_accurate_everywhere():
    a = jnp.array([1.0, 1.0, 0.3, 0.0, 0.0, 0.2, 0.5, 0.31])
    b = jnp.array([1e-20, 1 + 1e-9, 0.3, 0.4, 0.0, 0.7, 0.4995, 0.3])
    expected = [
        1 / (20 * np.log(10)),
        1 + 5e-10,
        0.3,
        0,
        0,
        0.5 / np.log(3.5),
        0.0005 / -np.log1p(-0.001),
        0.01 / np.log1p(1 / 30),
    ]
    np.testing.assert_allclose(compiled(m.LogarithmicMean(), a, b), expected, rtol=1e-12)
    assert all_finite(compiled(jax.jacfwd(lambda x: m.LogarithmicMean()(x, b[:3])), a[:3]))


def test_capacities_that_differ_beyond_the_digits_are_refused():
    """A pseudo-inverse would drop the light edge, and with it the exchange of mass along it."""
    metric = pb.metric.WassersteinGraph(((0, 1), (1, 2)))
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2), metric)
    with pytest.raises(RuntimeError, match="capacities of edges differ by more than"):
        pb.natural_gradient(problem, jnp.asarray([1.0, 1e-60, 1e-100]))
    ng = pb.natural_gradient(problem, jnp.asarray([0.5, 0.5, 0.0]))
    assert ng.result == pb.RESULTS.successful


@pytest.mark.parametrize("capacity", [1e-25, 1e-22])
def test_a_bottleneck_between_large_parts_is_right_or_refused(capacity):
    """Its singular value is smaller than its capacity, and a pseudo-inverse may drop it."""
    n = 40
    weights = np.ones(n - 1)
    weights[n // 2] = capacity
    metric = m.WassersteinGraph(tuple((i, i + 1) for i in range(n - 1)), jnp.asarray(weights))
    p, v = jnp.full(n, 1 / n), jnp.zeros(n).at[0].set(1.0).at[-1].set(-1.0)
    cost = jnp.vdot(v, compiled(metric.apply, p, v))
    length = jnp.sum(compiled(lambda p: metric.root(p).unit_transpose(v), p) ** 2)
    exact = np.sum(n / weights)  # a flow of one along every edge
    for found in (cost, length):
        assert bool(jnp.isnan(found)) if capacity < 1e-23 else abs(found / exact - 1) < 1e-9
    if capacity < 1e-23:
        assert "Set what is negligible to zero" in metric.complaint(p)
