"""The differential of the loss, where some samples are absent."""

import jax.numpy as jnp
import numpy as np
from helpers import normal

import pullback as pb


def test_an_absent_sample_reaches_no_derivative():
    x, y = normal(3, 2).at[1].set(jnp.nan), jnp.asarray([1.0, jnp.nan, 0.0])
    problem = pb.Composite(
        lambda p, x: jnp.tanh(x @ p),
        metric=pb.metric.Bernoulli(),
        measure=pb.Weights(jnp.asarray([0.5, 0.0, 0.5])),
    )
    present = pb.Composite(lambda p, x: jnp.tanh(x @ p), metric=pb.metric.Bernoulli())
    p, keep = jnp.asarray([0.3, -0.8]), jnp.asarray([0, 2])
    here = (x[keep], y[keep])
    assert np.allclose(
        pb.differential(problem, p, (x, y)).tree, pb.differential(present, p, here).tree, rtol=1e-14
    )
    assert np.isclose(
        pb.distance(problem, p, 2 * p, (x, y)).function,
        pb.distance(present, p, 2 * p, here).function,
        rtol=1e-14,
    )
    step = pb.proximal_step(problem, p, (x, y), weight=3.0)
    assert np.allclose(
        step.params, pb.proximal_step(present, p, here, weight=3.0).params, rtol=1e-10
    )
