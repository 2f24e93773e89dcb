"""The logarithm of a loss, accurate where the loss underflows, and which metrics declare it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry_metrics import compiled, normal

from pullback import metric as m
from pullback._base.tree import structure

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
