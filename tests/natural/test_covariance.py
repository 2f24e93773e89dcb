"""Covariance and standard errors against the textbook formulas of regression, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb

RNG = np.random.default_rng(0)
N, D = 60, 3
X = np.column_stack([np.ones(N), RNG.normal(size=(N, D - 1)) * np.asarray([1.0, 1e3])])
BETA = np.asarray([0.3, -0.8, 5e-4])


def linear(params, x):
    return x[:, 0] * params["intercept"] + x[:, 1:] @ params["slopes"]


PARAMS = {"intercept": jnp.asarray(BETA[0]), "slopes": jnp.asarray(BETA[1:])}


def covariance_ols(x, y):
    beta = np.linalg.lstsq(x, y, rcond=None)[0]
    variance = np.sum((y - x @ beta) ** 2) / (x.shape[0] - x.shape[1])
    return variance, variance * np.linalg.inv(x.T @ x)


def information(weights):
    return np.linalg.inv(X.T @ (weights[:, None] * X))


@pytest.mark.parametrize("measure", [pb.Mean(), pb.Sum()], ids=repr)
def test_ordinary_least_squares(measure):
    y = X @ BETA + RNG.normal(size=N)
    variance, expected = covariance_ols(X, y)
    problem = pb.Composite(linear, metric=pb.metric.Euclidean(), measure=measure)
    metric = pb.pullback(problem, PARAMS, (jnp.asarray(X), jnp.asarray(y)))
    np.testing.assert_allclose(metric.covariance(dispersion=variance), expected, rtol=1e-10)
    errors = metric.standard_errors(dispersion=variance)
    np.testing.assert_allclose(errors["intercept"], np.sqrt(expected[0, 0]), rtol=1e-10)
    np.testing.assert_allclose(errors["slopes"], np.sqrt(np.diag(expected)[1:]), rtol=1e-10)
    # The variance as part of the likelihood.
    gaussian = pb.metric.Euclidean(1 / variance)
    own = pb.pullback(pb.Composite(linear, metric=gaussian, measure=measure), PARAMS, (X,))
    np.testing.assert_allclose(own.covariance(), expected, rtol=1e-10)


FAMILIES = {
    "logistic": (pb.metric.Bernoulli(), lambda z: np.exp(z) / (1 + np.exp(z)) ** 2),
    "Poisson": (pb.metric.Poisson(), np.exp),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("measure", [pb.Mean(), pb.Sum()], ids=repr)
def test_generalised_linear_models(name, measure):
    metric, variance = FAMILIES[name]
    expected = information(variance(X @ BETA))
    problem = pb.Composite(linear, metric=metric, measure=measure)
    found = pb.pullback(problem, PARAMS, (jnp.asarray(X),))
    np.testing.assert_allclose(found.covariance(), expected, rtol=1e-9)


def test_the_estimate_of_a_fit_has_the_spread_of_repeated_ones():
    """Logistic regression of many data sets: the spread of estimates is the standard error."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(400, 2)))
    truth = jnp.asarray([0.5, -1.0])
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())
    errors = pb.pullback(problem, truth, (x,)).standard_errors()
    p = 1 / (1 + np.exp(-np.asarray(x @ truth)))

    def estimate(y):
        beta = np.zeros(2)
        for _ in range(8):
            q = 1 / (1 + np.exp(-np.asarray(x) @ beta))
            step = np.linalg.solve(
                np.asarray(x).T @ ((q * (1 - q))[:, None] * np.asarray(x)),
                np.asarray(x).T @ (y - q),
            )
            beta = beta + step
        return beta

    spread = np.std([estimate(rng.random(400) < p) for _ in range(600)], axis=0)
    np.testing.assert_allclose(errors, spread, rtol=0.1)


def test_weights_are_repetitions():
    counts = RNG.integers(0, 4, N).astype(float)
    weighted = pb.Composite(linear, metric=pb.metric.Poisson(), measure=pb.Weights(counts))
    repeated = np.repeat(X, counts.astype(int), axis=0)
    expected = np.linalg.inv(repeated.T @ (np.exp(repeated @ BETA)[:, None] * repeated))
    found = pb.pullback(weighted, PARAMS, (jnp.asarray(X),))
    np.testing.assert_allclose(found.covariance(), expected, rtol=1e-9)
    # Normalised weights of as many observations.
    share = pb.Weights(counts / counts.sum())
    normal = pb.Composite(linear, metric=pb.metric.Poisson(), measure=share)
    found = pb.pullback(normal, PARAMS, (jnp.asarray(X),)).covariance(observations=counts.sum())
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_functions_of_the_estimate_by_the_delta_method():
    problem = pb.Composite(linear, metric=pb.metric.Poisson())
    metric = pb.pullback(problem, PARAMS, (jnp.asarray(X),))
    full = information(np.exp(X @ BETA))
    ratio = lambda p: {"ratio": p["intercept"] / p["slopes"][0]}
    h = np.asarray([1 / BETA[1], -BETA[0] / BETA[1] ** 2, 0.0])
    np.testing.assert_allclose(
        metric.standard_errors(ratio)["ratio"], np.sqrt(h @ full @ h), rtol=1e-9
    )
    rates = lambda p: jnp.exp(linear(p, jnp.asarray(X[:2])))
    h = np.exp(X[:2] @ BETA)[:, None] * X[:2]
    np.testing.assert_allclose(metric.covariance(rates), h @ full @ h.T, rtol=1e-9)


def test_parameters_that_are_not_identifiable_are_infinite_and_estimable_functions_finite():
    """Two intercepts: only their sum is determined."""
    model = lambda p, x: p["a"] + p["b"] + x @ p["slopes"]
    params = {"a": jnp.asarray(0.1), "b": jnp.asarray(0.2), "slopes": jnp.asarray(BETA[1:])}
    metric = pb.pullback(
        pb.Composite(model, metric=pb.metric.Poisson()), params, (jnp.asarray(X[:, 1:]),)
    )
    full = information(np.exp(X @ BETA))
    with pytest.warns(UserWarning, match=r"2 of 4 parameters are not identifiable \(\['a'\], \["):
        errors = metric.standard_errors()
    assert errors["a"] == np.inf and errors["b"] == np.inf
    np.testing.assert_allclose(errors["slopes"], np.sqrt(np.diag(full)[1:]), rtol=1e-9)
    with pytest.warns(UserWarning, match="their variance is infinite"):
        covariance = np.asarray(metric.covariance())
    assert np.isnan(covariance[0, 1:]).all() and covariance[0, 0] == np.inf
    np.testing.assert_allclose(covariance[2:, 2:], full[1:, 1:], rtol=1e-9)
    total = metric.standard_errors(lambda p: p["a"] + p["b"])
    np.testing.assert_allclose(total, np.sqrt(full[0, 0]), rtol=1e-9)
    with pytest.warns(UserWarning, match="1 of 1 values of the function"):
        assert metric.standard_errors(lambda p: p["a"] - p["b"]) == np.inf
    assert metric.standard_errors(lambda p: 0 * p["a"]) == 0


def test_more_parameters_than_samples_and_units():
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Euclidean())
    x = jnp.asarray(RNG.normal(size=(2, 4)))
    metric = pb.pullback(problem, jnp.zeros(4), (x,))
    with pytest.warns(UserWarning, match="4 of 4 parameters"):
        assert np.all(np.isinf(metric.standard_errors()))
    predicted = metric.covariance(lambda p: x @ p)
    np.testing.assert_allclose(predicted, np.eye(2), atol=1e-12)
    # What is identifiable does not depend on units.
    units = jnp.asarray([1e-9, 1.0, 1e9])
    scaled = pb.pullback(problem, jnp.zeros(3), (jnp.asarray(X) * units[None, :],))
    plain = pb.pullback(problem, jnp.zeros(3), (jnp.asarray(X),))
    np.testing.assert_allclose(scaled.standard_errors() * units, plain.standard_errors(), rtol=1e-9)


def test_observed_information_is_the_hessian_of_the_loss():
    """A probit model, whose expected and observed information differ."""
    y = (RNG.random(N) < 0.5).astype(float)
    cdf = lambda z: (1 + jax.scipy.special.erf(z / np.sqrt(2.0))) / 2
    loss = lambda z, y: -(y * jnp.log(cdf(z)) + (1 - y) * jnp.log(cdf(-z)))
    x = X[:, :2]
    beta = jnp.asarray(BETA[:2])
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.LossHessian(loss))
    found = pb.pullback(problem, beta, (jnp.asarray(x), jnp.asarray(y))).covariance()
    total = lambda p: jnp.sum(loss(jnp.asarray(x) @ p, jnp.asarray(y)))
    expected = np.linalg.inv(np.asarray(jax.hessian(total)(beta)))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_a_model_without_data_is_one_observation_and_carried_leaves_stay_out():
    problem = pb.Composite(lambda p: 2.0 * p["w"], metric=pb.metric.Euclidean())
    metric = pb.pullback(problem, {"w": jnp.ones(2), "n": jnp.arange(2), "s": "x"})
    errors = metric.standard_errors()
    np.testing.assert_allclose(errors["w"], 0.5)
    assert errors["n"] is None and errors["s"] is None
    np.testing.assert_allclose(metric.standard_errors(observations=4.0)["w"], 0.25)


def test_inside_jit_nothing_is_warned_of():
    problem = pb.Composite(lambda p, x: x * (p[0] + p[1]), metric=pb.metric.Euclidean())
    found = jax.jit(lambda p: pb.pullback(problem, p, (jnp.ones(3),)).standard_errors())
    assert np.all(np.isinf(found(jnp.ones(2))))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dispersion": -1.0}, r"covariance\(dispersion=-1\.0\): dispersion must be positive"),
        ({"observations": 0}, "observations must be positive"),
        ({"rtol": -1.0}, "rtol must be finite and >= 0"),
        ({"of": lambda p: 3}, "of must return floating arrays"),
    ],
)
def test_what_is_refused(options, words):
    metric = pb.pullback(pb.Composite(linear, metric=pb.metric.Poisson()), PARAMS, (X,))
    with pytest.raises(ValueError, match=words):
        metric.standard_errors(**options)


def test_samples_of_weight_zero_alone_identify_nothing():
    problem = pb.Composite(linear, metric=pb.metric.Poisson(), measure=pb.Weights(jnp.zeros(N)))
    metric = pb.pullback(problem, PARAMS, (X,))
    with pytest.warns(UserWarning, match="not identifiable"):
        assert np.all(np.isinf(np.diag(metric.covariance())))


def test_what_is_not_finite_is_named_and_not_called_unidentifiable():
    problem = pb.Composite(linear, metric=pb.metric.Euclidean())
    x = jnp.asarray(X)
    with pytest.raises(RuntimeError, match=r"batch.inputs \(first at index \(2, 1\)"):
        pb.pullback(problem, PARAMS, (x.at[2, 1].set(jnp.nan),))
    bad = PARAMS | {"intercept": jnp.asarray(jnp.inf)}
    with pytest.raises(RuntimeError, match=r"params\['intercept'\]"):
        pb.pullback(problem, bad, (x,))
    root = pb.Composite(lambda p, x: jnp.sqrt(x @ p), metric=pb.metric.Euclidean())
    steep = lambda p: pb.pullback(root, p, (jnp.eye(2),))
    with pytest.raises(ValueError, match=r"NaN or an infinity in .* the Jacobian"):
        steep(jnp.zeros(2)).standard_errors()
    assert np.isnan(jax.jit(lambda p: steep(p).standard_errors())(jnp.zeros(2))).all()
