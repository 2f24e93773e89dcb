"""A problem: models that couple samples, and inputs that are trees."""

import jax
import jax.numpy as jnp
import pytest
from helpers import distance, normal

import pullback as pb
from pullback import testing

MODEL = testing.tanh_mlp(3, 2, 4, jax.random.key(0))


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def make(samples, coupled=False, function=MODEL.function, metric=None):
    problem = pb.Composite(
        function, square, pb.metric.Gaussian() if metric is None else metric, coupled=coupled
    )
    return testing.Example(problem, MODEL.params, (normal(samples, 3), normal(samples, 2, seed=1)))


def normalised(params, x):
    z = MODEL.function(params, x)
    return z - jnp.mean(z, axis=0, keepdims=True)


def test_a_coupled_model_that_is_declared():
    example = make(5, coupled=True, function=normalised)
    expected = testing.reference_natural_gradient(*example)
    assert distance(pb.pullback(*example).matrix(), expected.matrix) < 1e-13
    for solver in (pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()):
        ng = pb.natural_gradient(*example, solver=solver)
        assert distance(ng.vector, expected.vector) < 1e-9
        assert int(ng.stats.rank) == expected.rank


def test_a_coupled_model_that_is_not_declared_is_named():
    with pytest.raises(
        RuntimeError, match=r"the model mixes samples.*Composite\(\.\.\., coupled=True\)"
    ):
        pb.natural_gradient(*make(5, function=normalised))
    ng = pb.natural_gradient(*make(5, function=normalised), throw=False)
    assert bool(ng.result == pb.RESULTS.coupled_samples)


def test_inputs_may_be_a_tree_with_carried_leaves():
    inputs = {"x": normal(4, 3), "kind": "plain", "index": jnp.arange(4)}

    def function(p, x):
        assert x["kind"] == "plain"
        return MODEL.function(p, x["x"]) * (1.0 + x["index"].astype(float))[:, None]

    problem = pb.Composite(function, square, pb.metric.Gaussian())
    plain = pb.Composite(
        lambda p, x: MODEL.function(p, x) * (1 + jnp.arange(4.0))[:, None],
        square,
        pb.metric.Gaussian(),
        coupled=True,
    )
    targets = normal(4, 2, seed=1)
    found = pb.natural_gradient(problem, MODEL.params, (inputs, targets))
    expected = testing.reference_natural_gradient(plain, MODEL.params, (inputs["x"], targets))
    assert distance(found.vector, expected.vector) < 1e-9
