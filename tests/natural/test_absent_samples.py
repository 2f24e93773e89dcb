"""What is reported of samples of weight zero is their own; no result depends on them."""

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb

WEIGHTS = np.array([0.0, 1.0, 0.5, 0.0, 2.0])
X = np.random.default_rng(0).standard_normal((5, 2))
Y = np.arange(5.0)
PARAMS = jnp.asarray([0.3, 0.5])
MEASURE = pb.Weights(jnp.asarray(WEIGHTS))


def model(p, x):
    return jnp.tanh(x @ p)


def loss(z, y):
    return (z - y) ** 2 / 2


def jacobian(x):
    """J by hand: ∂tanh(x·p) = (1 - tanh²) x."""
    return (1 - np.tanh(x @ np.asarray(PARAMS)) ** 2)[:, None] * x


def projection(j, v):
    root = np.sqrt(WEIGHTS)
    return j @ np.linalg.pinv(root[:, None] * j) @ (root * v)


PROBLEM = pb.Composite(model, loss, measure=MEASURE)


def test_the_pushforward_of_every_sample_is_its_own():
    ng = pb.natural_gradient(PROBLEM, PARAMS, (jnp.asarray(X), jnp.asarray(Y)))
    j, z = jacobian(X), np.tanh(X @ np.asarray(PARAMS))
    np.testing.assert_allclose(ng.pushforward, projection(j, z - Y), rtol=1e-12)
    np.testing.assert_allclose(ng.pushforward, j @ np.asarray(ng.vector), rtol=1e-12)


def test_the_operator_too():
    g = pb.pullback(PROBLEM, PARAMS, (jnp.asarray(X),))
    j, v = jacobian(X), np.array([1.0, -2.0, 3.0, 4.0, 0.5])
    np.testing.assert_allclose(g.outputs, np.tanh(X @ np.asarray(PARAMS)), rtol=1e-14)
    np.testing.assert_allclose(g.pushforward(jnp.asarray([2.0, -1.0])), j @ [2.0, -1.0], rtol=1e-13)
    np.testing.assert_allclose(g.pull(jnp.asarray(v)), j.T @ v, rtol=1e-13)
    np.testing.assert_allclose(g.project(jnp.asarray(v)), projection(j, v), rtol=1e-12)
    np.testing.assert_allclose(g.matrix(), (j * WEIGHTS[:, None]).T @ j, rtol=1e-13)


def test_inputs_that_are_not_finite():
    x = X.copy()
    x[3, 1] = np.nan
    ng = pb.natural_gradient(PROBLEM, PARAMS, (jnp.asarray(x), jnp.asarray(Y)))
    same = pb.natural_gradient(PROBLEM, PARAMS, (jnp.asarray(X), jnp.asarray(Y)))
    np.testing.assert_array_equal(ng.vector, same.vector)
    expected = np.where(np.arange(5) == 3, 0.0, same.pushforward)
    np.testing.assert_array_equal(ng.pushforward, expected)
    g, v = pb.pullback(PROBLEM, PARAMS, (jnp.asarray(x),)), np.array([1.0, -2.0, 3.0, 4.0, 0.5])
    there = np.arange(5) != 3
    np.testing.assert_allclose(g.pull(jnp.asarray(v)), jacobian(X).T @ (v * there), rtol=1e-13)
    assert np.isnan(np.asarray(g.outputs)).tolist() == (~there).tolist()


def test_inputs_without_numbers():
    """Keys and integers are always finite."""
    inputs = (jax.random.split(jax.random.key(0), 5), jnp.arange(5))

    def noisy(p, inputs):
        keys, index = inputs
        shifts = jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys)
        return (shifts + index[:, None].astype(float)) @ p

    problem = pb.Composite(noisy, loss, measure=MEASURE)
    ng = pb.natural_gradient(problem, PARAMS, (inputs, jnp.asarray(Y)))
    j = np.stack([np.asarray(noisy(row, inputs)) for row in jnp.eye(2)], axis=1)
    np.testing.assert_allclose(ng.pushforward, j @ np.asarray(ng.vector), rtol=1e-12)


def test_terms_and_complex_outputs():
    wave = lambda p, x: jax.lax.complex(jnp.cos(x @ p), jnp.sin(x @ p))
    terms = pb.Terms(
        a=pb.Composite(model, loss, measure=MEASURE),
        b=pb.Composite(wave, lambda z, y: jnp.abs(z) * y, measure=MEASURE),
        c=pb.Composite(model, loss),
    )
    batch = (jnp.asarray(X), jnp.asarray(Y))
    ng = pb.natural_gradient(terms, PARAMS, {"a": batch, "b": batch, "c": batch})
    v = np.asarray(ng.vector)
    phase = 1j * np.exp(1j * (X @ np.asarray(PARAMS)))
    np.testing.assert_allclose(ng.pushforward["a"], jacobian(X) @ v, rtol=1e-12)
    np.testing.assert_allclose(ng.pushforward["b"], phase * (X @ v), rtol=1e-12)
    np.testing.assert_allclose(ng.pushforward["c"], jacobian(X) @ v, rtol=1e-12)


def test_without_absent_samples_nothing_is_linearised_again():
    assert pb.pullback(pb.Composite(model, loss), PARAMS, (jnp.asarray(X),)).reported is None
