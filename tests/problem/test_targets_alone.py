"""Targets of a model without data, and complex targets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance, normal

import pullback as pb
from pullback import testing

PARAMS = {"mean": normal(3), "log_std": 0.1 * normal(3, seed=1)}
NOISE = normal(40, 3, seed=2)


def gaussian(params):
    return {"mean": params["mean"], "log_scale": params["log_std"]}


def elbo(z, noise):
    """A stochastic bound: the mean of an energy over reparametrised draws, minus the entropy."""
    draws = z["mean"][None, :] + jnp.exp(z["log_scale"])[None, :] * noise
    energy = jnp.mean(jnp.sum(jnp.cosh(draws - 1.0), axis=1))
    return energy - jnp.sum(z["log_scale"])


ELBO = pb.Composite(gaussian, elbo, pb.metric.GaussianMeanScale())


def test_targets_without_inputs_are_the_noise_of_an_elbo():
    """Against the Fisher metric of a Gaussian, diag(1/s², 2/s²), in plain JAX."""
    ng = pb.natural_gradient(ELBO, PARAMS, (None, NOISE))
    value, slope = jax.value_and_grad(lambda p: elbo(gaussian(p), NOISE))(PARAMS)
    s = jnp.exp(PARAMS["log_std"])
    assert abs(float(ng.value - value)) < 1e-14
    np.testing.assert_allclose(ng.vector["mean"], slope["mean"] * s**2, rtol=1e-12)
    np.testing.assert_allclose(ng.vector["log_std"], slope["log_std"] / 2, rtol=1e-12)
    expected = testing.reference_natural_gradient(ELBO, PARAMS, (None, NOISE))
    assert distance(ng.vector, expected.vector) < 1e-12


def test_targets_without_inputs_may_be_a_key():
    def draws(z, key):
        return elbo(z, jax.random.normal(key, (40, 3)))

    problem = pb.Composite(gaussian, draws, pb.metric.GaussianMeanScale())
    key = jax.random.key(3)
    found = pb.natural_gradient(problem, PARAMS, (None, key))
    noise = jax.random.normal(key, (40, 3))
    expected = pb.natural_gradient(ELBO, PARAMS, (None, noise))
    assert distance(found.vector, expected.vector) < 1e-13


def test_training_on_noise():
    opt = pb.NaturalGradientDescent(ELBO, step=pb.step.LevenbergMarquardt())
    _, _, record = opt.step(PARAMS, opt.init(PARAMS), (None, NOISE))
    assert record.accepted and record.loss_after < record.loss
    fitted = pb.fit(opt, PARAMS, (None, NOISE), 30)
    slope = jax.grad(lambda p: elbo(gaussian(p), NOISE))(fitted.params)
    assert max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(slope)) < 1e-6
    batches = [(None, normal(40, 3, seed=seed)) for seed in range(3)]
    assert len(pb.fit(opt, PARAMS, iter(batches), 3).history) == 3
    drawn = lambda key: (None, jax.random.normal(key, (40, 3)))
    sampled = pb.fit(opt, PARAMS, drawn, 3, key=jax.random.key(0))
    assert np.all(np.isfinite(sampled.history["loss"]))


def test_a_flow_an_examination_and_invariance_on_noise():
    sol = pb.flow(ELBO, PARAMS, (None, NOISE), t1=0.1)
    before, after = (elbo(gaussian(p), NOISE) for p in (PARAMS, sol.params))
    assert after < before
    assert pb.examine(ELBO, PARAMS, (None, NOISE)).rank == 6
    assert (
        pb.check_invariance(ELBO, PARAMS, (None, NOISE), reparametrisation=pb.Units(60.0)).order
        > 1.9
    )


def test_the_metric_of_a_model_without_data_sees_its_targets():
    loss = lambda z, y: jnp.sum(y * z**2) / 2
    problem = pb.Composite(lambda p: 2.0 * p, loss, pb.metric.LossHessian(loss))
    y = jnp.asarray([1.0, 3.0])
    found = pb.pullback(problem, jnp.ones(2), (None, y)).matrix()
    np.testing.assert_allclose(found, np.diag(4 * np.asarray(y)))


def test_a_likelihood_without_data_is_that_of_one_sample():
    problem = pb.Composite(lambda p: p**2, None, pb.metric.Poisson())
    p, y = jnp.asarray([0.5, -1.0]), jnp.asarray([2.0, 0.0])
    ng = pb.natural_gradient(problem, p, (None, y))
    z = np.asarray(p) ** 2
    np.testing.assert_allclose(ng.value, np.sum(np.exp(z) - np.asarray(y) * z), rtol=1e-14)
    slope = (np.exp(z) - np.asarray(y)) * 2 * np.asarray(p)
    np.testing.assert_allclose(ng.vector, slope / (4 * z * np.exp(z)), rtol=1e-12)
    with pytest.raises(RuntimeError, match=r"Targets \[-2.*Poisson admits counts"):
        pb.natural_gradient(problem, p, (None, -y))


def test_a_loss_left_out_without_targets_is_refused_with_both_ways_to_write_it():
    problem = pb.Composite(lambda p: p**2, None, pb.metric.Poisson())
    with pytest.raises(ValueError, match=r"batch=\(None, targets\), or Composite\(model, loss="):
        pb.natural_gradient(problem, jnp.ones(2), None)


def test_a_loss_of_targets_alone_must_be_a_scalar():
    per_draw = pb.Composite(gaussian, lambda z, noise: jnp.sum(noise, axis=1) * z["mean"][0])
    with pytest.raises(ValueError, match="loss must return a scalar, got shape"):
        pb.natural_gradient(per_draw, PARAMS, (None, NOISE))


X = normal(6, 2)
W = normal(2, 2, seed=1)
SPECTRUM = np.asarray(normal(6, seed=3)) + 1j * np.asarray(normal(6, seed=4))


def amplitude(params, x):
    return jnp.tanh(x @ params)


def misfit(z, y):
    """The distance of real outputs (re, im) to complex data."""
    return jnp.abs(jax.lax.complex(z[:, 0], z[:, 1]) - y) ** 2 / 2


def real_misfit(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_targets_are_data(dtype):
    y = SPECTRUM.astype(dtype)
    pairs = jnp.stack([jnp.asarray(y).real, jnp.asarray(y).imag], -1).astype(float)
    wide = lambda z, y: misfit(z, y.astype(complex))
    found = pb.natural_gradient(pb.Composite(amplitude, wide), W, (X, y))
    expected = pb.natural_gradient(pb.Composite(amplitude, real_misfit), W, (X, pairs))
    assert distance(found.vector, expected.vector) < 1e-13
    reference = testing.reference_natural_gradient(pb.Composite(amplitude, wide), W, (X, y))
    assert distance(found.vector, reference.vector) < 1e-12


def test_training_and_examining_with_complex_targets():
    problem = pb.Composite(amplitude, misfit)
    pairs = jnp.stack([SPECTRUM.real, SPECTRUM.imag], -1)
    real = pb.Composite(amplitude, real_misfit)
    fitted = [
        pb.fit(pb.NaturalGradientDescent(p), W, (X, y), 3).params
        for p, y in ((problem, SPECTRUM), (real, pairs))
    ]
    assert distance(*fitted) < 1e-12
    assert pb.examine(problem, W, (X, SPECTRUM)).resolved_rank == 4
    weighted = pb.Composite(amplitude, misfit, measure=pb.Weights(jnp.asarray([1.0] * 5 + [0.0])))
    bad = jnp.asarray(SPECTRUM).at[5].set(jnp.nan)
    assert np.all(np.isfinite(pb.natural_gradient(weighted, W, (X, bad)).vector))


def test_a_nan_in_complex_targets_is_named():
    bad = jnp.asarray(SPECTRUM).at[2].set(complex(0, np.nan))
    with pytest.raises(RuntimeError, match=r"batch.*targets \(first at index \(2,\)\)"):
        pb.natural_gradient(pb.Composite(amplitude, misfit), W, (X, bad))


def test_a_complex_loss_is_refused_with_the_cure():
    problem = pb.Composite(amplitude, lambda z, y: (z[:, 0].astype(complex) - y) ** 2)
    with pytest.raises(ValueError, match=r"loss must return real numbers, got complex128.*\.real"):
        pb.natural_gradient(problem, W, (X, SPECTRUM))


@pytest.mark.parametrize(
    "metric", [pb.metric.Gaussian(), pb.metric.Categorical(), pb.metric.Bernoulli()], ids=repr
)
def test_likelihoods_refuse_complex_targets(metric):
    y = jnp.stack([SPECTRUM, SPECTRUM], -1)
    with pytest.raises(ValueError, match=r"targets must be .*complex128"):
        pb.natural_gradient(pb.Composite(amplitude, None, metric), W, (X, y))
