"""Geometry needs no loss: `pullback`, `ntk`, `plan` and `examine` take a problem without one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import normal

import pullback as pb

X = normal(5, 3)
PARAMS = {"w": normal(3, 2, seed=1), "b": normal(2, seed=2)}


def model(params, x):
    return jnp.tanh(x @ params["w"] + params["b"][None, :])


def jacobian():
    """J in the order of the leaves, by plain JAX."""
    tree = jax.jacobian(model)(PARAMS, X)
    return np.concatenate(
        [np.asarray(tree[name]).reshape(10, -1) for name in sorted(PARAMS)], axis=1
    )


BARE = pb.Composite(model, metric=pb.metric.Euclidean())


def test_the_pullback_metric_needs_no_loss():
    found = pb.pullback(BARE, PARAMS, (X,)).matrix()
    j = jacobian()
    np.testing.assert_allclose(found, j.T @ j / 5, atol=1e-14)


def test_tangent_kernels_need_no_loss():
    j = jacobian()
    np.testing.assert_allclose(pb.ntk(BARE, PARAMS, (X,)).matrix(), j @ j.T, atol=1e-13)
    natural = pb.natural_ntk(BARE, PARAMS, (X,))
    np.testing.assert_allclose(natural.matrix(), j @ np.linalg.pinv(j.T @ j / 5) @ j.T, atol=1e-9)
    assert "not onto" in natural.reason


def test_a_plan_needs_no_loss():
    assert pb.plan(BARE, PARAMS, (X,)).shape == (10, 8)


@pytest.mark.parametrize(
    "metric", [pb.metric.Euclidean(), pb.metric.Gaussian(), pb.metric.Categorical()], ids=repr
)
def test_examine_needs_no_loss(metric):
    page = pb.examine(pb.Composite(model, metric=metric), PARAMS, (X,))
    assert page.rank == np.linalg.matrix_rank(jacobian())
    assert np.isnan([page.output_share, page.covector_share, page.tangent_share]).all()
    assert page.result == "" and "no loss" in str(page)


def test_examine_with_a_loss_has_the_fractions():
    problem = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)
    page = pb.examine(problem, PARAMS, (X, normal(5, 2)))
    assert 0 < page.tangent_share <= 1 and "no loss" not in str(page)


def test_examine_names_bad_parameters_without_a_loss():
    bad = PARAMS | {"b": jnp.asarray([1.0, jnp.nan])}
    with pytest.raises(RuntimeError, match=r"params\['b'\]"):
        pb.examine(BARE, bad, (X,))


def test_a_saturated_model_without_a_loss_is_no_caution():
    steep = pb.Composite(lambda p, x: 1e3 * x @ p["w"], metric=pb.metric.Categorical())
    assert "underflow" not in pb.examine(steep, PARAMS, (X,)).result


NEEDING = {
    "natural_gradient": lambda p: pb.natural_gradient(p, PARAMS, (X,)),
    "differential": lambda p: pb.differential(p, PARAMS, (X,)),
    "NaturalGradientDescent": lambda p: pb.NaturalGradientDescent(p),
    "flow": lambda p: pb.flow(p, PARAMS, (X,), t1=1.0),
    "check_invariance": lambda p: pb.check_invariance(
        p, PARAMS, (X,), reparametrisation=pb.Units(60.0), method=optax.sgd(0.1)
    ),
}


@pytest.mark.parametrize("call", NEEDING.values(), ids=NEEDING)
def test_what_needs_a_loss_shows_what_to_write(call):
    words = (
        r"Euclidean is not a likelihood, so the loss cannot be left out here: "
        r"Composite\(model, loss=lambda z, y: \.\.\., metric=Euclidean\(\.\.\.\)\)"
    )
    with pytest.raises(ValueError, match=words):
        call(BARE)


def test_a_problem_without_a_loss_prints_so():
    assert repr(BARE) == "Composite(model, no loss, Euclidean(), Mean())"
