"""The geometries of the outputs: every entry of the registry keeps the promises, and each metric is
the one it says it is.
"""

import re
import statistics

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry_metrics import METRICS, Registry, normal, positive_definite

from pullback import metric as m
from pullback._base.tree import all_finite, structure
from pullback.metric._roots import ABSOLUTE, CLIP, INVERSE, INVERSE_SQRT, SQRT, spectral
from pullback.metric._wasserstein_covariance import lyapunov
from pullback.testing import check_metric


@pytest.mark.parametrize("name", METRICS)
def test_metric(name):
    metric, make_z, make_targets = METRICS[name]
    check_metric(metric, make_z(), make_targets())


def test_the_registry_is_complete_and_refuses_duplicates():
    public = {
        value
        for value in vars(m).values()
        if isinstance(value, type) and issubclass(value, m.AbstractMetric)
    }
    assert {c.__name__ for c in public if not c.__name__.startswith("Abstract")} == {
        type(c.metric).__name__ for c in METRICS.values()
    }
    registry = Registry()
    registry["a"] = METRICS["euclidean"]
    with pytest.raises(KeyError, match="registered already"):
        registry["a"] = METRICS["euclidean"]


@eqx.filter_jit
def dense_(metric, z):
    like = structure(z)
    return jax.vmap(lambda v: like.ravel(metric.apply(z, like.unravel(v))))(
        jnp.eye(like.size, dtype=like.dtype)
    )


def dense(metric, z):
    return np.asarray(dense_(metric, z))


def compiled(function, *args):
    """One compilation instead of one for each operation."""
    return eqx.filter_jit(function)(*args)


# check_metric can fail


class Wrong(m.AbstractMetric):
    """The Euclidean metric with one thing wrong."""

    fault: str = eqx.field(static=True)
    nonsingular = True
    inner = m.Euclidean(1.0)

    def root(self, z):
        root = self.inner.root(z)
        if self.fault == "root":
            return eqx.tree_at(lambda r: r.log_scale, root, root.log_scale + 0.1)
        return (
            root
            if self.fault != "dtype"
            else eqx.tree_at(lambda r: r.log_scale, root, root.log_scale.astype(jnp.float64))
        )

    def apply(self, z, v):
        return jnp.array([1.0, 1.0, 0.0]) * v if self.fault == "nonsingular" else v

    def sharp(self, z, c):
        return 2 * c if self.fault == "sharp" else c

    def divergence(self, u, z):
        value = self.inner.divergence(u, z)
        return (
            value + {"shifted": 0.1, "negative": -2 * value}.get(self.fault, 0.0)
            if self.fault != "hessian"
            else 1.1 * value
        )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("root", r"S Sᵀ v against M v: error .* largest entry"),
        ("nonsingular", "says it is nonsingular"),
        ("sharp", "M M⁺ c against c"),
        ("shifted", r"ρ\(z, z\) = 1.000e-01, not 0"),
        ("negative", "the divergence is negative"),
        ("hessian", r"has order 2\.00 in ε, not 3"),
        ("dtype", "outputs in float32 give"),
    ],
)
def test_check_metric_can_fail(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_metric(Wrong(fault), normal(3))


def test_check_metric_accepts_the_right_one_and_wants_float64():
    check_metric(Wrong("none"), normal(3))
    with pytest.raises(ValueError, match="float64 outputs"):
        check_metric(m.Euclidean(), jnp.ones(3, jnp.float32))


# Families: the Fisher metric is the Hessian of the Kullback-Leibler divergence, written
# independently


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


# The logarithm of a loss


LOG_LOSSES = {
    "bernoulli": (m.Bernoulli(), normal(2, 3), jnp.array([[0, 1, 1], [1, 0, 0]])),
    "bernoulli, soft targets": (m.Bernoulli(), normal(3), jnp.array([0.2, 0.5, 0.9])),
    "categorical": (m.Categorical(), normal(2, 3), jnp.array([2, 0])),
    "categorical, soft targets": (
        m.Categorical(),
        normal(2, 3),
        jnp.array([[0.2, 0.3, 0.5], [0.0, 0.9, 0.1]]),
    ),
    "product": (
        m.ProductLikelihood({"a": m.Bernoulli(), "b": m.Categorical()}),
        {"a": normal(3), "b": normal(2, 4, seed=1)},
        {"a": jnp.array([1, 0, 1]), "b": jnp.array([3, 1])},
    ),
}


@pytest.mark.parametrize("name", LOG_LOSSES)
def test_log_loss_is_the_logarithm_of_the_negative_log_likelihood(name):
    family, z, y = LOG_LOSSES[name]
    assert family.has_log_loss
    like = structure(z)
    log_loss = lambda x: family.log_loss(like.unravel(x), y)
    reference = lambda x: jnp.log(family.negative_log_likelihood(like.unravel(x), y))
    both = lambda x: [jax.value_and_grad(f)(x) for f in (log_loss, reference)]
    found, expected = compiled(both, like.ravel(z))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-13)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-11, atol=1e-14)


def test_log_loss_is_accurate_where_the_likelihood_underflows():
    """-log p = e^-2000 of a class that is 2000 logits ahead."""
    z = jnp.array([2000.0, 0.0])
    bernoulli, categorical = m.Bernoulli(), m.Categorical()
    zero = jnp.array([0])
    assert float(categorical.negative_log_likelihood(z, zero[0])) == 0
    assert float(categorical.log_loss(z, zero[0])) == -2000
    assert float(bernoulli.log_loss(-z[:1], zero)) == -2000
    slope = jax.grad(lambda z: categorical.log_loss(z, zero[0]))(z)
    np.testing.assert_allclose(slope, [-1.0, 1.0], rtol=1e-15)
    # log(e^-2000 + log 2): the larger of the two is left.
    product = m.ProductLikelihood((bernoulli, categorical))
    found = product.log_loss((-z[:1], jnp.zeros(2)), (zero, zero[0]))
    np.testing.assert_allclose(found, np.log(np.log(2)), rtol=1e-14)


def test_a_metric_declares_whether_it_has_a_log_loss():
    assert not any(
        metric.has_log_loss
        for metric in (
            m.Euclidean(),
            m.Gaussian(),
            m.Poisson(),
            m.Weighted(m.Bernoulli(), 2.0),
            m.ProductLikelihood((m.Bernoulli(), m.Gaussian())),
        )
    )


# Three Fishers


@pytest.mark.parametrize(
    "name",
    [
        "bernoulli",
        "categorical",
        "gaussian diagonal",
        "gaussian full",
        "gaussian mean scale",
        "gaussian mean covariance",
        "poisson",
    ],
)
def test_sampled_fisher_converges_to_the_true_one(name):
    """Root mean square error against the number of draws: slope -1/2. It also tests `sample` and
    the likelihood against `apply`.
    """
    family, make_z, _ = METRICS[name]
    z, total = make_z(), 4096
    scores = np.asarray(
        compiled(m.SampledFisher(family, jax.random.key(3), draws=total).factor, z)
    ) * np.sqrt(total)
    true = dense(family, z)
    counts = np.array([4, 16, 64, 256])
    errors = []
    for draws in counts:
        blocks = scores.reshape(scores.shape[0], -1, draws)
        estimates = np.einsum("ibd,jbd->bij", blocks, blocks) / draws
        errors.append(np.sqrt(np.mean((estimates - true) ** 2)))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.58 < slope < -0.42, f"order {slope:.3f}, errors {errors}"
    bias = np.sqrt(np.mean((scores @ scores.T / total - true) ** 2)) / (
        errors[0] * np.sqrt(counts[0] / total)
    )
    assert bias < 2, f"all draws together are off by {bias:.2f} times their standard error"


def test_sampled_fisher_draws_afresh_for_each_sample():
    metric, z = m.SampledFisher(m.Gaussian(), jax.random.key(0), draws=2), normal(3)
    factor = eqx.filter_jit(lambda i: metric.observe(None, i).factor(z))
    first, second = (factor(jnp.asarray(i)) for i in range(2))
    assert np.linalg.norm(first - second) > 0.1
    np.testing.assert_array_equal(first, factor(jnp.asarray(0)))


def test_empirical_fisher_is_not_the_fisher():
    z, y = normal(4), jnp.asarray(2)
    empirical = m.EmpiricalFisher(m.Categorical()).observe(y, jnp.asarray(0))
    matrix, true = dense(empirical, z), dense(m.Categorical(), z)
    gradient = jax.nn.softmax(z) - jax.nn.one_hot(y, 4, dtype=z.dtype)
    np.testing.assert_allclose(matrix, np.outer(gradient, gradient), atol=1e-15)
    assert np.linalg.matrix_rank(matrix) == 1 and np.linalg.matrix_rank(true) == 3
    assert np.linalg.norm(matrix - true) > np.linalg.norm(true) / 2
    np.testing.assert_allclose(
        m.LossHessian(m.Categorical(), targets=y).matrix(z), true, atol=1e-15
    )
    # In expectation over the model's own labels it is the Fisher metric.
    mean = sum(
        p * dense(m.EmpiricalFisher(m.Categorical(), jnp.asarray(k)), z)
        for k, p in enumerate(np.asarray(jax.nn.softmax(z)))
    )
    np.testing.assert_allclose(mean, true, atol=1e-15)


def test_scores_are_the_covariance_of_scores():
    scores, weights = np.asarray(normal(5, 2)), np.array([0.5, 0.0, 2.0, 1.0, 0.25])
    z = normal(5)
    metric = m.Weighted(m.Scores(), 2.0).weigh(jnp.asarray(weights))
    expected = np.cov(scores.T, aweights=weights, ddof=0) * weights.sum()
    np.testing.assert_allclose(scores.T @ dense(metric, z) @ scores, 2 * expected, atol=1e-14)
    np.testing.assert_allclose(dense(m.Scores(), z), np.eye(5) / 5 - 1 / 25, atol=1e-15)
    # A sample without weight is absent, whatever it says.
    root = m.Scores(jnp.asarray(weights)).root(z)
    wild = jnp.asarray(scores[:, 0]).at[1].set(jnp.inf)
    assert root.log_scale[1] == -jnp.inf
    np.testing.assert_allclose(root.transpose(wild), root.transpose(jnp.asarray(scores[:, 0])))
    assert all_finite((root.lift(wild), m.Scores(jnp.zeros(5)).root(z).lift(z)))


# Spectra


def test_loss_hessian_spectrum_is_a_type():
    loss, y = lambda z, y: jnp.sum(y * z**2) / 2, jnp.array([2.0, -3.0])
    z = normal(2)
    observed = lambda spectrum: m.LossHessian(loss, spectrum).observe(y, jnp.asarray(0))
    np.testing.assert_allclose(
        compiled(observed(m.Clip()).matrix, z), np.diag([2.0, 0.0]), atol=1e-15
    )
    np.testing.assert_allclose(
        compiled(observed(m.Absolute()).matrix, z), np.diag([2.0, 3.0]), atol=1e-15
    )
    assert np.isnan(compiled(observed(m.Refuse()).root, z).factor).any()
    assert (observed(m.Refuse()).has_divergence, observed(m.Clip()).has_divergence) == (True, False)
    with pytest.raises(TypeError, match="without a divergence"):
        observed(m.Absolute()).divergence(z, z)


@pytest.mark.parametrize("function", [SQRT, INVERSE_SQRT, INVERSE, CLIP, ABSOLUTE])
def test_spectral_derivative_where_eigenvalues_coincide(function):
    signs = (1, 1, -1) if function in (CLIP, ABSOLUTE) else (1, 1, 1)
    frame = np.linalg.qr(np.asarray(normal(3, 3)))[0]
    matrix = jnp.asarray(frame @ np.diag(np.multiply((1.0, 1.0 + 1e-9, 3.0), signs)) @ frame.T)
    step = normal(3, 3, seed=1)
    step = step + step.T
    h = 1e-5

    def both(matrix):
        _, slope = jax.jvp(lambda x: spectral(function, x), (matrix,), (step,))
        return slope, (
            spectral(function, matrix + h * step) - spectral(function, matrix - h * step)
        ) / (2 * h)

    slope, difference = compiled(both, matrix)
    np.testing.assert_allclose(slope, difference, atol=1e-7)


def test_spectral_functions_vanish_on_the_kernel_and_know_their_noise():
    a = normal(4, 2)
    matrix = a @ a.T
    np.testing.assert_allclose(
        compiled(lambda x: spectral(INVERSE, x), matrix),
        np.linalg.pinv(matrix, rtol=1e-10),
        rtol=1e-9,
        atol=1e-12,
    )
    inverse = jax.jit(lambda x: spectral(INVERSE, x))
    noisy = matrix - 20 * 4 * jnp.finfo(float).eps * jnp.linalg.norm(matrix, 2) * jnp.eye(4)
    assert (
        np.abs(inverse(noisy)).max() < 10
    )  # a little below zero is noise, and so is as much above it
    assert np.isnan(inverse(matrix - 1e-10 * jnp.eye(4))).all()


# Transport


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


# Combinations


def test_combinations_forward_what_they_are():
    singular, graded, plain = m.Categorical(), m.Poisson(), m.Euclidean()
    flags = lambda x: (x.nonsingular, x.graded, x.couples_samples, x.has_divergence, x.event_ndim)
    assert flags(m.Product((singular, plain))) == (False, True, False, True, 1)
    assert flags(m.Product((plain, plain))) == (True, False, False, True, 0)
    assert flags(m.Sum((singular, plain))) == (True, True, False, True, 1)
    assert flags(m.Sum((plain, m.Riemannian(jnp.diag)))) == (True, False, False, False, None)
    assert flags(m.Weighted(m.Scores(), 1.0)) == (False, False, True, True, None)
    assert flags(m.Weighted(graded, 1.0)) == (True, True, False, True, 0)
    assert flags(m.Masked(graded, True)) == (False, True, False, True, 0)


def test_product_hands_out_targets_part_by_part_or_whole():
    seen = m.EmpiricalFisher(lambda z, y: jnp.sum(z) * jnp.sum(y))
    z = {"a": normal(2), "b": normal(1)}
    part = m.Product({"a": seen, "b": m.Euclidean()}).observe(
        {"a": jnp.array(3.0), "b": None}, jnp.asarray(0)
    )
    whole = m.Product({"a": seen, "b": m.Euclidean()}).observe(
        jnp.array([1.0, 1.0]), jnp.asarray(0)
    )
    np.testing.assert_allclose(part.root(z).roots[0].factor[:, 0], [3.0, 3.0])
    np.testing.assert_allclose(whole.root(z).roots[0].factor[:, 0], [2.0, 2.0])


def test_sum_keeps_the_grading_of_its_parts():
    z = jnp.array([300.0, 0.0])
    root = compiled(m.Sum((m.Bernoulli(), m.Euclidean(1.0))).root, z)
    np.testing.assert_allclose(root.log_scale, [-150.0, -np.log(2), 0.0, 0.0], rtol=1e-14)
    assert all_finite(root.unit_lift(jnp.ones(2)))


def test_a_mask_on_whole_factors_is_exact_and_one_that_cuts_them_is_dense():
    z, keep = 60.0 * normal(2, 3), jnp.array([True, False])
    rows = compiled(m.Masked(m.Categorical(), keep).root, z)
    assert rows.inverse is None
    c = compiled(m.Categorical().apply, z, normal(2, 3, seed=1))
    np.testing.assert_allclose(
        *compiled(
            lambda: (rows.unit_lift(c).reshape(2, 2)[0], m.Categorical().root(z[0]).unit_lift(c[0]))
        ),
        rtol=1e-12,
    )
    cut = m.Masked(m.Categorical(), jnp.array([[True, True, False]]))
    assert jax.eval_shape(cut.root, z).inverse is not None
    covariance = positive_definite(3)
    kept = m.Masked(m.Gaussian(covariance), jnp.array([True, True, False]))
    np.testing.assert_allclose(
        dense(kept, normal(3))[:2, :2], np.linalg.inv(covariance)[:2, :2], rtol=1e-12
    )


def test_weight_may_be_traced():
    z = normal(2)
    value = jax.jit(lambda w: m.Weighted(m.Euclidean(), w).root(z).log_scale)
    np.testing.assert_allclose(value(4.0), np.log(2.0), rtol=1e-14)
    assert np.isnan(value(-1.0)).all() and np.isnan(value(0.0)).all()


# Messages

THREE, KEY = normal(3), jax.random.key(0)
REFUSED = {
    "euclidean scale": (
        lambda: m.Euclidean(-1.0),
        r"Euclidean\(scale=-1\.0\): scale must be positive and finite, e\.g\. Euclidean\(scale=1\)",
    ),
    "gaussian negative": (
        lambda: m.Gaussian(-1.0),
        r"Gaussian\(covariance=-1\.0\).*positive variance.*e\.g\. Gaussian\(covariance=0\.25\)",
    ),
    "gaussian indefinite": (
        lambda: m.Gaussian(jnp.array([[1.0, 2.0], [2.0, 1.0]])),
        "positive definite matrix",
    ),
    "gaussian rectangular": (lambda: m.Gaussian(jnp.ones((2, 3))), "positive definite matrix"),
    "gaussian last axis": (
        lambda: m.Gaussian(jnp.ones(2)).root(THREE),
        r"2 entries on their last axis.*\(3,\)",
    ),
    "gaussian tree": (
        lambda: m.Gaussian(jnp.ones(2)).root({"a": THREE, "b": THREE}),
        r"one array of means.*Product",
    ),
    "gaussian targets": (
        lambda: m.Gaussian().likelihood_lift(THREE, jnp.ones(2)),
        r"Gaussian targets must have the shape \(3,\)",
    ),
    "poisson targets": (
        lambda: m.Poisson().likelihood_lift(THREE, {"a": 1}),
        "Poisson targets must have the s",
    ),
    "bernoulli targets": (
        lambda: m.Bernoulli().likelihood_lift({"a": THREE}, THREE),
        "Bernoulli targets must have the structure",
    ),
    "categorical scalar": (lambda: m.Categorical().root(jnp.asarray(1.0)), "use Bernoulli"),
    "categorical targets": (
        lambda: m.Categorical().likelihood_lift(THREE, jnp.array([1, 2])),
        "integer classes of shape",
    ),
    "mean scale names": (
        lambda: m.GaussianMeanScale().root(THREE),
        r"takes outputs \{'mean': \.\.\., 'log_scale': \.\.\.\}.*one array",
    ),
    "mean scale shapes": (
        lambda: m.GaussianMeanScale().root({"mean": THREE, "log_scale": THREE[:2]}),
        r"one shape, got \(3,\) and \(2,\)",
    ),
    "mean covariance shapes": (
        lambda: m.GaussianMeanCovariance().root({"mean": THREE, "covariance": THREE}),
        r"shape \(\.\.\., d, d\), got",
    ),
    "log partition": (
        lambda: m.ExponentialFamily(3),
        r"ExponentialFamily\(log_partition=3\): log_partition must be a function, e\.g\.",
    ),
    "sampler": (
        lambda: m.ExponentialFamily(jnp.sum, sampler=3),
        r"ExponentialFamily\(sampler=3\): sampler must be a function",
    ),
    "log partition shape": (
        lambda: m.ExponentialFamily(lambda z: z).root(THREE),
        r"must return one real number.*shape \(3,\)",
    ),
    "phi": (lambda: m.Bregman(None), r"Bregman\(phi=None\): phi must be a function"),
    "rho": (lambda: m.Divergence("kl"), r"Divergence\(rho='kl'\): rho must be a function"),
    "loss": (lambda: m.LossHessian(1), r"LossHessian\(loss=1\): loss must be a function"),
    "loss targets": (
        lambda: m.LossHessian(lambda z, y: jnp.sum(z * y)).root(THREE),
        "takes targets, and none were given",
    ),
    "spectrum": (
        lambda: m.LossHessian(jnp.sum, "clip"),
        r"LossHessian\(spectrum='clip'\): spectrum must be Refuse\(\), Clip\(\) or Absolute\(\)",
    ),
    "matrix_fn": (
        lambda: m.Riemannian(jnp.eye(2)),
        r"Riemannian\(matrix_fn=.*\): matrix_fn must be a function",
    ),
    "matrix_fn shape": (
        lambda: m.Riemannian(lambda z: jnp.eye(2)).root(THREE),
        r"shape \(3, 3\) .*got float64 of shape \(2, 2\)",
    ),
    "family": (
        lambda: m.SampledFisher(m.Euclidean(), KEY),
        r"SampledFisher\(family=Euclidean.*: family must be a likelihood to draw from, e\.g\.",
    ),
    "draws": (
        lambda: m.SampledFisher(m.Bernoulli(), KEY, draws=0),
        r"SampledFisher\(draws=0\): draws must be an integer of at least 1, e\.g\.",
    ),
    "empirical": (
        lambda: m.EmpiricalFisher(0),
        r"EmpiricalFisher\(loss=0\): loss must be a function",
    ),
    "scores weights": (
        lambda: m.Scores(jnp.array([1.0, -1.0])),
        r"Scores\(weights=\[ 1\. -1\.\]\): weights must be a vector of non-negative weights",
    ),
    "scores matrix": (lambda: m.Scores(jnp.ones((2, 2))), "a vector of non-negative weights"),
    "scores shape": (lambda: m.Scores(jnp.ones(2)).root(THREE), r"got \(3,\) and \(2,\)"),
    "scores rows": (lambda: m.Scores().root(normal(2, 2)), r"shape \(N,\)"),
    "wasserstein names": (lambda: m.WassersteinGaussian().root({"mean": THREE}), "'scale': ..."),
    "wasserstein shapes": (
        lambda: m.WassersteinGaussian().root({"mean": THREE, "scale": THREE[:1]}),
        "one shape",
    ),
    "edges": (
        lambda: m.WassersteinGraph(((0, 1), (1, 0))),
        r"WassersteinGraph\(edges=\(\(0, 1\), \(1, 0\)\)\).*each pair once, e\.g\. WassersteinGraph",
    ),
    "edges loop": (lambda: m.WassersteinGraph(((0, 0),)), "two different vertices"),
    "edge weights": (
        lambda: m.WassersteinGraph(((0, 1),), jnp.array([-1.0])),
        r"WassersteinGraph\(weights=\[-1\.\]\): weights must be 1 positive weights, one per edge",
    ),
    "graph mean": (
        lambda: m.WassersteinGraph(((0, 1),), mean="log"),
        r"mean='log'\): mean must be LogarithmicMean\(\) or ArithmeticMean\(\)",
    ),
    "vertex": (
        lambda: m.WassersteinGraph(((0, 5),)).root(THREE),
        "names vertex 5, but the outputs have 3",
    ),
    "product metrics": (
        lambda: m.Product({"a": 1}),
        r"Product\(metrics=1\): metrics must be a tree of metrics",
    ),
    "product scores": (
        lambda: m.Product((m.Scores(),)),
        r"Scores is one form on the outputs of the whole batch.*Weighted\(Scores\(\), 0\.5\)",
    ),
    "product structure": (
        lambda: m.Product({"a": m.Euclidean()}).root({"b": THREE}),
        "needs one metric for each part of the outputs",
    ),
    "product likelihood": (
        lambda: m.ProductLikelihood((m.Euclidean(),)),
        r"ProductLikelihood\(metrics=Euclidean.*: metrics must be a tree of likelihoods.*Product",
    ),
    "sum": (
        lambda: m.Sum(m.Euclidean()),
        r"Sum\(metrics=Euclidean.*: metrics must be a tuple of metrics, e\.g\. Sum\(\(Categorical",
    ),
    "sum of nothing": (lambda: m.Sum(()), r"Sum\(metrics=\(\)\): metrics must be a tuple"),
    "sum of numbers": (lambda: m.Sum((1.0,)), r"Sum\(metrics=1\.0\): metrics must be a tuple"),
    "sum scores": (lambda: m.Sum((m.Scores(), m.Euclidean())), "whole batch"),
    "weight": (
        lambda: m.Weighted(m.Euclidean(), -1.0),
        r"weight=-1\.0\): weight must be positive.*e\.g\. Weighted\(Euclidean\(\), 0\.5\)",
    ),
    "weighted metric": (
        lambda: m.Weighted(3, 1.0),
        r"Weighted\(metric=3\): metric must be a metric",
    ),
    "mask": (
        lambda: m.Masked(m.Euclidean(), jnp.ones(3)),
        r"Masked\(mask=\[1\. 1\. 1\.\]\): mask must be booleans, e\.g\. Masked",
    ),
    "masked metric": (lambda: m.Masked(3, True), r"Masked\(metric=3\): metric must be a metric"),
    "mask shape": (
        lambda: m.Masked(m.Euclidean(), jnp.ones(2, bool)).root(THREE),
        r"shape \(2,\) does not fit outputs of shape \(3,\)",
    ),
    "mask structure": (
        lambda: m.Masked(m.Euclidean(), {"a": True}).root({"b": THREE}),
        "does not fit the outputs",
    ),
    "mask scores": (lambda: m.Masked(m.Scores(), True), "whole batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_corrected_call(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_family_without_a_sampler_a_divergence_or_a_log_loss_raises():
    with pytest.raises(TypeError, match="sampler=lambda key, z"):
        m.ExponentialFamily(jnp.sum).sample(KEY, THREE)
    with pytest.raises(TypeError, match="Poisson is a likelihood without a closed-form log-loss"):
        m.Poisson().log_loss(THREE, THREE)
    with pytest.raises(TypeError, match="Riemannian is a metric without a divergence"):
        m.Riemannian(jnp.diag).divergence(THREE, THREE)


indefinite = {"mean": jnp.zeros(2), "covariance": jnp.array([[1.0, 2.0], [2.0, 1.0]])}
COMPLAINTS = {
    "bregman": (
        m.Bregman(lambda z: -jnp.sum(z**2)),
        THREE,
        r"phi.*eigenvalues go from -2 to -2\. phi must be convex",
    ),
    "exponential family": (
        m.ExponentialFamily(lambda z: -jnp.sum(z**2)),
        THREE,
        "log_partition.*from -2 to -2",
    ),
    "divergence indefinite": (
        m.Divergence(lambda u, z: jnp.sum((u - z) ** 2 * jnp.array([1.0, 1.0, -1.0]))),
        THREE,
        "from -2 to 2",
    ),
    "divergence slope": (
        m.Divergence(lambda u, z: jnp.sum(u**2) - jnp.sum(z**2)),
        THREE,
        r"not a divergence: rho\(z, z\) = 0 and its gradient",
    ),
    "divergence value": (
        m.Divergence(lambda u, z: 1 + jnp.sum((u - z) ** 2)),
        THREE,
        r"rho\(z, z\) = 1 ",
    ),
    "loss hessian": (
        m.LossHessian(lambda z: -jnp.sum(z**2)),
        THREE,
        r"from -2 to -2\. Use LossHessian\(loss, spectrum=Clip\(\)\)",
    ),
    "riemannian asymmetric": (
        m.Riemannian(lambda z: jnp.triu(jnp.ones((3, 3)))),
        THREE,
        r"not symmetric.*max \|M - Mᵀ\| = 1 where max \|M\| = 1",
    ),
    "riemannian indefinite": (
        m.Riemannian(lambda z: jnp.diag(jnp.array([1.0, 2.0, -3.0]))),
        THREE,
        "from -3 to 2",
    ),
    "riemannian nan": (
        m.Riemannian(lambda z: jnp.full((3, 3), jnp.nan)),
        THREE,
        "9 of its 9 entries are NaN",
    ),
    "covariance": (
        m.GaussianMeanCovariance(),
        indefinite,
        "covariance is not positive semi-definite.*from -1 to 3",
    ),
    "transport": (
        m.WassersteinGaussianCovariance(),
        indefinite,
        "covariance is not positive semi-definite.*from -1 to 3",
    ),
    "graph": (
        m.WassersteinGraph(((0, 1), (1, 2))),
        jnp.array([2.0, -1.0, 0.0]),
        r"go from -1 to 2: return softmax\(logits\)",
    ),
    "product": (
        m.Product((m.Bregman(lambda z: -jnp.sum(z**2)), m.Euclidean())),
        (THREE, THREE),
        "phi must be convex",
    ),
    "sum": (
        m.Sum((m.Euclidean(), m.Bregman(lambda z: -jnp.sum(z**2)))),
        THREE,
        "phi must be convex",
    ),
    "weighted": (m.Weighted(m.Bregman(lambda z: -jnp.sum(z**2)), 2.0), THREE, "phi must be convex"),
    "masked": (m.Masked(m.Bregman(lambda z: -jnp.sum(z**2)), True), THREE, "phi must be convex"),
}


@pytest.mark.parametrize("name", COMPLAINTS)
def test_what_is_not_a_metric_has_a_nan_root_and_a_complaint(name):
    metric, z, message = COMPLAINTS[name]
    root = eqx.filter_jit(metric.root)(z)
    assert any(bool(jnp.any(jnp.isnan(x))) for x in jax.tree.leaves(root))
    assert re.search(message, metric.complaint(z)), metric.complaint(z)


def test_a_traced_bad_covariance_or_weight_is_named():
    bad = jnp.array([[1.0, 2.0], [2.0, 1.0]])
    assert np.isnan(jax.jit(lambda s: m.Gaussian(s).root(jnp.ones(2)).cholesky)(bad)).any()
    metric = eqx.tree_at(
        lambda x: x.weight, m.Weighted(m.Euclidean(), jnp.asarray(1.0)), jnp.asarray(-2.0)
    )
    assert "weight=-2.0" in metric.complaint(THREE)
    scores = eqx.tree_at(lambda x: x.weights, m.Scores(jnp.ones(3)), jnp.array([1.0, -1.0, 1.0]))
    assert np.isnan(scores.root(THREE).log_scale).any() and "non-negative" in scores.complaint(
        THREE
    )
