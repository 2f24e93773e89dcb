"""Likelihoods: the Fisher metric is the Hessian of the Kullback-Leibler divergence, written
independently; saturated outputs are ordinary input.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry_metrics import compiled, dense, normal, positive_definite

from pullback import metric as m
from pullback._base.tree import all_finite, structure


def naive_kl(u, z):
    """Between Gaussian measures (mean, covariance), by the textbook."""
    inverse = jnp.linalg.inv(z[1])
    gap = u[0] - z[0]
    log_det = jnp.linalg.slogdet(z[1])[1] - jnp.linalg.slogdet(u[1])[1]
    return (jnp.trace(inverse @ u[1]) - u[0].size + log_det + gap @ inverse @ gap) / 2


def hessian_at(kl, z):
    like = structure(z)
    return compiled(lambda z: jax.hessian(lambda u: kl(like.unravel(u), z))(like.ravel(z)), z)


def test_gaussian_fisher_metrics_are_the_hessian_of_the_textbook_divergence():
    z = {"mean": normal(2), "covariance": positive_definite(2)}
    u = {"mean": normal(2, seed=3), "covariance": positive_definite(2, seed=4)}
    symmetrised = lambda a: (a["mean"], (a["covariance"] + a["covariance"].T) / 2)
    kl = lambda u, z: naive_kl(symmetrised(u), symmetrised(z))
    np.testing.assert_allclose(dense(m.GaussianMeanCovariance(), z), hessian_at(kl, z), atol=1e-12)
    np.testing.assert_allclose(
        *compiled(lambda: (m.GaussianMeanCovariance().divergence(u, z), kl(u, z))), rtol=1e-12
    )

    scaled = lambda a: (a["mean"], jnp.diag(jnp.exp(2 * a["log_scale"])))
    z = {"mean": normal(2), "log_scale": normal(2, seed=1)}
    u = {"mean": normal(2, seed=2), "log_scale": normal(2, seed=3)}
    kl = lambda u, z: naive_kl(scaled(u), scaled(z))
    np.testing.assert_allclose(dense(m.GaussianMeanScale(), z), hessian_at(kl, z), atol=1e-12)
    np.testing.assert_allclose(
        *compiled(lambda: (m.GaussianMeanScale().divergence(u, z), kl(u, z))), rtol=1e-12
    )

    covariance, z, u = positive_definite(2), normal(2), normal(2, seed=1)
    kl = lambda u, z: naive_kl((u, covariance), (z, covariance))
    np.testing.assert_allclose(dense(m.Gaussian(covariance), z), hessian_at(kl, z), atol=1e-12)
    np.testing.assert_allclose(
        *compiled(lambda: (m.Gaussian(covariance).divergence(u, z), kl(u, z))), rtol=1e-12
    )


def test_gaussian_covariances_agree_however_they_are_given():
    z, v, y = normal(2, 2), normal(2, 2, seed=1), normal(2, 2, seed=2)
    full, diagonal, scalar = (m.Gaussian(c) for c in (2.0 * jnp.eye(2), jnp.array([2.0, 2.0]), 2.0))
    for other in (diagonal, scalar):
        np.testing.assert_allclose(full.apply(z, v), other.apply(z, v), rtol=1e-14)
        np.testing.assert_allclose(
            full.negative_log_likelihood(z, y), other.negative_log_likelihood(z, y), rtol=1e-14
        )
        np.testing.assert_allclose(full.sharp(z, v), other.sharp(z, v), rtol=1e-14)
    assert (full.event_ndim, diagonal.event_ndim) == (1, 0)


def test_covariance_metrics_do_not_see_antisymmetric_matrices():
    z = {"mean": normal(2), "covariance": positive_definite(2)}
    skew = {"mean": jnp.zeros(2), "covariance": jnp.array([[0.0, 1.0], [-1.0, 0.0]])}
    for metric in (m.GaussianMeanCovariance(), m.WassersteinGaussianCovariance()):
        every = lambda z, v, metric=metric: (
            metric.apply(z, v),
            metric.sharp(z, v),
            metric.root(z).transpose(v),
            metric.root(z).lift(v),
        )
        for value in compiled(every, z, skew):
            np.testing.assert_allclose(structure(value).ravel(value), 0.0, atol=1e-15)


def gaussian_log_partition(z):
    """Of N(μ, σ²) with natural parameters μ/σ² and -1/(2σ²)."""
    return -(z[0] ** 2) / (4 * z[1]) - jnp.log(-2 * z[1]) / 2


@pytest.mark.parametrize(
    ("family", "log_partition", "targets"),
    [
        (m.Bernoulli(), lambda z: jnp.sum(jax.nn.softplus(z)), jnp.array([1.0, 0.0, 1.0])),
        (m.Categorical(), jax.nn.logsumexp, jnp.array([0.0, 1.0, 0.0])),
        (m.Poisson(), lambda z: jnp.sum(jnp.exp(z)), jnp.array([0.0, 3.0, 1.0])),
        (m.Gaussian(), lambda z: jnp.sum(z**2) / 2, normal(3, seed=7)),
    ],
)
def test_exponential_families_agree_with_those_that_have_a_name(family, log_partition, targets):
    general, z, u = m.ExponentialFamily(log_partition), normal(3), normal(3, seed=1)

    def both(z, u):
        gap = lambda f: (
            f.negative_log_likelihood(z, targets) - f.negative_log_likelihood(u, targets)
        )
        gradient = jax.grad(lambda x: family.negative_log_likelihood(x, targets))(z)
        return (
            (general.matrix(z), jax.vmap(lambda v: family.apply(z, v))(jnp.eye(3))),
            (general.divergence(u, z), family.divergence(u, z)),
            (gap(general), gap(family)),
            (general.root(z).mv(general.likelihood_lift(z, targets)), gradient),
        )

    for found, expected in compiled(both, z, u):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_exponential_family_of_gaussians_in_natural_parameters():
    as_moments = lambda z: (-z[:1] / (2 * z[1]), (-1 / (2 * z[1])).reshape(1, 1))
    z, u = jnp.array([0.3, -0.7]), jnp.array([-0.2, -1.1])
    general = m.ExponentialFamily(gaussian_log_partition)
    np.testing.assert_allclose(
        *compiled(lambda: (general.divergence(u, z), naive_kl(as_moments(u), as_moments(z)))),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        compiled(general.matrix, z),
        hessian_at(lambda u, z: naive_kl(as_moments(u), as_moments(z)), z),
        rtol=1e-10,
    )


def test_bregman_of_a_log_partition_is_the_reversed_divergence():
    """Erratum E16: D_A(a, b) = KL(p_b ‖ p_a), and not KL(p_a ‖ p_b), though both have the Hessian
    ∇²A.
    """
    a, b = jnp.array([0.0, 1.0, 2.0]), jnp.array([1.5, 0.0, -0.5])
    p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
    forward, backward = np.sum(p * np.log(p / q)), np.sum(q * np.log(q / p))
    assert abs(forward - backward) > 0.1
    bregman, family = m.Bregman(jax.nn.logsumexp), m.ExponentialFamily(jax.nn.logsumexp)
    every = lambda a, b: [metric.divergence(a, b) for metric in (bregman, family, m.Categorical())]
    np.testing.assert_allclose(compiled(every, a, b), [backward, forward, forward], rtol=1e-12)
    np.testing.assert_allclose(
        *compiled(lambda a: (bregman.matrix(a), family.matrix(a)), a), atol=1e-15
    )


def test_divergence_in_either_order_has_one_metric():
    kl = m.Bernoulli().divergence
    z = normal(2)
    expected = dense(m.Bernoulli(), z)
    np.testing.assert_allclose(compiled(m.Divergence(kl).matrix, z), expected, atol=1e-13)
    np.testing.assert_allclose(
        compiled(m.Divergence(lambda u, z: kl(z, u)).matrix, z), expected, atol=1e-13
    )


def saturated(family, z, y):
    """What a family says of a differentiated loss and of its own."""
    c = jax.grad(lambda x: family.negative_log_likelihood(x, y))(z)
    root = family.root(z)
    finite = (
        root,
        root.unit_lift(c),
        root.lift(c),
        family.sharp(z, c),
        family.apply(z, c),
        family.divergence(z, z),
        family.divergence(z / 2, z),
    )
    return all_finite(finite), root.log_scale, family.likelihood_lift(z, y)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_saturated_outputs_are_ordinary_input(dtype):
    s = jnp.array([1000.0, -1000.0, 1000.0, 3.0], dtype)
    finite, log_scale, r = compiled(saturated, m.Bernoulli(), s, jnp.array([1, 0, 1, 1]))
    assert finite
    np.testing.assert_allclose(r, [-1, 1, -1, -1 - np.exp(-3)], rtol=1e-6)
    np.testing.assert_allclose(log_scale[:3], -500, rtol=1e-6)
    assert (
        compiled(saturated, m.Bernoulli(), s, jnp.array([1, 0, 0, 1]))[2][2] > 1e30
    )  # misclassified: e^1000, honestly

    z = jnp.array([[1000.0, -1000.0, 0.0], [0.0, 1.0, -1000.0]], dtype)
    finite, log_scale, r = compiled(saturated, m.Categorical(), z, jnp.array([0, 1]))
    assert finite
    np.testing.assert_allclose(r[:2], 1, rtol=1e-6)  # unlikely classes, right: c_j = p_j
    np.testing.assert_allclose(log_scale[:2] * 2, [-2000, -1000], rtol=1e-6)

    finite, log_scale, r = compiled(
        saturated, m.Poisson(), jnp.array([-1000.0, -900.0, 2.0], dtype), jnp.array([0, 0, 1])
    )
    assert finite
    np.testing.assert_allclose(r, [1, 1, 1 - np.exp(-2)], rtol=1e-6)
    np.testing.assert_allclose(log_scale, [-500, -450, 1], rtol=1e-6)
