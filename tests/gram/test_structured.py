"""Where the layers of a model are used, and where the generic route is taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance
from zoo import small, sum_of_outputs

import pullback as pb
from pullback._gram.structured import find


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def test_absent_samples_and_weights_in_the_structured_route():
    problem, params, (x, y), inverse = small()
    weights = jnp.asarray(np.linspace(0.0, 2.0, 20))
    problem = pb.Composite(problem.model, metric=problem.metric, measure=pb.Weights(weights))
    x = x.at[0].set(jnp.nan)
    for solver in (pb.solver.Dual, pb.solver.Primal):
        found, expected = (
            pb.natural_gradient(
                problem, params, (x, y), inverse=inverse, solver=solver(structured=s)
            ).vector
            for s in (True, False)
        )
        assert distance(found, expected) < 1e-11


def test_a_model_with_side_effects_takes_the_generic_route():
    def model(p, x):
        jax.debug.print("", ordered=False)
        return x @ p

    metric = pb.pullback(pb.Composite(model, sum_of_outputs), jnp.ones((4, 2)), (jnp.ones((3, 4)),))
    assert find(metric.whitened) is None


def test_another_gauge_takes_the_generic_route():
    problem, params, batch, _ = small()
    metric = pb.pullback(problem, params, batch)
    assert find(metric.whitened.in_gauge(2.0)) is None
    assert find(metric.whitened) is not None
