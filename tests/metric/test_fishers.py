"""Three Fisher metrics: the true one, the sampled one, the empirical one; and scores."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry_metrics import METRICS, compiled, dense, normal

from pullback import metric as m
from pullback._base.tree import all_finite


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
