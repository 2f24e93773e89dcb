"""One undamped natural gradient step on a generalised linear model with canonical link is the IRLS
step of statsmodels.
"""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb
from pullback_lab.papers.ours import glm, saturation

NAMES = sorted(glm.FAMILIES)


def statsmodels_step(name, x, y, beta, **options):
    """One iteration from beta. It warns that one iteration is not enough, which is the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import statsmodels.api as sm

        family = {"logistic": sm.families.Binomial, "poisson": sm.families.Poisson}[name]()
        return (
            sm.GLM(y, x, family=family, **options).fit(maxiter=1, start_params=beta, tol=0.0).params
        )


@pytest.mark.parametrize("name", NAMES)
def test_one_step_is_that_of_statsmodels(name):
    x, y, beta = glm.data(name)
    expected = statsmodels_step(name, x, y, beta)
    assert np.linalg.norm(expected - beta) > 0.1
    np.testing.assert_allclose(
        glm.natural_step(glm.FAMILIES[name], x, y, beta), expected, rtol=1e-12
    )


@pytest.mark.parametrize("name", NAMES)
def test_one_step_of_our_own_irls_is_that_of_statsmodels(name):
    x, y, beta = glm.data(name)
    np.testing.assert_allclose(
        glm.irls_step(glm.FAMILIES[name], x, y, beta),
        statsmodels_step(name, x, y, beta),
        rtol=1e-12,
    )


def test_one_step_with_weights_is_that_of_statsmodels(rng):
    x, y, beta = glm.data("poisson")
    weights = rng.integers(0, 4, len(y)).astype(float)
    expected = statsmodels_step("poisson", x, y, beta, freq_weights=weights)
    np.testing.assert_allclose(
        glm.natural_step(glm.FAMILIES["poisson"], x, y, beta, pb.Weights(weights)),
        expected,
        rtol=1e-11,
    )


def test_the_converged_fit_is_that_of_statsmodels():
    import statsmodels.api as sm

    x, y, _ = glm.data("logistic")
    beta = np.zeros(x.shape[1])
    for _ in range(8):
        beta = glm.natural_step(glm.FAMILIES["logistic"], x, y, beta)
    np.testing.assert_allclose(
        beta, sm.GLM(y, x, family=sm.families.Binomial()).fit(tol=1e-14).params, rtol=1e-9
    )


def test_logistic_by_hand():
    """At β = 0, x = (1, 1), y = (1, 0), both variances are 1/4: the step is the regression of ±2 on
    a constant, 0; with y = (1, 1) it is 2.
    """
    x, family = np.ones((2, 1)), glm.FAMILIES["logistic"]
    np.testing.assert_allclose(
        glm.natural_step(family, x, np.array([1.0, 0.0]), np.zeros(1)), [0.0], atol=1e-15
    )
    np.testing.assert_allclose(
        glm.natural_step(family, x, np.array([1.0, 1.0]), np.zeros(1)), [2.0], rtol=1e-14
    )


# ---- The same model, saturated ----


@pytest.mark.parametrize("case", saturation.CASES)
def test_saturation_against_a_thousand_digits(case):
    x, z, y = saturation.data(case)
    np.testing.assert_allclose(
        saturation.direction(x, z, y), saturation.reference(x, z, y), rtol=0, atol=1e-12
    )


def test_saturation_by_hand():
    """Two parameters, one sample x = (3, 4), right by a logit of 800: δ = x⁺ (-1/φ(800)) = -(3,
    4)/25.
    """
    for sign in (1.0, -1.0):
        x, z, y = np.array([[3.0, 4.0]]), np.array([sign * 800.0]), np.array([(1 + sign) / 2])
        np.testing.assert_allclose(
            saturation.direction(x, z, y), -sign * np.array([3.0, 4.0]) / 25, rtol=1e-14
        )
        np.testing.assert_allclose(
            saturation.reference(x, z, y), -sign * np.array([3.0, 4.0]) / 25, rtol=1e-14
        )


def test_saturation_reference_is_the_textbook_formula_where_that_works(rng):
    x, z = rng.standard_normal((9, 3)), rng.standard_normal(9)
    y = (rng.uniform(size=9) < 0.5).astype(float)
    np.testing.assert_allclose(saturation.reference(x, z, y), saturation.naive(x, z, y), rtol=1e-12)
    np.testing.assert_allclose(saturation.direction(x, z, y), saturation.naive(x, z, y), rtol=1e-12)


def test_saturation_of_a_loss_that_underflows_is_reported():
    """With a loss of one's own the differential underflows, and the result says so: leave the loss
    out.
    """
    x, z, y = saturation.data(next(iter(saturation.CASES)))
    loss = lambda z, y: jnp.logaddexp(0.0, -(2 * y - 1) * z)
    batch = (jnp.asarray(x), jnp.asarray(z)), jnp.asarray(y)
    ng = pb.natural_gradient(
        pb.Composite(saturation.logits, loss=loss, metric=pb.metric.Bernoulli()),
        jnp.zeros(8),
        batch,
        throw=False,
    )
    assert bool(ng.result == pb.RESULTS.saturated)
