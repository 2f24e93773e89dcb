"""Definitions 4, 5 and 6 as measured numbers, for any method; and what kind of point a point is."""

import equinox as eqx
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


class Descent(eqx.Module):
    """An optimiser with its problem, as anyone may write it."""

    problem: pb.Composite
    rate: float

    def init(self, params):
        return 0

    def step(self, params, state, batch):
        ng = pb.natural_gradient(self.problem, params, batch)
        return jax.tree.map(lambda p, v: p - self.rate * v, params, ng.vector), state + 1, ng.stats


@pytest.mark.parametrize(
    "method",
    [Descent(PROBLEM, 0.1), pb.NaturalGradientDescent(PROBLEM, step=pb.step.Fixed(0.1))],
    ids=["theirs", "ours"],
)
def test_an_optimiser_with_its_problem(method):
    found = testing.assert_invariant(PROBLEM, MODEL.params, BATCH, method=method, count=1)
    assert found[0].model < 1e-9


def test_what_the_helper_for_test_suites_refuses():
    with pytest.raises(AssertionError, match="not invariant: the directions differ by"):
        testing.assert_invariant(PROBLEM, MODEL.params, BATCH, method=optax.sgd(1.0), count=1)
    with pytest.raises(ValueError, match="no attribute problem"):
        check(type("Odd", (), {"init": None, "step": None})())
    with pytest.raises(ValueError, match="method must be an inverse"):
        check(3)


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


def test_maps_invert_each_other_and_an_inverse_is_found():
    params = {"a": jnp.asarray([0.7, 1.3]), "n": 3}
    maps = (
        pb.Exponential(),
        pb.Units({"a": jnp.asarray([2.0, 3.0]), "n": None}),
        pb.Cubic(jnp.zeros(2), 0.5),
        pb.random_reparametrisation(params, jax.random.key(0)),
        pb.Reparametrisation(lambda p: {"a": p["a"] + 0.3 * jnp.sin(p["a"]), "n": p["n"]}),
    )
    for f in maps:
        new = f.inverse(params)
        assert np.allclose(f(new)["a"], params["a"], rtol=1e-13) and new["n"] == 3
        dense = f.jacobian(new)
        pushed = f.push(new, {"a": jnp.ones(2), "n": None})["a"]
        assert np.allclose(pushed, np.asarray(dense) @ np.ones(2))
    sinh = pb.Reparametrisation(
        lambda new: jax.tree.map(lambda x: jnp.sinh(x) if eqx.is_inexact_array(x) else x, new)
    )
    assert np.allclose(sinh.inverse(params)["a"], np.arcsinh(params["a"]), rtol=1e-13)
    lost = pb.Reparametrisation(lambda p: {"a": p["a"] ** 2, "n": p["n"]})
    with pytest.raises(ValueError, match=r"Newton's method did not find.*inverse="):
        lost.inverse({"a": jnp.asarray([-1.0, 1.0]), "n": 3})


# ---- examine
# --------------------------------------------------------------------------------------------------------------


def test_a_proper_point_and_its_two_kernels():
    page = pb.examine(PROBLEM, MODEL.params, BATCH)
    dense = testing.reference_natural_gradient(PROBLEM, MODEL.params, BATCH)
    assert (
        page.proper
        and page.rank == np.linalg.matrix_rank(dense.jacobian) == page.seen_rank == dense.rank
    )
    assert (
        page.kernel.shape == (16, 16 - page.rank)
        and np.abs(dense.jacobian @ page.kernel).max() < 1e-13
    )
    assert page.unseen.shape[1] == 0 and np.allclose(
        page.spectrum, dense.spectrum[: page.spectrum.size]
    )
    assert "proper" in str(page) and "overparametrised" in str(page)
    assert len(page.plot()[1].lines) == 3


def test_directions_that_the_metric_does_not_see_are_told_apart():
    metric = pb.metric.Masked(pb.metric.Euclidean(), jnp.asarray([True, False]))
    page = pb.examine(pb.Composite(MODEL.function, PROBLEM.loss, metric), MODEL.params, BATCH)
    dense = testing.reference_natural_gradient(PROBLEM, MODEL.params, BATCH)
    assert (
        page.metric_rank == 3
        and page.seen_rank == 3
        and page.rank == 6
        and page.unseen.shape == (16, 3)
    )
    moved = dense.jacobian @ page.unseen
    assert np.abs(moved[0::2]).max() < 1e-12 and np.linalg.matrix_rank(moved[1::2]) == 3
    assert page.output_share < 1 and "3 of the metric" in str(page)


def test_improper_and_singular_points():
    # z = ab is not proper at the origin only; the figure eight crosses itself.
    product = pb.Composite(lambda p: p[0] * p[1], lambda z: z)
    assert pb.examine(product, jnp.asarray([1.0, 2.0])).proper
    page = pb.examine(product, jnp.zeros(2))
    assert (page.rank, page.generic_rank, page.proper) == (0, 1, False) and "not proper" in str(
        page
    )
    eight = pb.Composite(lambda p: jnp.stack([jnp.sin(2 * p[0]), jnp.sin(p[0])]), lambda z: z[0])
    crossing = pb.examine(eight, jnp.asarray([0.0]), other=jnp.asarray([np.pi]))
    assert (
        crossing.meeting.singular
        and np.isclose(crossing.meeting.angle, np.arccos(0.6))
        and "a singular point" in str(crossing)
    )
    elsewhere = pb.examine(eight, jnp.asarray([0.0]), other=jnp.asarray([1.0]))
    assert not elsewhere.meeting.same_point and "another point" in str(elsewhere)
    again = pb.examine(eight, jnp.asarray([0.3]), other=jnp.asarray([0.3 + 2 * np.pi]))
    assert again.meeting.same_point and not again.meeting.singular
    with pytest.raises(RuntimeError, match="`params` contains a NaN"):
        pb.examine(eight, jnp.asarray([np.nan]))
