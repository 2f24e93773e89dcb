"""Definitions 4 and 5 as measured numbers, for any method."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import normal

import pullback as pb
from pullback import testing

MODEL = testing.tied_weights(2, 2, 2, jax.random.key(0))
BATCH = (normal(3, 2, seed=1), normal(3, 2, seed=2))
PROBLEM = pb.Composite(MODEL.function, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)


def check(
    method=None, problem=PROBLEM, params=MODEL.params, batch=BATCH, seed=0, amplitude=0.5, counts=()
):
    f = pb.random_reparametrisation(params, jax.random.key(seed), amplitude)
    return pb.check_invariance(
        problem, params, batch, reparametrisation=f, method=method, counts=counts
    )


def gradient(problem, params, batch):
    return pb.natural_gradient(problem, params, batch).covector


RANK_DEFICIENT = {
    "tied weights": (MODEL, ()),
    "bottleneck": (testing.bottleneck(2, 2, 1, jax.random.key(0)), pytest.mark.slow),
    "dead unit": (testing.dead_unit(2, 2, 3, jax.random.key(0)), pytest.mark.slow),
}


@pytest.mark.parametrize(
    "model",
    [pytest.param(model, marks=marks, id=name) for name, (model, marks) in RANK_DEFICIENT.items()],
)
def test_theorem_2_under_20_random_reparametrisations_of_a_rank_deficient_model(model):
    problem = pb.Composite(model.function, PROBLEM.loss)
    records = [check(seed=seed, problem=problem, params=model.params) for seed in range(20)]
    assert max(r.model for r in records) < 1e-9 and min(r.parameters for r in records) > 0.05
    assert max(r.gauged for r in records) < 1e-9 and {r.independence for r in records} == {1.0}
    assert all(abs(r.order - 2) < 0.05 for r in records), [r.order for r in records]


SLOW = pytest.mark.slow
OTHERS = {
    "sgd": (optax.sgd(1.0), ()),
    "adam": (optax.adam(0.1), SLOW),
    "direction": (gradient, SLOW),
}


@pytest.mark.parametrize(
    "method",
    [pytest.param(method, marks=marks, id=name) for name, (method, marks) in OTHERS.items()],
)
def test_methods_that_are_not_invariant(method):
    record = check(method, counts=(8, 16))
    assert record.model > 0.1 and abs(record.order - 1) < 0.1 and np.isnan(record.gauged)
    assert abs(record.trajectory_order) < 0.1 and "not invariant" in str(record)


@pytest.mark.slow
def test_damping_is_invariant_in_its_gauge_only():
    damped = check(pb.Tikhonov(1e-2))
    assert damped.model > 1e-3 and damped.gauged < 1e-9


def test_trajectories_agree_to_first_order():
    assert abs(check(counts=(8, 16, 32)).trajectory_order - 1) < 0.15


def test_affine_maps_are_exact_unless_the_gauge_is_not_carried_over():
    few = testing.few_parameters(2, 2, 2, jax.random.key(1))
    problem = pb.Composite(few.function, PROBLEM.loss)
    matrix = jnp.asarray([[2.0, 0.3], [-0.5, 1.5]])
    for f in (pb.Affine(matrix, jnp.ones(2)), pb.Units(jnp.asarray([60.0, 0.1]))):
        record = pb.check_invariance(problem, few.params, BATCH, reparametrisation=f)
        assert (
            record.order == np.inf
            and record.trajectory_order == np.inf
            and record.discrepancies.max() < 1e-12
        )
    assert "invariant on the model; one step is so exactly" in str(record)
    # Overparametrised, a linear map moves the minimum-norm solution along the kernel, and one step
    # agrees to second order only.
    assert abs(check(amplitude=0.0).order - 2) < 0.05


def test_what_a_singular_metric_does_not_see_is_not_invariant():
    metric = pb.metric.Masked(pb.metric.Euclidean(), jnp.asarray([True, False]))
    problem = pb.Composite(MODEL.function, lambda z, y: (z[:, 0] - y[:, 0]) ** 2, metric)
    record = check(problem=problem)
    assert (
        record.seen < 1e-9 and record.model > 1e-2 and "as far as the metric sees" in record.message
    )


def test_a_singular_reparametrisation_is_reported_and_a_wrong_inverse_refused():
    flat = jax.flatten_util.ravel_pytree(MODEL.params)[0]
    record = pb.check_invariance(PROBLEM, MODEL.params, BATCH, reparametrisation=pb.Cubic(flat))
    assert (
        not record.diffeomorphism
        and record.jacobian_condition == np.inf
        and "not a local diffeomorphism" in str(record)
    )
    assert record.independence == 1.0 and np.isnan(record.model)
    wrong = pb.Reparametrisation(lambda p: jax.tree.map(lambda x: 2 * x, p), inverse=lambda p: p)
    with pytest.raises(ValueError, match="the inverse is not that of f"):
        pb.check_invariance(PROBLEM, MODEL.params, BATCH, reparametrisation=wrong)


def test_how_a_record_prints_and_what_is_refused():
    record = check()
    assert repr(record) == f"Invariance({record.message})" and "order 2.0" in record.message
    page = record._repr_html_()
    assert page.startswith("<table>") and "on the model (Definition 5)" in page
    f = pb.Units(2.0)
    for words, bad in {
        "reparametrisation must be a change of parameters": {"reparametrisation": jnp.sinh},
        "halvings must be an integer of at least 2": {"halvings": 1},
        "counts must be at least two": {"counts": (8,)},
        "step must be positive": {"step": -1.0},
    }.items():
        with pytest.raises(ValueError, match=words):
            pb.check_invariance(PROBLEM, MODEL.params, BATCH, **{"reparametrisation": f} | bad)
    with pytest.raises(ValueError, match="reparametrisation must be a change of parameters"):
        pb.reparametrise(PROBLEM, jnp.sinh)
    with pytest.raises(RuntimeError, match="`params` contains a NaN"):
        bad = jax.tree.map(lambda x: jnp.nan * x, MODEL.params)
        pb.check_invariance(PROBLEM, bad, BATCH, reparametrisation=f)
