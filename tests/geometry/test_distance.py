"""The distance of two functions, and of the parameters that stand for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import testing

MODEL = testing.tanh_mlp(2, 3, 4, jax.random.key(0))
X = normal(3, 2, seed=1)
CATEGORICAL = pb.Composite(MODEL.function, metric=pb.metric.Categorical())


def test_the_distance_of_functions_to_second_order():
    other = jax.tree.map(lambda p: p + normal(*p.shape, seed=7), MODEL.params)
    points = [
        jax.tree.map(lambda a, b, h=h: a + h * (b - a), MODEL.params, other)
        for h in (4e-3, 2e-3, 1e-3)
    ]
    curve = pb.distance(CATEGORICAL, MODEL.params, points, (X,))
    # KL and its quadratic estimate differ at third order, and the parameters at first.
    error = np.log2(np.abs(np.asarray(curve.function - curve.quadratic)))
    assert np.allclose(np.diff(error), -3, atol=0.1) and np.allclose(
        np.diff(np.log2(np.asarray(curve.parameters))), -1
    )
    log_p, log_q = (jax.nn.log_softmax(MODEL.function(p, X)) for p in (points[0], MODEL.params))
    assert np.isclose(
        curve.function[0], jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=1))
    )
    ends = pb.distance(CATEGORICAL, MODEL.params, pb.line(MODEL.params, other, 3), (X,))
    assert float(ends.function[0]) == 0.0 and "as functions" in str(ends)
    # Another parametrisation of the same function is at distance zero, however far its parameters
    # are.
    swapped = jax.tree.map(lambda p: p, MODEL.params) | {
        "w": -MODEL.params["w"],
        "b": -MODEL.params["b"],
        "v": -MODEL.params["v"],
    }
    same = pb.distance(CATEGORICAL, MODEL.params, swapped, (X,))
    assert abs(float(same.function)) < 1e-15 and float(same.parameters) > 1
    with pytest.raises(ValueError, match="metric without a divergence"):
        pb.distance(
            pb.Composite(lambda p: p, lambda z: 0.0, pb.metric.Riemannian(lambda z: jnp.eye(2))),
            jnp.ones(2),
            jnp.ones(2),
        )


def test_how_a_distance_prints_and_what_it_does_not_take():
    params = {"w": jnp.asarray([1.0, 2.0])}
    problem = pb.Composite(lambda p, x: x @ p["w"], lambda z: z)
    x = jnp.eye(2)
    other = {"w": jnp.asarray([1.0, 4.0])}
    one = pb.distance(problem, params, other, (x,))
    assert repr(one) == "Distance(as functions 1, quadratic estimate 1, parameters 2)"
    assert str(one) == "as functions 1 (quadratic estimate 1), parameters 2"
    assert "<td style='text-align:left'>1</td>" in one._repr_html_()
    curve = pb.distance(problem, params, pb.line(params, other, 3), (x,))
    assert repr(curve) == (
        "Distance(3 results: as functions 0 to 1, quadratic estimate 0 to 1, parameters 0 to 2)"
    )
    assert str(curve).count("\n") == 2 and curve._repr_html_().count("<tr>") == 4
    # An absent sample does not count, whatever it contains.
    weighted = pb.Composite(
        problem.model, problem.loss, measure=pb.Weights(jnp.asarray([0.0, 0.5]))
    )
    absent = pb.distance(weighted, params, other, (x.at[0].set(jnp.nan),))
    assert np.allclose([absent.function, absent.quadratic], 1.0)
    for words, bad in {
        "other contains a NaN": {"w": jnp.asarray([1.0, jnp.nan])},
        "structure, shapes and dtypes": {"w": jnp.ones(3)},
        "list of at least one": [],
    }.items():
        with pytest.raises(ValueError, match=words):
            pb.distance(problem, params, bad, (x,))
    with pytest.raises(ValueError, match="params contains a NaN"):
        pb.distance(problem, {"w": jnp.full(2, jnp.inf)}, other, (x,))
    with pytest.raises(
        ValueError, match=r"line\(count=1\): count must be an integer of at least 2"
    ):
        pb.line(params, other, 1)


def test_a_distance_that_is_not_defined():
    """No NaN and no overflow of the model in silence, at either point."""
    steep = pb.Composite(lambda p, x: jnp.exp(x @ p), lambda z, y: (z - y) ** 2)
    one, far, x = jnp.ones(2), jnp.full(2, 1e4), jnp.eye(2)
    with pytest.raises(RuntimeError, match="`batch` contains a NaN"):
        pb.distance(steep, one, 2 * one, (x.at[0, 0].set(jnp.nan),))
    for ends in ((one, far), (far, one), (one, [2 * one, far])):
        with pytest.raises(RuntimeError, match="returned a NaN or an infinity"):
            pb.distance(steep, *ends, (x,))
    family = pb.metric.GaussianMeanCovariance()
    outputs = lambda p, x: {"mean": (x @ p)[:, None], "covariance": (x @ p)[:, None, None]}
    for ends in ((one, -one), (-one, one)):
        with pytest.raises(RuntimeError, match="not positive semi-definite"):
            pb.distance(pb.Composite(outputs, metric=family), *ends, (x,))
