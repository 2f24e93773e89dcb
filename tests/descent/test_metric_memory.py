"""The averaged metric against a dense loop that keeps G itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curved import PARAMS, PROBLEM, X, Y, close, curved, dense, flat, half_square
from helpers import normal

import pullback as pb
from pullback._base.tree import structure

BATCHES = [(normal(3, 2, seed=10 + i), normal(3, 2, seed=30 + i)) for i in range(5)]
DAMPING, RATE = 0.05, 0.3


def by_hand(batches, factor, start=None, terms=1.0):
    """δ = (M + λ)⁻¹ g with M the average of all G so far, by NumPy."""
    like, point = structure(PARAMS), flat(PARAMS)
    size = point.size
    metric = np.zeros((size, size)) if start is None else start * np.eye(size)
    points, metrics = [], []
    for k, batch in enumerate(batches, start=1):
        a, r, _ = dense(params=like.unravel(jnp.asarray(point)), batch=batch)
        if start is None:
            total = factor * (1 - factor ** (k - 1)) * metric + (1 - factor) * a.T @ a
            metric = total / (1 - factor**k)
        else:
            metric = factor * metric + (1 - factor) * a.T @ a
        point = point - RATE * np.linalg.solve(metric + DAMPING * np.eye(size), a.T @ r)
        points.append(point)
        metrics.append(metric)
    return np.array(points), np.array(metrics)


def ours(batches, memory, problem=PROBLEM, **options):
    options = {"inverse": pb.Tikhonov(DAMPING), "step": RATE} | options
    opt = pb.NaturalGradientDescent(problem, metric_memory=memory, **options)

    def body(carry, batch):
        params, state, record = opt.step(*carry, batch)
        return (params, state), (structure(params).ravel(params), state.metric, record)

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    start = (PARAMS, opt.init(PARAMS))
    return jax.jit(lambda: jax.lax.scan(body, start, stacked))()[1]


@pytest.mark.parametrize("start", [None, 0.0, 1.0])
@pytest.mark.parametrize("solver", [pb.solver.Primal(), pb.solver.SVD(), pb.solver.Auto()],
                         ids=lambda x: type(x).__name__)  # fmt: skip
def test_the_metric_is_the_average_and_the_step_is_its_own(start, solver):
    points, metrics = by_hand(BATCHES, 0.6, start)
    found, memory, record = ours(BATCHES, pb.MetricMemory(0.6, start), solver=solver)
    close(found, points)
    close(np.einsum("kip,kiq->kpq", memory.root, memory.root), metrics)
    assert bool(np.all(record.result == pb.RESULTS.successful)) and record.losses is None
    assert memory.count.tolist() == [1, 2, 3, 4, 5]


def test_a_number_is_the_factor_and_zero_remembers_nothing():
    plain = pb.NaturalGradientDescent(PROBLEM, inverse=pb.Tikhonov(DAMPING), step=RATE)
    expected = plain.step(PARAMS, plain.init(PARAMS), (X, Y))
    found, _, record = ours([(X, Y)], 0.0)
    close(found[0], flat(expected[0]))
    close(record.loss[0], expected[2].loss)
    close(record.loss_after[0], expected[2].loss_after)


def test_with_terms_rules_that_damp_curves_momentum_and_a_penalty():
    both = pb.Terms(
        {"one": pb.Composite(curved, half_square), "two": pb.Composite(curved, half_square)},
        weights={"one": 0.25, "two": 0.75},
    )
    pairs = [{"one": batch, "two": batch} for batch in BATCHES]
    # The same batch in both terms: the sum of the two is the problem itself.
    points, _ = by_hand(BATCHES, 0.6)
    found, _, record = ours(pairs, 0.6, both)
    close(found, points)
    close(record.losses["one"], record.loss)
    assert set(record.weights) == {"one", "two"}
    rule = pb.step.Geodesic(pb.step.LevenbergMarquardt(minimum=1e-6))
    options = {"inverse": None, "step": rule, "momentum": pb.Spring(0.5, corrected=True)}
    penalty = lambda p: 1e-3 * sum(jnp.sum(x**2) for x in jax.tree.leaves(p))
    _, _, record = ours([(X, Y)] * 5, 0.6, penalty=penalty, **options)
    assert np.all(record.accepted) and record.loss[-1] < 0.1 * record.loss[0]


def test_likelihoods_without_data_and_with_complex_outputs():
    gaussian = pb.metric.Gaussian()
    alone = pb.Composite(lambda p: jnp.tanh(p["w"] @ p["b"]), metric=gaussian)
    rotated = lambda p, x: jax.lax.complex(*(curved(p, x + k) for k in (0.0, 1.0)))
    waves = pb.Composite(rotated, metric=gaussian)
    for problem, batch in ((alone, (None, Y[0])), (waves, (X, jax.lax.complex(Y, 1 + Y)))):
        found = []
        for memory in (0.6, None):
            opt = pb.NaturalGradientDescent(problem, step=RATE, metric_memory=memory)
            params, _, record = opt.step(PARAMS, opt.init(PARAMS), batch)
            found.append(np.append(flat(params), record.loss))
        # The first average is the metric of the first batch.
        close(*found)


def test_a_low_rank_keeps_the_largest_and_reports_what_it_drops():
    # Rank 6 is all that two batches of three samples with two outputs have, at one point.
    _, full, _ = ours(BATCHES[:2], pb.MetricMemory(0.6), step=1e-9)
    size = full.root.shape[-1]
    for rank in (size, 4):
        _, memory, _ = ours(BATCHES[:2], pb.MetricMemory(0.6, rank=rank), step=1e-9)
        gram = lambda m: np.asarray(m.root[-1].T @ m.root[-1])
        s = np.linalg.eigvalsh(gram(full))
        if rank == size:
            close(gram(memory), gram(full), 1e-7)
            assert memory.dropped[-1] < 1e-10
        else:
            assert 0 < memory.dropped[-1] < 1 - s[-4:].sum() / s.sum() + 0.1
            assert np.linalg.matrix_rank(gram(memory)) == 4


def test_failed_steps_remember_nothing_and_rejected_ones_do():
    opt = pb.NaturalGradientDescent(PROBLEM, step=0.1, metric_memory=0.5)
    params, state, _ = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    _, after, record = opt.step(params, state, (X.at[0, 0].set(jnp.nan), Y))
    assert bool(record.failed) and int(after.metric.count) == 1
    close(after.metric.root, state.metric.root)
    up = pb.NaturalGradientDescent(PROBLEM, step=pb.step.GridSearch((1e3,)), metric_memory=0.5)
    _, after, record = up.step(params, state, (X, Y))
    assert not bool(record.accepted) and int(after.metric.count) == 2


def test_targets_that_the_likelihood_does_not_admit_are_refused():
    poisson = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Poisson())
    params, y = jnp.ones(2), jnp.asarray([1.0, -2.0, 0.0])
    pair = pb.Terms(
        fit=poisson, other=pb.Composite(lambda p: p, lambda z, y: jnp.sum((z - y) ** 2))
    )
    absent = pair.with_weights({"fit": 0.0, "other": 1.0})
    both = {"fit": (X[:3], y), "other": (None, params - 1)}
    cases = ((poisson, (X[:3], y), True), (pair, both, True), (absent, both, False))
    for problem, batch, bad in cases:
        opt = pb.NaturalGradientDescent(problem, step=RATE, metric_memory=0.6)
        same, _, record = opt.step(params, opt.init(params), batch)
        assert (record.result == pb.RESULTS.bad_targets) == bad
        assert bool(record.accepted) != bad and np.array_equal(same, params) == bad


def test_what_cannot_be_combined_raises():
    build = lambda **options: pb.NaturalGradientDescent(PROBLEM, **options)
    with pytest.raises(ValueError, match="Leave one out"):
        build(metric_memory=0.5, metric_batch=(X,))
    with pytest.raises(ValueError, match=r"metric_memory=True.*a number or a MetricMemory"):
        build(metric_memory=True)
    with pytest.raises(ValueError, match=r"factor=1\.0.*below 1"):
        build(metric_memory=1.0)
    with pytest.raises(ValueError, match="identity has full rank"):
        pb.MetricMemory(0.5, 1.0, rank=3)
    large = pb.Composite(lambda p, x: x * jnp.sum(p), lambda z: z**2)
    opt = pb.NaturalGradientDescent(large, metric_memory=0.5)
    with pytest.raises(ValueError, match=r"MetricMemory\(0\.9, rank=200\)"):
        opt.init(jnp.zeros(5000))
