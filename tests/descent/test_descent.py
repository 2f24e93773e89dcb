"""The optimiser: one step and its record, penalties, constraints, gradients that are given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curved import PARAMS, PROBLEM, X, Y, close, curved, dense, flat, half_square
from helpers import normal

import pullback as pb
from pullback._base.tree import structure


def test_a_state_of_something_else_is_refused():
    opt = pb.NaturalGradientDescent(PROBLEM)
    with pytest.raises(ValueError, match=r"state must be what opt.init\(params\) returned"):
        opt.step(PARAMS, None, (X, Y))


def test_the_natural_gradient_step_and_its_record():
    a, r, point = dense()
    opt = pb.NaturalGradientDescent(
        PROBLEM, step=pb.step.Fixed(lambda count: jnp.where(count == 0, 0.5, 0.25))
    )
    state = opt.init(PARAMS)
    params, after, record = opt.step(PARAMS, state, (X, Y))
    d = -0.5 * np.linalg.pinv(a) @ r
    close(flat(params), point + d)
    close(record.loss, r @ r / 2)
    close(record.loss_after, np.sum(np.asarray(half_square(curved(params, X), Y))) / 3)
    close(record.norm, np.linalg.norm(d))
    close(record.metric_norm, np.linalg.norm(a @ d))
    close(record.gradient_norm, np.linalg.norm(a.T @ r))
    moved = np.asarray(curved(params, X) - curved(PARAMS, X))
    close(record.divergence, np.sum(moved**2) / 6)
    predicted = -(a.T @ r @ d) - np.sum((a @ d) ** 2) / 2
    close(record.gain, (record.loss - record.loss_after) / predicted)
    assert (
        int(record.rank) == 6
        and bool(record.accepted)
        and record.solver_name == "SVD"
        and not bool(record.failed)
    )
    assert int(after.count) == 1
    # The schedule goes on: half of it in the second step.
    assert float(opt.step(params, after, (X, Y))[2].rate) == 0.25


def test_step_can_be_jitted_by_hand_and_holds_arrays():
    traces = []
    model = lambda w, x: traces.append(0) or x @ w
    problem = pb.Composite(
        model,
        lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2,
        measure=pb.Weights(jnp.asarray([0.2, 0.3, 0.5])),
    )
    opt = pb.NaturalGradientDescent(problem, inverse=pb.Tikhonov(jnp.asarray(0.1)))
    params = normal(2, 2, seed=1)
    expected = opt.step(params, opt.init(params), (X, Y))[0]
    step = jax.jit(opt.step)
    first = step(params, opt.init(params), (X, Y))[0]
    count = len(traces)
    again = step(params, opt.init(params), (X, Y))[0]
    assert len(traces) == count and np.array_equal(first, again)
    close(first, expected)


def test_a_rejected_step_forgets_the_last_direction_and_a_failed_one_does_not():
    opt = pb.NaturalGradientDescent(PROBLEM, step=pb.step.GridSearch(), momentum=pb.HeavyBall(0.9))
    params, state, _ = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert np.any(state.previous != 0)
    same, kept, record = opt.step(params, state, (X.at[0, 0].set(jnp.nan), Y))
    assert (
        record.result == pb.RESULTS.nonfinite_batch
        and bool(record.failed)
        and not bool(record.accepted)
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), same, params))
    assert jnp.array_equal(kept.previous, state.previous) and int(kept.count) == 2
    uphill = pb.NaturalGradientDescent(
        PROBLEM, step=pb.step.GridSearch((1e3,)), momentum=pb.HeavyBall(0.9)
    )
    same, forgot, record = uphill.step(params, state, (X, Y))
    assert not bool(record.accepted) and not bool(record.failed) and not np.any(forgot.previous)
    assert jax.tree.all(jax.tree.map(lambda a, b: jnp.array_equal(a, b), same, params))


def test_a_penalty_outside_the_range():
    """R = ½|θ|²: Moore-Penrose follows the part that the metric sees, Tikhonov all of it."""
    a, r, point = dense()
    pinv, decay = np.linalg.pinv(a), lambda p: 0.5 * sum(jnp.sum(x**2) for x in jax.tree.leaves(p))
    for inverse, apply in (
        (None, pinv @ pinv.T),
        (pb.Tikhonov(0.1), np.linalg.inv(a.T @ a + 0.1 * np.eye(a.shape[1]))),
    ):
        opt = pb.NaturalGradientDescent(
            PROBLEM, inverse=inverse, penalty=decay, step=pb.step.Fixed(1e-3)
        )
        params, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
        g = a.T @ r + point
        close(flat(params), point - 1e-3 * apply @ g, 1e-8)
        close(record.loss, r @ r / 2 + point @ point / 2)
        share = np.linalg.norm(pinv @ a @ g) / np.linalg.norm(g)
        assert share < 0.999
        close(record.range_share, share, 1e-8)


def test_a_gradient_given_in_place_of_the_own_one():
    a, r, point = dense()
    like, pinv = structure(PARAMS), np.linalg.pinv(a)
    opt = pb.NaturalGradientDescent(PROBLEM, step=pb.step.Fixed(1e-2))
    state, own = opt.init(PARAMS), a.T @ r
    other = own + 0.1 * np.linspace(-1, 1, own.size)
    for g, expected in (
        (own, pinv @ r),
        (0.3 * own, 0.3 * pinv @ r),
        (other, pinv @ pinv.T @ other),
    ):
        params = opt.step(PARAMS, state, (X, Y), gradient=like.unravel(jnp.asarray(g)))[0]
        close(flat(params), point - 1e-2 * expected, 1e-9)


def test_a_constraint_is_kept_and_judged():
    opt = pb.NaturalGradientDescent(
        PROBLEM,
        step=pb.step.GridSearch((1.0, 0.5)),
        constraint=lambda p: {**p, "b": jnp.clip(p["b"], -0.1, 0.1)},
    )
    params, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert np.abs(params["b"]).max() <= 0.1
    close(record.loss_after, np.sum(np.asarray(half_square(curved(params, X), Y))) / 3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=str)
def test_structure_and_dtypes_are_fixed_under_scan_and_vmap(dtype):
    cast = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)
    params = cast(PARAMS) | {"steps": jnp.arange(3)}
    opt = pb.NaturalGradientDescent(
        PROBLEM, step=pb.step.LevenbergMarquardt(), momentum=pb.Spring(0.5)
    )

    def run(params):
        def body(carry, _):
            new, state, record = opt.step(*carry, cast((X, Y)))
            return (new, state), record

        return jax.lax.scan(body, (params, opt.init(params)), length=3)

    (new, _), records = jax.jit(run)(params)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    (both, _), _ = jax.jit(jax.vmap(run))(many)
    assert jax.tree.map(lambda x: x.dtype, new) == jax.tree.map(lambda x: x.dtype, params)
    assert jnp.array_equal(new["steps"], params["steps"])
    assert records.loss.dtype == dtype and records.rank.dtype == jnp.int32
    tolerance = 1e-3 if dtype == jnp.float32 else 1e-9
    for seed in (0, 1):
        close(np.asarray(both["w"][seed]), np.asarray(new["w"]), tolerance)


def test_what_cannot_work_is_refused_when_it_is_built():
    bad = {
        "Leave inverse= out": {"inverse": pb.Tikhonov(0.1), "step": pb.step.LevenbergMarquardt()},
        "has none": {"step": pb.step.TrustRegion()},
        "pullback.step": {"step": "0.1"},
        "Spring": {"momentum": 0.9},
        "penalty must be a function": {"penalty": 0.1},
    }
    riemannian = pb.Composite(curved, half_square, pb.metric.Riemannian(lambda z: jnp.eye(2)))
    for words, arguments in bad.items():
        with pytest.raises(ValueError, match=words):
            pb.NaturalGradientDescent(riemannian if words == "has none" else PROBLEM, **arguments)
    for words, make in {
        "rate": lambda: pb.step.Fixed(0.0),
        "shrink": lambda: pb.step.LineSearch(shrink=1.0),
        "increase": lambda: pb.step.LevenbergMarquardt(increase=1.0),
        r"LevenbergMarquardt.*rate": lambda: pb.step.LevenbergMarquardt(rate=0.0),
        "minimum": lambda: pb.step.LevenbergMarquardt(minimum=-1.0),
        "radius": lambda: pb.step.TrustRegion(radius=-1.0),
        "mu": lambda: pb.Spring(1.0),
        "another step rule": lambda: pb.step.Geodesic(pb.step.Geodesic(0.1)),
        "a number or a schedule": lambda: pb.step.Geodesic("0.1"),
        "at least one": lambda: pb.step.GridSearch(()),
    }.items():
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(ValueError, match="no floating array"):
        pb.NaturalGradientDescent(PROBLEM).init({"n": 3})


def test_a_number_is_a_fixed_rate():
    half = pb.NaturalGradientDescent(PROBLEM, step=pb.step.Fixed(0.5))
    for number in (0.5, np.float64(0.5), jnp.asarray(0.5)):
        opt = pb.NaturalGradientDescent(PROBLEM, step=number)
        found, wanted = (o.step(PARAMS, o.init(PARAMS), (X, Y))[0] for o in (opt, half))
        close(flat(found), flat(wanted))
    schedule = lambda count: jnp.where(count < 9, 0.5, 0.1)
    for rule, like in ((schedule, half.rule), (pb.step.Geodesic(schedule), pb.step.Geodesic(0.5))):
        made = [pb.NaturalGradientDescent(PROBLEM, step=r) for r in (rule, like)]
        found, wanted = (o.step(PARAMS, o.init(PARAMS), (X, Y))[0] for o in made)
        close(flat(found), flat(wanted))
    for wrong in (True, "0.5", 0.0, -1.0, pb.step.LineSearch):
        with pytest.raises(ValueError, match=r"step must be one of|positive"):
            pb.NaturalGradientDescent(PROBLEM, step=wrong)


def test_the_loss_of_a_step_in_half_precision_is_that_of_the_rounded_point():
    x = normal(6, 2, seed=1).astype(jnp.float32)
    y = jnp.tanh(x @ jnp.asarray([0.3, -0.4], jnp.float32))
    problem = pb.Composite(lambda p, x: jnp.tanh(x @ p), lambda z, y: (z - y) ** 2 / 2)
    opt, params = pb.NaturalGradientDescent(problem), jnp.ones(2, jnp.bfloat16)
    state = opt.init(params)
    for _ in range(7):
        params, state, record = opt.step(params, state, (x, y))
        assert params.dtype == jnp.bfloat16
        after = float(opt.loss(params, (x, y)))
        assert np.isclose(record.loss_after, after, rtol=1e-5) and after <= float(record.loss)
    # Nothing is left to take between two numbers of this precision.
    assert not bool(record.accepted) and after < 1e-4
