"""Flows: closed forms, long times, events, and what a second dataset costs."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import testing
from pullback._flow.log_loss import closed_form, total_log_loss
from pullback._problem.batch import Batch
from pullback.metric._log_loss import log_softplus

MODEL = testing.tanh_mlp(2, 1, 5, jax.random.key(0))
X, Y = normal(6, 2, seed=1), normal(6, 1, seed=2)
TRACES = []


def counted(params, x):
    TRACES.append(1)
    return MODEL.function(params, x)


LEAST_SQUARES = pb.Composite(counted, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)


def ratio_to_exponential(sol, times, targets):
    """The largest deviation of residual · e^t from constant, relative."""
    start = np.asarray(MODEL.function(MODEL.params, X) - targets)
    residuals = np.asarray(sol.outputs(jnp.asarray(times))) - np.asarray(targets)[None]
    deviation = residuals * np.exp(times)[:, None, None] - start[None]
    return float(np.max(np.linalg.norm(deviation, axis=1)) / np.linalg.norm(start))


def test_residuals_of_least_squares_shrink_as_exp_and_a_second_dataset_compiles_nothing():
    times = np.linspace(0.0, 5.0, 11)
    sol = pb.flow(LEAST_SQUARES, MODEL.params, (X, Y), t1=5.0, rtol=1e-8, atol=1e-10)
    assert sol.result == pb.RESULTS.successful and float(sol.t) == 5.0
    assert ratio_to_exponential(sol, times, Y) < 1e-6
    before = len(TRACES)
    other = pb.flow(LEAST_SQUARES, MODEL.params, (X, Y + 1), t1=6.0, rtol=1e-8, atol=1e-10)
    assert len(TRACES) == before
    assert ratio_to_exponential(other, times, Y + 1) < 1e-6
    # Beyond the end the stopped flow stays where it is; before the start there is nothing.
    assert np.array_equal(other.evaluate(100.0)["w"], other.params["w"]) and np.all(
        np.isfinite(other.params["w"])
    )
    with pytest.raises(ValueError, match="starts at t0 = 0"):
        other.evaluate(-1.0)
    assert np.allclose(
        np.asarray(sol.steps[1])[[0, -1]], sol.value(jnp.asarray([0.0, 5.0])), rtol=1e-9
    ) and "reached t1" in str(sol)


def test_an_event_is_located_and_everything_after_it_is_defined():
    ts = jnp.linspace(0.0, 40.0, 9)
    sol = pb.flow(
        LEAST_SQUARES,
        MODEL.params,
        (X, Y),
        t1=40.0,
        ts=ts,
        events=[pb.event.GradientBelow(1e-12), pb.event.LossBelow(1e-4)],
    )
    start = float(LEAST_SQUARES.value(MODEL.function(MODEL.params, X), Batch(X, Y)))
    assert sol.result == pb.RESULTS.flow_event and int(sol.event) == 1
    assert abs(float(sol.t) - np.log(start / 1e-4) / 2) < 1e-6
    assert "the loss fell to 0.0001" in sol.message
    assert np.array_equal(sol.saved["w"][-1], sol.params["w"]) and np.all(
        np.isfinite(sol.saved["w"])
    )
    with pytest.raises(ValueError, match="no dense output"):
        sol.evaluate(1.0)


LABELS = jnp.asarray([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
SIGNS = 2 * LABELS - 1
LOGISTIC = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli())


def test_logistic_with_more_parameters_than_samples_follows_its_closed_form():
    x, beta = normal(6, 9, seed=3), normal(9, seed=4)
    sol = pb.flow(LOGISTIC, beta, (x, LABELS), t1=50.0, rtol=1e-10, atol=1e-11)
    times = np.asarray([0.5, 5.0, 20.0, 50.0])
    u0 = np.asarray(SIGNS * (x @ beta))
    expected = np.asarray(SIGNS)[None] * np.log(
        np.expm1(times[:, None] + np.log1p(np.exp(u0))[None])
    )
    assert np.max(np.abs(np.asarray(sol.outputs(jnp.asarray(times))) / expected - 1)) < 1e-8


@pytest.mark.parametrize(
    "kind",
    [pb.NaturalFlow(), pytest.param(pb.NewtonFlow(), marks=pytest.mark.slow)],
    ids=["natural", "newton"],
)
def test_logistic_with_more_samples_is_newton_flow(kind):
    x, beta = normal(12, 3, seed=5), normal(3, seed=6)
    labels = (normal(12, seed=7) > 0).astype(float)
    slope = jax.grad(lambda b: LOGISTIC.value(x @ b, Batch(x, labels)))
    sol = pb.flow(LOGISTIC, beta, (x, labels), t1=6.0, kind=kind, rtol=1e-11, atol=1e-13)
    for t in (1.0, 6.0):
        found = slope(sol.evaluate(t)) * np.exp(t) / jnp.linalg.norm(slope(beta))
        assert np.allclose(found, slope(beta) / jnp.linalg.norm(slope(beta)), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "solver",
    [pb.solver.SVD(), pytest.param(pb.solver.Primal(), marks=pytest.mark.slow)],
    ids=["svd", "primal"],
)
def test_a_flow_that_amplifies_its_errors_stops_before_they_show(solver):
    """The second coefficient is decided by rows that weigh less and less than the first row; the
    errors of the steps grow by the ratio.
    """
    x = jnp.asarray([[1.0, 0.0], [3.0, 2.0], [2.0, -1.0], [4.0, -1.0]])
    options: Any = {"t1": 100.0, "kind": pb.NaturalFlow(solver=solver), "ts": jnp.arange(1.0, 9.0)}
    sol = pb.flow(LOGISTIC, jnp.zeros(2), (x, jnp.ones(4)), throw=False, **options)
    assert sol.result == pb.RESULTS.flow_unstable and 8 < float(sol.t) < 30
    right = pb.linear.Logistic().flow(jnp.zeros(2), x, jnp.ones(4), float(sol.t))
    assert np.allclose(sol.params, right, rtol=1e-3)
    with pytest.raises(RuntimeError, match="amplifies errors"):
        pb.flow(LOGISTIC, jnp.zeros(2), (x, jnp.ones(4)), **options)


TIES = {
    # Rows with their labels. The limit of the first two is decided by rows that vanish in the
    # heaviest, that of the third by rows on three levels.
    "symmetric": [(1, 0), (3, 1), (3, -1)],
    "every row twice": [(1, 0), (3, 2), (2, -1), (4, -1)] * 2,
    "three of four tied": [(1, 0), (2, 1), (2, 1), (3, -1), (1, -1)],
    "an active row without a multiplier": [(1, 0), (1, 1), (1, -1)],
}


@pytest.mark.parametrize(
    "rows", [pytest.param(rows, marks=pytest.mark.slow) for rows in TIES.values()], ids=list(TIES)
)
def test_ties_stop_a_flow_or_leave_it_right(rows):
    x = jnp.asarray(rows, float)
    labels = jnp.ones(len(rows))
    kind = pb.NaturalFlow(solver=pb.solver.SVD())
    sol = pb.flow(LOGISTIC, jnp.zeros(2), (x, labels), t1=60.0, kind=kind, throw=False)
    assert sol.result in (pb.RESULTS.successful, pb.RESULTS.flow_unstable)
    assert float(sol.t) == 60 if sol.result == pb.RESULTS.successful else float(sol.t) > 5
    right = pb.linear.Logistic().flow(jnp.zeros(2), x, labels, float(sol.t))
    assert np.allclose(sol.params, right, rtol=1e-3, atol=1e-3)


def test_a_loose_tolerance_is_no_reason_to_stop():
    """Spread by less than a hundred: the curve is as accurate as it was asked to be."""
    x = jnp.asarray([[1.0, 0.2], [0.5, 1.0], [-0.3, 1.0]])
    sol = pb.flow(LOGISTIC, jnp.zeros(2), (x, jnp.ones(3)), t1=3.0, rtol=1e-2, atol=1e-2)
    right = pb.linear.Logistic().flow(jnp.zeros(2), x, jnp.ones(3), 3.0)
    assert np.allclose(sol.params, right, rtol=3e-2)


DEEP = pb.Composite(lambda p, x: x @ jnp.prod(p, axis=0), metric=pb.metric.Bernoulli())
# Margin 0.43. An explicit integrator takes steps of the order of margin² in log t: with 0.1 it
# needs 2500 right-hand sides (docs/flows.md).
SEPARABLE = normal(20, 5, seed=20)
TEACHER = jnp.sign(SEPARABLE @ normal(5, seed=21))


def separable(depth, t1, **kwargs):
    start = 0.1 * normal(depth, 5, seed=10)
    batch = (SEPARABLE, (TEACHER + 1) / 2)
    return start, pb.flow(
        DEEP,
        start,
        batch,
        t1=t1,
        kind=pb.EuclideanFlow(),
        clock=pb.LogTime(),
        rtol=1e-6,
        atol=1e-8,
        **kwargs,
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_the_euclidean_flow_of_a_separable_problem_reaches_long_times(depth):
    start, sol = separable(depth, 1e6)
    assert (
        sol.result == pb.RESULTS.successful
        and float(sol.t) == 1e6
        and int(sol.right_hand_sides) < 2000
    )

    def loss(w):
        return jnp.mean(jax.nn.softplus(-TEACHER * (SEPARABLE @ jnp.prod(w, axis=0))))

    plain = jax.jit(
        lambda w: jax.lax.fori_loop(0, 20000, lambda _, w: w - 0.05 * jax.grad(loss)(w), w)
    )(start)
    a, b = np.prod(np.asarray(plain), axis=0), np.prod(np.asarray(sol.evaluate(1000.0)), axis=0)
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 1 - 1e-4
    far = separable(depth, 1e100)[1]
    margins = np.asarray(TEACHER * (SEPARABLE @ jnp.prod(far.params, axis=0)))
    assert far.result == pb.RESULTS.successful and float(far.t) == 1e100
    # L ~ 1/t up to logarithms: the loss is near 1e-100, far below what 1 - p resolves.
    assert 220 < margins.min() < 245


def test_the_logarithm_of_a_loss_does_not_underflow():
    v = jnp.asarray([-2000.0, -700.0, -40.0, -8.1, -7.9, 0.0, 3.0])
    assert np.allclose(
        log_softplus(v)[1:], np.log(np.log1p(np.exp(np.asarray(v[1:])))), rtol=1e-15, atol=0
    )
    assert float(log_softplus(v)[0]) == -2000.0 and np.allclose(
        jax.vmap(jax.grad(log_softplus))(v)[:2], 1.0
    )
    logits, classes = 3 * normal(4, 3, seed=11), jnp.asarray([0, 2, 1, 1])
    for metric, z, y in (
        (pb.metric.Categorical(), logits, classes),
        (pb.metric.Categorical(), logits, jax.nn.softmax(normal(4, 3, seed=12))),
        (pb.metric.Bernoulli(), logits, jax.nn.sigmoid(normal(4, 3, seed=13))),
    ):
        problem, batch = pb.Composite(lambda p, x: x, metric=metric), Batch(z, y)
        per_sample = jax.jit(jax.vmap(closed_form(problem)))
        found = total_log_loss(problem.at(batch), per_sample, z)
        assert np.isclose(float(found), np.log(float(problem.value(z, batch))), rtol=1e-13)


def test_a_flow_that_meets_a_rank_change_stops_there_and_says_so():
    # z = w², towards z = -1: w reaches zero, where J = 2w vanishes, at z(t) = 2e^-t - 1 = 0.
    problem = pb.Composite(
        lambda w: jnp.stack([w[0] ** 2, w[1]]), lambda z: (z[0] + 1) ** 2 / 2 + z[1] ** 2 / 2
    )
    sol = pb.flow(problem, jnp.ones(2), t1=3.0)
    assert sol.result == pb.RESULTS.rank_changed and abs(float(sol.t) - np.log(2)) < 1e-6
    assert (
        "change of rank" in sol.message
        and "smallest singular value" in sol.message
        and np.all(np.isfinite(sol.evaluate(2.0)))
    )
    early = pb.flow(problem, jnp.ones(2), t1=3.0, rank=pb.event.RankChange(1e-2))
    assert early.result == pb.RESULTS.rank_changed and 1e-4 < float(early.params[0]) < 1e-2


@pytest.mark.slow
def test_a_rank_change_where_all_singular_values_vanish_together():
    # Their ratio tells nothing; the steps that shrink to nothing do.
    alone = pb.flow(
        pb.Composite(lambda w: w**2, lambda z: jnp.sum((z + 1) ** 2) / 2), jnp.ones(1), t1=3.0
    )
    assert alone.result == pb.RESULTS.rank_changed and abs(float(alone.t) - np.log(2)) < 1e-6


def test_a_custom_event_a_constraint_and_a_bad_start():
    problem = pb.Composite(lambda w: w, lambda z: jnp.sum((z - 2) ** 2) / 2)
    inside = pb.constraint.Clipping(0.0, 1.0)
    start = jnp.asarray([0.5, 0.25])
    run = lambda **kwargs: pb.flow(
        problem, start, t1=5.0, rank=None, kind=pb.EuclideanFlow(), **kwargs
    )
    events = [pb.event.When(lambda t, w: 1.5 - w[1], "1.5")]
    sol = run(constraint=inside, events=events)
    # θ = 2 - (2 - θ₀)e^-t: the first coordinate leaves first.
    assert sol.result == pb.RESULTS.left_constraint and abs(float(sol.t) - np.log(1.5)) < 1e-7
    with pytest.raises(
        ValueError, match=r"violates the constraint Clipping by 0.5.*constraint\(params\)"
    ):
        pb.flow(problem, jnp.asarray([1.5, 0.0]), t1=1.0, constraint=inside)
    with pytest.raises(ValueError, match="happened already at the start: the loss fell to 100"):
        run(events=[pb.event.LossBelow(100.0)])
    bent = pb.Composite(lambda w: jnp.log(w), lambda z: jnp.sum(z))
    with pytest.raises(RuntimeError, match=r"`params` contains a NaN.*index \(1,\)"):
        pb.flow(bent, start.at[1].set(jnp.nan), t1=5.0, rank=None, kind=pb.EuclideanFlow())
    # Into a singularity of the loss: the state before it comes back, with a result.
    lost = pb.flow(bent, start, t1=5.0, rank=None, kind=pb.EuclideanFlow(), throw=False)
    assert lost.result in (
        pb.RESULTS.flow_stalled,
        pb.RESULTS.nonfinite_field,
        pb.RESULTS.flow_max_steps,
    ) and np.all(np.isfinite(lost.params))
    with pytest.raises(ValueError, match="t0 < t1"):
        pb.flow(problem, start, t1=float("inf"))
    with pytest.raises(ValueError, match=r"GiB.*ts=jnp.linspace"):
        pb.flow(problem, jnp.zeros(10**6), t1=1.0)


def test_a_model_that_mixes_samples_has_the_same_reason_raised_or_returned():
    centred = lambda p, x: MODEL.function(p, x) - jnp.mean(MODEL.function(p, x), axis=0)[None]
    problem = pb.Composite(centred, LEAST_SQUARES.loss)
    with pytest.raises(RuntimeError, match="the model mixes samples"):
        pb.flow(problem, MODEL.params, (X, Y), t1=1.0)
    sol = pb.flow(problem, MODEL.params, (X, Y), t1=1.0, throw=False)
    assert sol.result == pb.RESULTS.coupled_samples and float(sol.t) == 0.0


def test_steps_that_run_out_have_a_result_and_a_state():
    with pytest.raises(
        RuntimeError, match=r"did not reach t1 in `max_steps` steps.*It got to t = "
    ):
        separable(1, 1e6, max_steps=5)
    _, sol = separable(1, 1e6, max_steps=5, throw=False)
    assert (
        sol.result == pb.RESULTS.flow_max_steps
        and np.all(np.isfinite(sol.params))
        and 0 < float(sol.t) < 1e6
    )


@pytest.mark.slow
def test_rosenbrock_implicitly_and_in_the_metric_norm():
    problem = pb.Composite(
        lambda x: jnp.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)]), lambda z: jnp.sum(z**2)
    )
    start = jnp.asarray([-1.2, 1.0])
    sol = pb.flow(
        problem,
        start,
        t1=300.0,
        kind=pb.EuclideanFlow(),
        solver=dfx.Kvaerno5(),
        rtol=1e-6,
        atol=1e-8,
    )
    assert int(sol.right_hand_sides) == -1 and np.allclose(sol.params, 1.0, atol=1e-4)
    # Along the natural flow z = z₀ e^{-2t}, and the error per step is bounded in the metric, that
    # is in z.
    errors = []
    for tolerance in (1e-4, 1e-7):
        sol = pb.flow(problem, start, t1=2.0, control=pb.MetricControl(tolerance))
        errors.append(
            float(jnp.linalg.norm(sol.outputs(2.0) - jnp.asarray([2.2, -4.4]) * np.exp(-4)))
        )
        assert errors[-1] < 20 * tolerance
    assert errors[1] < errors[0] / 50
    with pytest.raises(ValueError, match="positive and finite"):
        pb.MetricControl(0.0)


@pytest.mark.slow
def test_the_progress_bar_is_shown(capfd):
    pb.flow(
        LOGISTIC,
        jnp.zeros(3),
        (normal(4, 3), LABELS[:4]),
        t1=0.1,
        kind=pb.EuclideanFlow(),
        progress=True,
        rank=None,
    )
    jax.effects_barrier()
    assert "100.00%" in "".join(capfd.readouterr())


@pytest.mark.slow
def test_carried_leaves_and_single_precision():
    params = {"w": normal(3).astype(jnp.float32), "n": 2}
    problem = pb.Composite(lambda p, x: x @ p["w"] * p["n"], lambda z, y: (z - y) ** 2 / 2)
    batch = (normal(4, 3).astype(jnp.float32), normal(4).astype(jnp.float32))
    sol = pb.flow(problem, params, batch, t1=2.0)
    assert (
        sol.params["n"] == 2
        and sol.params["w"].dtype == jnp.float32
        and eqx.tree_equal(sol.evaluate(2.0), sol.params)
    )
