"""The derivative of two steps is that of their differences, or is refused."""

import jax
import jax.numpy as jnp
import pytest
from helpers import normal

import pullback as pb

X, Y = normal(6, 3), normal(6, 2, seed=1)
PARAMS = {"w": normal(3, 2, seed=2), "v": normal(2, 2, seed=3)}
DAMPED = {"inverse": pb.Tikhonov(0.1), "step": 0.3}
RIGHT = {
    "fixed": DAMPED,
    "spring": DAMPED | {"momentum": pb.momentum.Spring(0.9)},
    "trust region": DAMPED | {"step": pb.step.TrustRegion(0.1)},
    "geodesic": DAMPED | {"step": pb.step.Geodesic(pb.step.Fixed(0.3))},
}
REFUSED = {
    "metric memory": DAMPED | {"metric_memory": 0.5},
    "levenberg-marquardt": {"step": pb.step.LevenbergMarquardt()},
}


def length_of(options):
    model = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]
    problem = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)
    opt = pb.NaturalGradientDescent(problem, **options)

    def length(scale):
        params = jax.tree.map(lambda x: x * scale, PARAMS)
        state = opt.init(PARAMS)
        for _ in range(2):  # the second has a memory
            params, state, _ = opt.step(params, state, (X, Y))
        return jnp.sum(params["w"] ** 2)

    return length


@pytest.mark.parametrize("rule", RIGHT)
def test_the_derivative_is_that_of_differences(rule):
    length, one, h = length_of(RIGHT[rule]), jnp.ones(()), 1e-5
    expected = (length(one + h) - length(one - h)) / (2 * h)
    found = jax.jvp(length, (one,), (one,))[1]
    assert abs(float(found - expected)) < 1e-7 * abs(float(expected))


@pytest.mark.parametrize("rule", REFUSED)
def test_what_has_no_derivative_is_refused(rule):
    with pytest.raises(NotImplementedError, match="not differentiated"):
        jax.jvp(length_of(REFUSED[rule]), (jnp.ones(()),), (jnp.ones(()),))
