"""Step rules and momenta against dense formulas written with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback._descent.descent import _localise
from pullback._natural.outcome import prepare
from pullback.step._damping import redamp


def curved(params, x):
    """Two outputs a sample, seven parameters."""
    return jnp.tanh(x @ params["w"]) @ params["v"] + params["b"][None, :]


PARAMS = {"b": normal(2, seed=3), "v": normal(2, 2, seed=4), "w": normal(2, 2, seed=5)[:, :2]}
X, Y = normal(3, 2, seed=6), normal(3, 2, seed=7)


def half_square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


PROBLEM = pb.Composite(curved, half_square)


def dense(problem=PROBLEM, params=PARAMS, batch=(X, Y)):
    """A and r with the Euclidean metric and `Mean()`, by NumPy."""
    like = pb._tree.structure(params)
    f = lambda flat: problem.model(like.unravel(flat), batch[0])
    point = like.ravel(params)
    n = batch[0].shape[0]
    a = np.asarray(jax.jacobian(lambda v: f(v).ravel())(point)) / np.sqrt(n)
    return a, np.asarray((f(point) - batch[1]).ravel()) / np.sqrt(n), np.asarray(point)


def flat(params):
    return np.asarray(pb._tree.structure(params).ravel(params))


def close(a, b, tolerance=1e-9):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def local(solver, inverse=None, metric=None, rule=None, batch=True, **kwargs):
    problem = PROBLEM if metric is None else pb.Composite(curved, half_square, metric)
    opt = pb.NaturalGradientDescent(problem, inverse=inverse, solver=solver, step=rule, **kwargs)
    args = prepare(problem, PARAMS, (X, Y), inverse, solver, None, 2**30)
    return _localise(opt, args[4], PARAMS, args[2], None, None)


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


CASES = {
    "svd": (pb.solver.SVD(), None),
    "primal": (pb.solver.Primal(), None),
    "dual, gauge": (pb.solver.Dual(), 3.0),
    "krylov": (pb.solver.Krylov(), None),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "krylov" else []) for name in CASES],
)
def test_one_factorisation_serves_every_damping(case):
    solver, gauge = CASES[case]
    a, r, _ = dense()
    w = np.eye(a.shape[1]) * (1.0 if gauge is None else gauge)
    g, outside = np.linspace(-1, 1, a.shape[1]), np.linalg.svd(a)[2][-1]

    @jax.jit
    def answers(damping, g):
        near = local(solver, pb.MoorePenrose(gauge=gauge), rule=pb.step.LevenbergMarquardt())
        factors = redamp(near.factorised, damping)
        return near.with_factors(factors).direction(), factors.covector(g)

    for damping in (1.0, 1e-3):
        d, v = answers(jnp.asarray(damping), jnp.asarray(g))
        damped = np.linalg.inv(a.T @ a + damping * w)
        close(d, -damped @ a.T @ r, 1e-8)
        close(v, damped @ g, 1e-6)
    # Undamped it is Moore-Penrose, and a covector outside the range gets nothing.
    d, v = answers(jnp.asarray(0.0), jnp.asarray(outside))
    close(d, -np.linalg.pinv(a) @ r, 1e-8)
    if case != "krylov":
        close(v, 0 * outside, 1e-7)


def test_damping_tends_to_moore_penrose_at_first_order():
    a, r, _ = dense()
    limit = -np.linalg.pinv(a) @ r

    @jax.jit
    def direction(damping):
        near = local(pb.solver.SVD(), rule=pb.step.LevenbergMarquardt())
        return near.with_factors(redamp(near.factorised, damping)).direction()

    apart = [np.linalg.norm(direction(jnp.asarray(10.0**-k)) - limit) for k in (5, 6, 7)]
    assert np.allclose(np.log10(np.array(apart[:-1]) / apart[1:]), 1, atol=0.02)
    # Far below rounding nothing happens any more, and there is no NaN.
    close(direction(jnp.asarray(1e-300)), limit)


def test_the_gain_of_a_quadratic_problem_is_one_and_damping_falls():
    linear = pb.Composite(lambda p, x: x @ p, half_square)
    opt = pb.NaturalGradientDescent(linear, step=pb.step.LevenbergMarquardt(damping=1e-2))
    params = normal(2, 2, seed=1)
    params, state, record = opt.step(params, opt.init(params), (X, Y))
    close(record.gain, 1.0)
    assert float(record.damping) == 1e-2
    close(state.rule.value, 1e-2 / 3)
    a = np.kron(np.asarray(X), np.eye(2)) / np.sqrt(3)
    r = np.asarray((X @ normal(2, 2, seed=1) - Y).ravel()) / np.sqrt(3)
    d = -np.linalg.solve(a.T @ a + 1e-2 * np.eye(4), a.T @ r)
    close(flat(params) - np.asarray(normal(2, 2, seed=1)).ravel(), d)


def test_a_part_of_the_step_of_levenberg_and_marquardt_and_a_least_damping():
    linear = pb.Composite(lambda p, x: x @ p, half_square)
    start = normal(2, 2, seed=1)

    def step(params, **words):
        opt = pb.NaturalGradientDescent(
            linear, step=pb.step.LevenbergMarquardt(damping=1e-2, **words)
        )
        return opt, *opt.step(params, opt.init(params), (X, Y))

    _, whole, _, _ = step(start)
    opt, half, state, record = step(
        start, rate=lambda count: jnp.where(count < 1, 0.5, 1.0), minimum=5e-3
    )
    close(half - start, (whole - start) / 2)
    # The prediction is for the part that is taken: still exact on a quadratic problem, so that the
    # damping falls, as far as it may.
    close(record.gain, 1.0)
    assert float(record.rate) == 0.5 and float(state.rule.value) == 5e-3
    # The second step is whole.
    there, state, record = opt.step(half, state, (X, Y))
    a = np.kron(np.asarray(X), np.eye(2)) / np.sqrt(3)
    r = np.asarray((X @ half - Y).ravel()) / np.sqrt(3)
    close(flat(there) - flat(half), -np.linalg.solve(a.T @ a + 5e-3 * np.eye(4), a.T @ r))
    assert float(record.rate) == 1.0 and int(state.rule.count) == 2


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


def test_levenberg_marquardt_rejects_until_it_gains():
    """z = sin(20θ): the undamped step overshoots by far."""
    problem = pb.Composite(lambda p: jnp.sin(20 * p), lambda z: jnp.sum((z - 0.9) ** 2) / 2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt(damping=0.0))
    params, losses = jnp.asarray([0.075]), []
    state = opt.init(params)
    step = jax.jit(opt.step)
    for _ in range(12):
        params, state, record = step(params, state)
        losses.append(float(record.loss))
        assert record.loss_after <= record.loss
    first = opt.step(jnp.asarray([0.075]), opt.init(params))[2]
    assert int(first.trials) > 1 and float(first.damping) > 0
    assert losses[-1] < 1e-20


def test_line_search_asks_for_a_part_of_the_predicted_decrease():
    problem = pb.Composite(lambda p: jnp.sin(20 * p), lambda z: jnp.sum((z - 0.9) ** 2) / 2)
    params = jnp.asarray([0.075])
    a, r = 20 * np.cos(1.5), np.sin(1.5) - 0.9
    d = -r / a
    t = 1.0
    while 0.5 * r**2 - 0.5 * (np.sin(20 * (0.075 + t * d)) - 0.9) ** 2 < 0.3 * t * r**2:
        t /= 2
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LineSearch(fraction=0.3))
    new, _, record = opt.step(params, opt.init(params))
    assert float(record.rate) == t < 1
    close(new, params + t * d)
    none = pb.NaturalGradientDescent(problem, step=pb.step.LineSearch(max_trials=1))
    stay, _, record = none.step(params, none.init(params))
    assert (
        not bool(record.accepted)
        and stay == params
        and record.loss_after == record.loss
        and record.norm == 0
    )


def test_grids_take_the_best():
    a, r, point = dense()
    loss = lambda d: (
        float(
            jnp.sum(
                half_square(
                    curved(pb._tree.structure(PARAMS).unravel(jnp.asarray(point + d)), X), Y
                )
            )
        )
        / 3
    )
    grid = pb.NaturalGradientDescent(PROBLEM, step=pb.step.GridSearch((1.0, 0.5, 0.1)))
    close(
        grid.step(PARAMS, grid.init(PARAMS), (X, Y))[2].loss_after,
        min(loss(-t * np.linalg.pinv(a) @ r) for t in (1, 0.5, 0.1)),
    )
    dampings = pb.NaturalGradientDescent(PROBLEM, step=pb.step.DampingSearch((1.0, 1e-2, 1e-4)))
    largest = np.linalg.norm(a, 2) ** 2
    damped = lambda x: -np.linalg.solve(a.T @ a + x * largest * np.eye(a.shape[1]), a.T @ r)
    close(
        dampings.step(PARAMS, dampings.init(PARAMS), (X, Y))[2].loss_after,
        min(loss(damped(x)) for x in (1, 1e-2, 1e-4)),
    )


def test_the_trust_region_is_in_the_true_divergence():
    """Bernoulli logits far out: the quadratic model of KL is wrong there, by a factor."""
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())
    x, y, params = normal(4, 6, seed=1), jnp.asarray([0, 1, 1, 0]), normal(6, seed=2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.TrustRegion(radius=1.0))
    new, state, record = opt.step(params, opt.init(params), (x, y))
    p, q = (1 / (1 + np.exp(-np.asarray(x @ w))) for w in (new, params))
    kl = np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    close(record.divergence, kl)
    assert 0.98 * 0.5 <= kl <= 0.5 and bool(record.accepted)
    assert abs(float(record.metric_norm) ** 2 / 2 - kl) > 0.1 * kl
    assert float(state.rule) in (1.0, 2.0)


def test_geodesic_steps_move_the_outputs_straight_to_third_order():
    def deviation(bent):
        @jax.jit
        def at(t):
            here = local(
                pb.solver.SVD(), rule=pb.step.Geodesic(pb.step.Fixed(), 1e9) if bent else None
            )
            d = here.direction()
            moved = curved(here.point(here.curve(d)(t)), X) - curved(PARAMS, X)
            return jnp.linalg.norm(
                moved - t * here.metric.pushforward(here.metric.structure.unravel(d))
            )

        return [float(at(jnp.asarray(t))) for t in (1e-2, 5e-3)]

    for bent, order in ((False, 2), (True, 3)):
        apart = deviation(bent)
        assert abs(np.log2(apart[0] / apart[1]) - order) < 0.1, (bent, apart)


def test_spring_is_the_smallest_correction_of_the_last_step():
    a, r, _ = dense()
    previous = np.linspace(-1, 1, a.shape[1])
    pinv = np.linalg.pinv(a)
    aim = lambda momentum, inverse=None: jax.jit(
        lambda p: momentum.aim(p)(local(pb.solver.SVD(), inverse))
    )(jnp.asarray(previous))
    expected = 0.7 * previous - pinv @ (r + a @ (0.7 * previous))
    close(aim(pb.Spring(0.7)), expected)
    # What the batch sees is the natural gradient step; what it does not see is the last step.
    close(a @ expected, -a @ pinv @ r)
    kernel = np.eye(a.shape[1]) - pinv @ a
    close(kernel @ expected, 0.7 * kernel @ previous)
    m = a.T @ a + 0.1 * np.eye(a.shape[1])
    by_hand = np.linalg.solve(
        m, 0.1 * 0.7 * previous - a.T @ r
    )  # argmin ½|Ad + r|² + λ/2 |d - μp|²
    close(aim(pb.Spring(0.7), pb.Tikhonov(0.1)), by_hand)
    close(aim(pb.HeavyBall(0.7)), 0.7 * previous - pinv @ r)
    close(aim(pb.Spring(0.7, max_norm=0.1)), 0.1 * expected / np.linalg.norm(expected))


def test_spring_solves_what_no_minibatch_determines():
    """A consistent linear system, two equations at a time: with the minimum-norm correction
    (Kaczmarz with memory) it is solved.
    """
    solution, x = normal(6, 1, seed=1), normal(40, 6, seed=2)
    problem = pb.Composite(lambda p, x: x @ p, half_square)
    opt = pb.NaturalGradientDescent(problem, momentum=pb.Spring(0.5))

    def body(carry, index):
        batch = jax.lax.dynamic_slice_in_dim(x, 2 * index, 2)
        params, state, record = opt.step(*carry, (batch, batch @ solution))
        return (params, state), record

    start = jnp.zeros((6, 1))
    (params, _), records = jax.lax.scan(body, (start, opt.init(start)), jnp.tile(jnp.arange(20), 5))
    assert np.abs(params - solution).max() < 2e-3 * np.abs(solution).max()
    assert records.loss.shape == (100,) and bool(jnp.all(records.accepted))


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
    like, pinv = pb._tree.structure(PARAMS), np.linalg.pinv(a)
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
        "pullback.step": {"step": 0.1},
        "Spring": {"momentum": 0.9},
        "function of the parameters": {"penalty": 0.1},
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
        "another step rule": lambda: pb.step.Geodesic(0.1),
        "at least one": lambda: pb.step.GridSearch(()),
    }.items():
        with pytest.raises(ValueError, match=words):
            make()
    with pytest.raises(ValueError, match="no floating array"):
        pb.NaturalGradientDescent(PROBLEM).init({"n": 3})
