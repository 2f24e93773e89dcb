"""Targets that a likelihood does not admit are refused by name; soft ones need not sum to one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb

X = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
WIDE = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)))
NARROW = WIDE[:, :1]


def problem(metric, loss=None):
    return pb.Composite(lambda p, x: x @ p, loss, metric)


BAD = {
    "labels from 1": (pb.metric.Categorical(), WIDE, jnp.asarray([1, 2, 3, 1, 2]), "Sample 2"),
    "a negative label": (pb.metric.Categorical(), WIDE, jnp.asarray([0, -1, 2, 1, 2]), "Sample 1"),
    "negative chances": (pb.metric.Categorical(), WIDE, jnp.eye(5, 3) - 0.1, "Sample 0"),
    "plus and minus one": (
        pb.metric.Bernoulli(),
        NARROW,
        jnp.asarray([[1.0], [1.0], [-1.0], [1.0], [-1.0]]),
        "Sample 2",
    ),
    "a negative count": (
        pb.metric.Poisson(),
        NARROW,
        jnp.asarray([[1.0], [0.0], [3.0], [-2.0], [0.0]]),
        "Sample 3",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_targets_that_are_not_admitted_are_named(name):
    metric, params, targets, where = BAD[name]
    with pytest.raises(RuntimeError, match=rf"does not admit.*{where}: .* admits "):
        pb.natural_gradient(problem(metric), params, (X, targets))


def test_a_step_with_such_targets_is_not_taken():
    metric, params, targets, _ = BAD["labels from 1"]
    opt = pb.NaturalGradientDescent(problem(metric))
    moved, _, record = opt.step(params, opt.init(params), (X, targets))
    assert record.result == pb.RESULTS.bad_targets
    assert record.failed and jnp.array_equal(moved, params)


def test_a_sample_of_weight_zero_may_have_any_target():
    measure = pb.Weights(jnp.asarray([1.0, 1.0, 0.0, 1.0, 1.0]))
    weighted = pb.Composite(lambda p, x: x @ p, None, pb.metric.Categorical(), measure)
    ng = pb.natural_gradient(weighted, WIDE, (X, jnp.asarray([0, 1, 7, 1, 2])))
    assert ng.result == pb.RESULTS.successful


def test_a_product_of_families_admits_what_each_of_them_does():
    metric = pb.metric.ProductLikelihood({"a": pb.metric.Bernoulli(), "b": pb.metric.Poisson()})
    model = lambda p, x: {"a": (x @ p)[:, 0], "b": (x @ p)[:, 1]}
    two = pb.Composite(model, None, metric)
    targets = {"a": jnp.asarray([0.0, 1.0, 0.5, 1.0, 0.0]), "b": jnp.arange(5.0)}
    assert pb.natural_gradient(two, WIDE, (X, targets)).result == pb.RESULTS.successful
    with pytest.raises(RuntimeError, match="Bernoulli: numbers from 0 to 1; Poisson: counts"):
        pb.natural_gradient(two, WIDE, (X, {"a": targets["a"], "b": -targets["b"]}))


@pytest.mark.parametrize("inverse", [pb.MoorePenrose(), pb.Tikhonov(1e-2)], ids=str)
@pytest.mark.parametrize("family", ["Categorical", "ExponentialFamily"])
def test_soft_targets_of_any_sum_are_those_of_the_same_loss(family, inverse):
    """The closed form of the likelihood against the loss handed over, which is differentiated."""
    log_partition = lambda z: jax.nn.logsumexp(z, axis=-1)
    metric = (
        pb.metric.Categorical()
        if family == "Categorical"
        else pb.metric.ExponentialFamily(log_partition)
    )
    targets = jnp.asarray(np.random.default_rng(2).uniform(size=(5, 3)))

    def loss(z, y):
        # The two differ by what a sum of y that is not one multiplies.
        total = jnp.sum(y, axis=-1) if family == "Categorical" else 1.0
        return total * log_partition(z) - jnp.sum(y * z, axis=-1)

    own = pb.natural_gradient(problem(metric), WIDE, (X, targets), inverse=inverse)
    given = pb.natural_gradient(problem(metric, loss), WIDE, (X, targets), inverse=inverse)
    np.testing.assert_allclose(own.vector, given.vector, rtol=1e-11, atol=1e-12)
