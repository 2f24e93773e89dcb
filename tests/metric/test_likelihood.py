"""The Fisher metric of a discrete distribution of one's own, against sums in NumPy and families."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, normal
from jax.scipy.special import gammaln
from registry_metrics import dense

import pullback as pb
from pullback import testing
from pullback.metric import Bernoulli, Categorical, Likelihood


def log_choose(n, y):
    return gammaln(n + 1.0) - gammaln(y + 1.0) - gammaln(n - y + 1.0)


def binomial(z, y):
    return log_choose(5.0, y) + y * jax.nn.log_sigmoid(z) + (5.0 - y) * jax.nn.log_sigmoid(-z)


def inflated(z, y):
    """Zero with probability σ(a), otherwise geometric on 0, ..., 7."""
    log_p = jax.nn.log_softmax(jnp.arange(8, dtype=z["b"].dtype) * z["b"])
    zero, rest = jax.nn.log_sigmoid(z["a"]), jax.nn.log_sigmoid(-z["a"])
    return jnp.where(y == 0, jnp.logaddexp(zero, rest + log_p[0]), rest + log_p[y])


def pair(z, y):
    """Two coupled binary variables."""
    every = jnp.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], z.dtype)
    energy = lambda y: y @ z[:2] + z[2] * y[0] * y[1]
    return energy(y) - jax.nn.logsumexp(jax.vmap(energy)(every))


CASES = {
    "binomial": (Likelihood(binomial, jnp.arange(6.0)), jnp.asarray(0.4), jnp.asarray(2.0)),
    "zero inflated": (
        Likelihood(inflated, jnp.arange(8)),
        {"a": jnp.asarray(-0.2), "b": jnp.asarray(-0.5)},
        jnp.asarray(3),
    ),
    "pair": (
        Likelihood(pair, jnp.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])),
        normal(3),
        jnp.asarray([1.0, 0.0]),
    ),
    "likeliest seen": (
        Likelihood(lambda z, y: jax.nn.log_softmax(z)[y], jnp.arange(3)),
        jnp.asarray([0.3, -1.0, 0.5]),
        jnp.asarray(2),
    ),
    "scores that depend on each other": (
        Likelihood(
            lambda z, y: jax.nn.log_softmax(jnp.arange(3, dtype=z.dtype) * jnp.sum(z))[y],
            jnp.arange(3),
        ),
        normal(4),
        jnp.asarray(0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_contract(name):
    metric, z, y = CASES[name]
    testing.check_metric(metric, z, y)


@pytest.mark.parametrize("name", CASES)
def test_the_sum_over_the_support_by_hand(name):
    metric, z, _ = CASES[name]
    flat, unravel = jax.flatten_util.ravel_pytree(z)
    total = np.zeros((flat.size, flat.size))
    for y in metric.values:
        log_p = lambda x, y=y: metric.logpmf(unravel(x), y)
        s = np.asarray(jax.grad(log_p)(flat))
        total += float(jnp.exp(log_p(flat))) * np.outer(s, s)
    np.testing.assert_allclose(dense(metric, z), total, atol=1e-14)


def test_a_binomial_is_as_in_the_books():
    metric, z, _ = CASES["binomial"]
    p = 1 / (1 + np.exp(-0.4))
    np.testing.assert_allclose(dense(metric, z), [[5 * p * (1 - p)]], rtol=1e-12)
    gap = 0.9
    q = 1 / (1 + np.exp(-gap))
    kl = 5 * (q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p)))
    np.testing.assert_allclose(metric.divergence(jnp.asarray(gap), z), kl, rtol=1e-12)


def test_draws_have_the_distribution():
    metric, z, _ = CASES["binomial"]
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(jax.vmap(lambda key: metric.sample(key, z))(keys))
    assert abs(drawn.mean() - 5 / (1 + np.exp(-0.4))) < 0.1


OWN = Likelihood(lambda z, y: jax.nn.log_softmax(z)[y], jnp.arange(3))
BINARY = Likelihood(
    lambda z, y: jnp.where(y == 1, jax.nn.log_sigmoid(z), jax.nn.log_sigmoid(-z)), jnp.arange(2)
)
X = normal(6, 2)
LABELS = jnp.asarray([0, 1, 2, 2, 1, 0])


@pytest.mark.parametrize("size", [1.0, 10.0, 40.0, 1000.0])
@pytest.mark.parametrize("inverse", [pb.MoorePenrose(), pb.Tikhonov(1e-2)], ids=repr)
def test_training_without_a_loss_is_that_of_the_family_also_saturated(size, inverse):
    """`Categorical` has exact references of its own."""
    params = size * normal(2, 3, seed=3)
    model = lambda p, x: x @ p
    labels = jnp.argmax(model(params, X), axis=1)
    found = pb.natural_gradient(
        pb.Composite(model, metric=OWN), params, (X, labels), inverse=inverse
    )
    expected = pb.natural_gradient(
        pb.Composite(model, metric=Categorical()), params, (X, labels), inverse=inverse
    )
    assert abs(float(found.value - expected.value)) <= 1e-12 * (1 + float(expected.value))
    assert distance(found.vector, expected.vector) < 1e-8
    assert int(found.stats.rank) == int(expected.stats.rank)


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_binary_outcomes_are_those_of_bernoulli(size):
    params = size * normal(2, seed=4)
    model = lambda p, x: x @ p
    labels = (model(params, X) > 0).astype(int)
    found = pb.natural_gradient(pb.Composite(model, metric=BINARY), params, (X, labels))
    truth = pb.Composite(model, metric=Bernoulli())
    expected = pb.natural_gradient(truth, params, (X, labels.astype(float)))
    assert distance(found.vector, expected.vector) < 1e-8


def test_wrong_labels_of_a_mild_model_are_those_of_the_family():
    params = 2.0 * normal(2, 3, seed=3)
    model = lambda p, x: x @ p
    found = pb.natural_gradient(pb.Composite(model, metric=OWN), params, (X, LABELS))
    truth = pb.Composite(model, metric=Categorical())
    assert distance(found.vector, pb.natural_gradient(truth, params, (X, LABELS)).vector) < 1e-9


def test_more_values_than_outputs_against_the_dense_reference():
    metric, _, _ = CASES["zero inflated"]
    model = lambda p, x: {"a": x @ p["a"], "b": x @ p["b"] - 0.5}
    params = {"a": normal(2), "b": 0.1 * normal(2, seed=1)}
    problem = pb.Composite(model, metric=metric)
    batch = (X, jnp.asarray([0, 0, 3, 1, 7, 2]))
    expected = testing.reference_natural_gradient(problem, params, batch)
    for solver in (pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal()):
        found = pb.natural_gradient(problem, params, batch, solver=solver)
        assert distance(found.vector, expected.vector) < 1e-9
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    fitted = pb.fit(opt, params, batch, 10)
    assert fitted.history["loss_after"][-1] < fitted.history["loss"][0]


def test_a_loss_of_ones_own_with_the_metric():
    params = normal(2, 3, seed=3)
    loss = lambda z, y: -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], axis=1)[:, 0]
    found = pb.natural_gradient(pb.Composite(lambda p, x: x @ p, loss, OWN), params, (X, LABELS))
    own = pb.natural_gradient(pb.Composite(lambda p, x: x @ p, None, OWN), params, (X, LABELS))
    assert distance(found.vector, own.vector) < 1e-10


def test_probabilities_that_do_not_sum_to_one_are_refused_with_the_sum():
    poisson = lambda z, y: y * z - jnp.exp(z) - gammaln(y + 1.0)
    short = Likelihood(poisson, jnp.arange(4.0))
    problem = pb.Composite(lambda p, x: x @ p, metric=short)
    batch = (X, jnp.zeros(6))
    total = sum(np.exp(-1.0) / math.factorial(y) for y in range(4))
    with pytest.raises(RuntimeError, match=f"the 4 values of the support sum to {total:.5f}"):
        pb.natural_gradient(problem, jnp.zeros(2), batch)
    whole = pb.Composite(lambda p, x: x @ p, metric=Likelihood(poisson, jnp.arange(40.0)))
    plain = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Poisson())
    found, expected = (pb.natural_gradient(p, jnp.zeros(2), batch) for p in (whole, plain))
    assert distance(found.vector, expected.vector) < 1e-10


def test_values_of_probability_zero_are_absent():
    def log_p(z, y):
        inside = jax.nn.log_softmax(z)[jnp.minimum(y, 1)]
        return jnp.where(y < 2, inside, -jnp.inf)

    found = dense(Likelihood(log_p, jnp.arange(3)), normal(2))
    np.testing.assert_allclose(found, dense(Categorical(), normal(2)), atol=1e-14)


def test_targets_outside_the_support_are_refused():
    problem = pb.Composite(lambda p, x: x @ p, metric=OWN)
    with pytest.raises(RuntimeError, match=r"Sample 2: .*3.*Likelihood admits the 3 values of its"):
        pb.natural_gradient(problem, normal(2, 3), (X, LABELS.at[2].set(3)))
    with pytest.raises(RuntimeError, match="Likelihood admits"):
        pb.natural_gradient(problem, normal(2, 3), (X, LABELS.astype(float) + 0.5))
    with pytest.raises(ValueError, match=r"must have the shape \(\) of a value of the support"):
        pb.natural_gradient(problem, normal(2, 3), (X, LABELS[:, None]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Likelihood(3, jnp.arange(2)), r"logpmf must be a function"),
        (lambda: Likelihood(binomial, 3.0), r"support must be an array with at least two values"),
        (lambda: Likelihood(binomial, jnp.zeros(1)), r"support must be an array with at least two"),
        (
            lambda: dense(Likelihood(lambda z, y: z, jnp.arange(2)), normal(3)),
            r"Likelihood\(logpmf=\.\.\.\) must return one real number per sample",
        ),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
