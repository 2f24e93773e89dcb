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
