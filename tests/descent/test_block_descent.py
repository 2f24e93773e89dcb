"""Descent with averages of the blocks of the metric, against dense NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import flat, normal
from jax.flatten_util import ravel_pytree

import pullback as pb

X, Y = normal(12, 3, seed=1), normal(12, 2, seed=2)
PARAMS = {
    "first": {"w": normal(3, 4, seed=3), "b": normal(4, seed=4)},
    "second": {"w": normal(4, 2, seed=5), "b": normal(2, seed=6)},
}
LAYERS = (np.arange(16), np.arange(16, 26))
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8, 0, 4)]


def model(p, x):
    h = jnp.tanh(x @ p["first"]["w"] + p["first"]["b"][None])
    return h @ p["second"]["w"] + p["second"]["b"][None]


PROBLEM = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)


def by_hand(batches, average, damping, rate, momentum, every=1, radius=None):
    """The parameters after each step."""
    theta, unravel = ravel_pytree(PARAMS)
    theta, found = np.asarray(theta), []
    metrics, velocity, k = [np.zeros((b.size, b.size)) for b in LAYERS], np.zeros(26), 0
    for count, (x, y) in enumerate(batches):
        outputs = lambda v, x=x: model(unravel(v), x).ravel()
        a = np.asarray(jax.jacrev(outputs)(jnp.asarray(theta))) / np.sqrt(len(x))
        r = np.asarray(outputs(jnp.asarray(theta)) - y.ravel()) / np.sqrt(len(x))
        g, delta = a.T @ r, np.zeros(26)
        if count < 10 or count % every == 0:
            k += 1
            for i, b in enumerate(LAYERS):
                metrics[i] = average * metrics[i] + (1 - average) * a[:, b].T @ a[:, b]
        for i, b in enumerate(LAYERS):
            corrected = metrics[i] / (1 - average**k) + damping * np.eye(b.size)
            delta[b] = np.linalg.solve(corrected, g[b])
        velocity = momentum * velocity + delta
        length = rate * np.sqrt(g @ delta)
        scale = 1.0 if radius is None else min(1.0, radius / length)
        theta = theta - rate * scale * velocity
        found.append(theta)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"average": 0.0, "momentum": 0.0},
        {"average": 0.8, "momentum": 0.0, "every": 2},
        {"average": 0.8, "momentum": 0.7, "radius": 0.05},
    ],
)
def test_it_is_the_recursion(options):
    settings = {"damping": 0.05, "rate": 0.3} | options
    opt, params = pb.BlockDescent(PROBLEM, **settings), PARAMS
    state = opt.init(params)
    batches = list(BATCHES) * -(-14 // len(BATCHES))
    for batch, wanted in zip(batches, by_hand(batches, **settings), strict=True):
        params, state, record = opt.step(params, state, batch)
        assert record.result == pb.RESULTS.successful and bool(record.accepted)
        assert float(record.residual) < 1e-9
        assert np.allclose(flat(params), wanted, atol=1e-11)
        if "radius" in options:
            assert float(record.metric_norm) <= 0.05 * (1 + 1e-12)


def test_without_memory_it_is_the_step_of_the_solver_of_blocks():
    opt = pb.BlockDescent(PROBLEM, average=0.0, damping=0.1, rate=1.0, momentum=0.0)
    moved, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    ng = pb.natural_gradient(
        PROBLEM, PARAMS, (X, Y), inverse=pb.Tikhonov(0.1), solver=pb.solver.Blocks()
    )
    assert np.allclose(flat(PARAMS) - flat(moved), flat(ng.vector), atol=1e-12)
    assert float(record.loss) == pytest.approx(float(ng.value))


def test_a_layer_whose_first_metric_is_zero_does_not_run_away():
    start = {**PARAMS, "second": jax.tree.map(jnp.zeros_like, PARAMS["second"])}
    opt = pb.BlockDescent(PROBLEM, damping=1e-3, every=100)
    losses = pb.fit(opt, start, (X, Y), 30, until=()).history["loss"]
    assert losses.max() <= losses[0] and losses[-1] < 0.7 * losses[0]


def test_a_penalty_is_part_of_the_gradient_and_not_of_the_metric():
    penalty = lambda p: jnp.sum(p["first"]["w"] ** 2) / 2
    settings = {"average": 0.0, "damping": 0.1, "rate": 1.0, "momentum": 0.0}
    opt = pb.BlockDescent(PROBLEM, penalty=penalty, **settings)
    moved, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    whole = pb.NaturalGradientDescent(
        PROBLEM, pb.Tikhonov(0.1), pb.solver.Blocks(), 1.0, penalty=penalty
    )
    wanted, _, other = whole.step(PARAMS, whole.init(PARAMS), (X, Y))
    assert np.allclose(flat(moved), flat(wanted), atol=1e-12)
    assert float(record.loss) == pytest.approx(float(other.loss))
    assert float(opt.loss(PARAMS, (X, Y))) == pytest.approx(float(other.loss))


def test_it_trains_in_fit_with_a_schedule():
    opt = pb.BlockDescent(PROBLEM, rate=lambda count: 0.5 / (1 + count / 10), damping=1e-3)
    fit = pb.fit(opt, PARAMS, pb.minibatches((X, Y), 6), 60)
    losses = fit.history["loss"]
    assert losses[-1] < 0.05 * losses[0]
    assert "BlockDescent(" in repr(opt)


def test_a_batch_with_a_nan_changes_nothing():
    opt = pb.BlockDescent(PROBLEM)
    params, state, _ = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    again, after, record = opt.step(params, state, (X.at[0, 0].set(jnp.nan), Y))
    assert record.result == pb.RESULTS.nonfinite_batch and bool(record.failed)
    assert np.array_equal(flat(again), flat(params)) and int(after.count) == 2
    assert int(after.updates) == 1 and np.array_equal(after.metrics[0], state.metrics[0])


def test_a_model_that_mixes_samples_is_seen():
    mixed = pb.Composite(
        lambda p, x: model(p, x) - jnp.mean(model(p, x), axis=0)[None], PROBLEM.loss
    )
    opt = pb.BlockDescent(mixed)
    _, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert record.result == pb.RESULTS.coupled_samples


def test_a_damping_below_rounding_is_not_called_successful():
    opt = pb.BlockDescent(PROBLEM, damping=1e-30)
    same, _, record = opt.step(PARAMS, opt.init(PARAMS), (X[:2], Y[:2]))
    assert record.result in (pb.RESULTS.nonfinite_vector, pb.RESULTS.unconverged)
    assert np.array_equal(flat(same), flat(PARAMS))


def test_single_precision_and_a_convolution():
    def conv(p, x):
        x = jax.lax.conv_general_dilated(x[:, None], p["conv"]["k"], (2, 2), "SAME")
        return jnp.tanh(x).reshape(x.shape[0], -1) @ p["head"]["w"] + p["head"]["b"][None]

    params = {
        "conv": {"k": normal(3, 1, 3, 3, seed=7).astype(jnp.float32)},
        "head": {
            "w": 0.3 * normal(12, 4, seed=8).astype(jnp.float32),
            "b": jnp.zeros(4, jnp.float32),
        },
    }
    problem = pb.Composite(conv, metric=pb.metric.Categorical())
    batch = (normal(10, 4, 4, seed=9).astype(jnp.float32), jnp.arange(10) % 4)
    opt = pb.BlockDescent(problem, damping=1e-2, momentum=0.0, rate=1.0)
    state = opt.init(params)
    moved, state, record = opt.step(params, state, batch)
    assert record.result == pb.RESULTS.successful and state.metrics[0].dtype == jnp.float32
    wide = eqx.filter(jax.tree.map(lambda x: x.astype(float), params), eqx.is_array)
    ng = pb.natural_gradient(
        problem, wide, (batch[0].astype(float), batch[1]),
        inverse=pb.Tikhonov(1e-2), solver=pb.solver.Blocks(),
    )  # fmt: skip
    change = flat(params) - flat(moved)
    assert np.linalg.norm(change - flat(ng.vector)) < 1e-4 * np.linalg.norm(change)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"average": 1.0}, r"BlockDescent\(average=1.0\): average must be below 1 and >= 0"),
        ({"momentum": -0.1}, "momentum must be"),
        ({"damping": 0.0}, "damping must be positive"),
        ({"rate": -1.0}, "rate must be positive"),
        ({"radius": 0.0}, "radius must be positive"),
        ({"every": 0}, "every must be an integer of at least 1"),
        ({"largest": 0.5}, "largest must be an integer"),
        ({"blocks": "first"}, "blocks must be a function"),
        ({"penalty": 0.1}, "penalty must be a function"),
    ],
)
def test_bad_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        pb.BlockDescent(PROBLEM, **options)


def test_a_block_that_is_too_large_is_refused_by_name():
    opt = pb.BlockDescent(PROBLEM, largest=15)
    with pytest.raises(ValueError, match=r"that of \['first'\]\['b'\] has 16, e.g. BlockDescent\("):
        opt.init(PARAMS)


def test_a_model_with_state_takes_the_new_state_over():
    def counting(p, state, x):
        return model(p, x) + state["shift"], {"shift": state["shift"] + 0.25}

    problem = pb.Composite(counting, PROBLEM.loss, stateful=True)
    point = pb.Stateful(PARAMS, {"shift": jnp.zeros(())})
    settings = {"average": 0.5, "damping": 0.05, "rate": 0.3, "momentum": 0.0}
    opt, plain = (pb.BlockDescent(x, **settings) for x in (problem, PROBLEM))
    moved, state, record = opt.step(point, opt.init(point), (X, Y))
    wanted, _, _ = plain.step(PARAMS, plain.init(PARAMS), (X, Y))
    assert record.result == pb.RESULTS.successful and float(moved.state["shift"]) == 0.25
    assert np.allclose(flat(moved.params), flat(wanted), atol=1e-12)
    again, _, _ = opt.step(moved, state, (X, Y))
    assert float(again.state["shift"]) == 0.5
    # The same blocks, without an average.
    ng = pb.natural_gradient(
        problem, point, (X, Y), inverse=pb.Tikhonov(0.05), solver=pb.solver.Blocks()
    )
    assert ng.stats.blocks == 2
    change = (flat(PARAMS) - flat(moved.params)) / 0.3
    assert np.allclose(flat(eqx.filter(ng.vector, eqx.is_array)), change, atol=1e-12)


def test_a_state_that_is_spoilt_is_not_taken_over():
    spoiling = lambda p, state, x: (model(p, x), {"mean": jnp.nan * state["mean"]})
    problem = pb.Composite(spoiling, PROBLEM.loss, stateful=True)
    point = pb.Stateful(PARAMS, {"mean": jnp.ones(())})
    opt = pb.BlockDescent(problem)
    moved, _, record = opt.step(point, opt.init(point), (X, Y))
    assert record.result == pb.RESULTS.nonfinite_state and not bool(record.accepted)
    assert float(moved.state["mean"]) == 1.0


def test_targets_that_the_likelihood_does_not_admit_are_refused():
    for metric, y in (
        (pb.metric.Poisson(), jnp.asarray([1.0, 2.0, -1.0])),
        (pb.metric.Bernoulli(), jnp.asarray([1.0, 0.0, 5.0])),
    ):
        opt = pb.BlockDescent(pb.Composite(lambda p, x: x @ p["w"], metric=metric))
        params = {"w": jnp.ones(3)}
        same, _, record = opt.step(params, opt.init(params), (X[:3], y))
        assert record.result == pb.RESULTS.bad_targets and not bool(record.accepted)
        assert np.array_equal(same["w"], params["w"])


def test_a_metric_that_overflows_does_not_stay_in_the_averages():
    # The loss of a batch with inputs of 1e20 is finite in single precision, and its metric is not.
    problem = pb.Composite(lambda p, x: x @ p["w"], lambda z, y: jnp.abs(z - y))
    opt, params = pb.BlockDescent(problem), {"w": jnp.ones(3, jnp.float32)}
    x, y = X.astype(jnp.float32), jnp.zeros(len(X), jnp.float32)
    params, state, _ = opt.step(params, opt.init(params), (x, y))
    same, after, record = opt.step(params, state, (1e20 * x, y))
    assert bool(record.failed) and np.array_equal(same["w"], params["w"])
    assert int(after.updates) == 1
    for new, old in zip(
        after.metrics + after.inverses, state.metrics + state.inverses, strict=True
    ):
        assert np.array_equal(new, old)
    assert bool(opt.step(params, after, (x, y))[2].accepted)


def test_a_rate_that_is_not_finite_is_named():
    opt = pb.BlockDescent(PROBLEM, rate=lambda count: jnp.nan * count.astype(float))
    _, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    assert record.result == pb.RESULTS.nonfinite_move and bool(record.failed)


def test_the_norm_of_the_gradient_is_in_the_record():
    opt = pb.BlockDescent(PROBLEM, damping=1e-2)
    _, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    loss = lambda p: jnp.mean(jnp.sum((model(p, X) - Y) ** 2, axis=1)) / 2
    slope = np.linalg.norm(np.asarray(ravel_pytree(jax.grad(loss)(PARAMS))[0]))
    np.testing.assert_allclose(record.gradient_norm, slope, rtol=1e-12)
    fit = pb.fit(opt, PARAMS, (X, Y), 3, until=pb.until.GradientBelow(10 * float(slope)))
    assert fit.steps == 1


@pytest.mark.parametrize("make", [pb.BlockDescent, pb.NaturalGradientDescent])
def test_a_step_that_overflows_in_half_precision_is_not_taken(make):
    """70 000 is a number of float32, in which is computed, and none of float16."""
    problem = pb.Composite(lambda p, x: x.astype(jnp.float32) @ p.astype(jnp.float32),
                           lambda z, y: (z - y) ** 2 / 2)  # fmt: skip
    params, x = jnp.full(2, 100.0, jnp.float16), jnp.eye(2, dtype=jnp.float32)
    options = {"damping": 1e-6, "rate": 1.0} if make is pb.BlockDescent else {"step": 1.0}
    opt = make(problem, **options)
    moved, _, record = opt.step(params, opt.init(params), (x, jnp.full(2, 7e4, jnp.float32)))
    assert not bool(record.accepted) and np.array_equal(moved, params)
    moved, _, record = opt.step(params, opt.init(params), (x, jnp.full(2, 3e4, jnp.float32)))
    assert bool(record.accepted) and np.allclose(moved, 3e4, rtol=1e-2)
