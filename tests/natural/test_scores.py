"""`Scores` takes the mean off its rows; what is left of equal rows is rounding, no direction."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance

import pullback as pb
from tests.fuzz import build
from tests.fuzz.problem import load

SOLVERS = [pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal(), pb.solver.Krylov()]
PROBLEM = pb.Composite(lambda p, x: jnp.sin(x @ p), lambda z, y: z * y, pb.metric.Scores())
Y = jnp.asarray(np.random.default_rng(0).normal(size=6))


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_chain_that_is_stuck_has_rank_zero(solver, centred):
    x = jnp.tile(jnp.asarray([[0.3, 0.4, 0.1]]), (6, 1))
    y = Y - jnp.mean(Y) if centred else Y
    ng = pb.natural_gradient(PROBLEM, jnp.ones(3), (x, y), solver=solver)
    assert jnp.all(ng.vector == 0)
    assert int(ng.stats.rank) in (0, -1)


@pytest.mark.parametrize("solver", SOLVERS[:3], ids=repr)
def test_two_places_are_one_direction(solver):
    """Scores a and b, three times each: the covariance has rank one."""
    places = jnp.asarray([[0.3, 0.4, 0.1], [0.3, 0.4, 0.2]])
    x = jnp.repeat(places, 3, axis=0, total_repeat_length=6)
    ng = pb.natural_gradient(PROBLEM, jnp.ones(3), (x, Y - jnp.mean(Y)), solver=solver)
    slope = np.cos(np.asarray(x).sum(1))[:, None] * np.asarray(x)
    rows = (slope - slope.mean(0)) / np.sqrt(6)
    g = slope.T @ np.asarray(Y - jnp.mean(Y)) / 6
    truth = np.linalg.pinv(rows.T @ rows, rcond=1e-10) @ g
    assert int(ng.stats.rank) == 1
    np.testing.assert_allclose(ng.vector, truth, rtol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_two_samples_are_enough(solver):
    x = jnp.asarray([[0.3, 0.4, 0.1], [-0.2, 0.5, 0.7]])
    ng = pb.natural_gradient(PROBLEM, jnp.ones(3), (x, jnp.asarray([1.0, -1.0])), solver=solver)
    assert float(jnp.linalg.norm(ng.vector)) > 0.1


def test_the_share_of_the_ambient_gradient_is_one_at_most_or_not_known():
    """A loss that does not sum to zero is partly outside the range of the metric."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
    weighted = pb.Composite(
        PROBLEM.model, PROBLEM.loss, PROBLEM.metric, pb.Weights(jnp.arange(1.0, 7.0))
    )
    stats = pb.natural_gradient(weighted, jnp.ones(3), (x, Y)).stats
    assert float(stats.output_share) < 1 and np.isnan(float(stats.tangent_share))
    page = pb.examine(weighted, jnp.ones(3), (x, Y))
    assert "in range: outputs" in str(page) and "nan" not in str(page)
    stats = pb.natural_gradient(PROBLEM, jnp.ones(3), (x, Y - jnp.mean(Y))).stats
    assert 0 < float(stats.tangent_share) <= 1 + 1e-12


def network(p, x):
    for w, b in p[:-1]:
        x = jnp.tanh(x @ w + b[None])
    return x @ p[-1][0] + p[-1][1][None]


def layers(*sizes):
    rng = np.random.default_rng(1)
    pairs = itertools.pairwise(sizes)
    return [
        (jnp.asarray(rng.normal(size=(a, b)) / np.sqrt(a)), jnp.asarray(rng.normal(size=b) / 5))
        for a, b in pairs
    ]


COUNT = 16
WEIGHTS = np.random.default_rng(2).uniform(0.5, 2.0, COUNT)
WEIGHTS[[3, 8]] = 0.0
X = jnp.asarray(np.random.default_rng(3).normal(size=(COUNT, 3)))


def scores(columns):
    """Weighted scores of a network, its parameters and a batch whose loss is in the range."""
    y = np.random.default_rng(4).normal(size=(COUNT, columns))
    y = y - np.average(y, axis=0, weights=WEIGHTS)
    outputs = network if columns > 1 else lambda p, x: network(p, x)[:, 0]
    loss = lambda z, y: jnp.sum(z.reshape(y.shape) * y, axis=1)
    problem = pb.Composite(outputs, loss, pb.metric.Scores(), pb.Weights(jnp.asarray(WEIGHTS)))
    return problem, layers(3, 8, 7, columns), (X, jnp.asarray(y))


def dense(p, batch):
    """A and g, each output centred by its own mean, from the Jacobian of the whole network."""
    rows = jax.jacobian(lambda p: network(p, batch[0]))(p)
    flat = [np.asarray(x).reshape(*x.shape[:2], -1) for x in jax.tree.leaves(rows)]
    rows = np.concatenate(flat, axis=2)
    mean = np.average(rows, axis=0, weights=WEIGHTS)
    a = (np.sqrt(WEIGHTS)[:, None, None] * (rows - mean)).reshape(-1, rows.shape[2])
    return a, np.einsum("n,nqp,nq->p", WEIGHTS, rows, np.asarray(batch[1]))


INVERSES = {
    "Tikhonov": (pb.Tikhonov(1e-2), lambda s: s / (s**2 + 1e-2)),
    "MoorePenrose": (pb.MoorePenrose(), lambda s: np.where(s > 1e-10 * s[0], 1 / s, 0.0)),
    "TruncatedRank": (pb.TruncatedRank(5), lambda s: np.where(np.arange(s.size) < 5, 1 / s, 0.0)),
}


@pytest.mark.parametrize("columns", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("solver", SOLVERS[1:3], ids=repr)
@pytest.mark.parametrize("inverse", INVERSES)
def test_several_weighted_outputs_against_dense(inverse, solver, columns):
    problem, p, batch = scores(columns)
    a, g = dense(p, batch)
    kind, filtered = INVERSES[inverse]
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    lifted = u.T @ np.linalg.pinv(a.T) @ g
    found = pb.natural_gradient(problem, p, batch, inverse=kind, solver=solver)
    assert distance(found.vector, vt.T @ (filtered(s) * lifted)) < 1e-9


def test_little_memory_and_a_gauge_do_not_change_the_answer():
    problem, p, batch = scores(2)
    a, g = dense(p, batch)
    expected = np.linalg.solve(a.T @ a + 1e-2 * np.eye(a.shape[1]), g)
    for solver in (pb.solver.Primal(structured=False), pb.solver.SVD()):
        found = pb.natural_gradient(
            problem, p, batch, inverse=pb.Tikhonov(1e-2), solver=solver, memory=1
        )
        assert distance(found.vector, expected) < 1e-10
    inverse = pb.Tikhonov(1e-2 / 4, gauge=4.0)
    for solver in (pb.solver.Dual(), pb.solver.Primal()):
        found = pb.natural_gradient(problem, p, batch, inverse=inverse, solver=solver)
        assert distance(found.vector, expected) < 1e-10


@pytest.mark.parametrize("columns", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_network_whose_chain_is_stuck_has_rank_zero(solver, columns):
    problem, p, (x, y) = scores(columns)
    stuck = jnp.broadcast_to(x[:1], x.shape)
    ng = pb.natural_gradient(problem, p, (stuck, y), solver=solver)
    assert not any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(ng.vector))
    assert int(ng.stats.rank) in (0, -1)


@pytest.mark.parametrize("solver", [pb.solver.Dual(), pb.solver.Primal()], ids=repr)
@pytest.mark.parametrize("ratio", [1e3, 1e6, 1e8])
def test_a_mean_row_far_larger_than_the_spread(ratio, solver):
    """Right to the rounding of the mean row, or refused."""
    problem, p, (x, y) = scores(1)
    near = x[:1] + x / ratio
    a, g = dense(p, (near, y))
    inverse = pb.MoorePenrose(rtol=1e-2)
    ng = pb.natural_gradient(problem, p, (near, y), inverse=inverse, solver=solver, throw=False)
    s = np.linalg.svd(a, compute_uv=False)
    assert int(ng.stats.rank) == np.sum(s > 1e-2 * s[0])
    expected = np.linalg.pinv(a, rcond=1e-2) @ (np.linalg.pinv(a.T, rcond=1e-2) @ g)
    refused = not bool(ng.result == pb.RESULTS.successful)
    assert refused or distance(ng.vector, expected) < 1e-13 * ratio
    assert not refused or ratio == 1e8


def test_the_plan_uses_the_layers():
    problem, p, batch = scores(1)
    plan = pb.plan(problem, p, batch, solver=pb.solver.Dual(), inverse=pb.Tikhonov(1e-2))
    assert plan.route.structured
    assert any(how.startswith("factors") for _, how in plan.leaves)


INPUTS = np.random.default_rng(5).normal(size=(6, 3))


def single(ratio):
    """A batch in single precision whose scores have a mean `ratio` times their spread."""
    short = lambda x: jnp.asarray(x, jnp.float32)
    return short(jnp.full(3, 0.3)), (short(INPUTS[:1] + INPUTS / ratio), short(Y - jnp.mean(Y)))


@pytest.mark.parametrize("damped", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_solution_that_the_rounding_of_the_mean_decides_is_refused(solver, damped):
    """In single precision, beside the same numbers in double precision."""
    for ratio in (1e2, 1e3, 1e4, 1e5):
        p, (x, y) = single(ratio)
        wide = [np.asarray(a, np.float64) for a in (p, x, y)]
        slope = np.cos(wide[1] @ wide[0])[:, None] * wide[1]
        rows, damping = (slope - slope.mean(0)) / np.sqrt(6), 1e-3 / ratio**2 if damped else 0.0
        expected = np.linalg.solve(rows.T @ rows + damping * np.eye(3), slope.T @ wide[2] / 6)
        inverse = pb.Tikhonov(damping) if damped else pb.MoorePenrose()
        ng = pb.natural_gradient(PROBLEM, p, (x, y), inverse=inverse, solver=solver, throw=False)
        fine = bool(ng.result == pb.RESULTS.successful)
        assert fine or ratio > 1e2
        assert not fine or distance(ng.vector.astype(float), jnp.asarray(expected)) < 3e-3
        assert bool(ng.result == pb.RESULTS.blurred) or ratio < 1e5


def test_a_singular_value_that_the_mean_blurs_is_refused_by_its_name():
    """What `SVD` drops between rounding and the rounding of the mean is no overflow."""
    path = Path(__file__).parents[1] / "fuzz" / "found" / "scores-blurred-singular-value.json"
    with pytest.raises(RuntimeError, match=r"rounding of the mean .* Damp more"):
        build.compute(load(path.read_text()))


@pytest.mark.parametrize("damping", [None, 1e-250])
def test_a_covector_that_underflows_is_refused(damping):
    # Jᵀ of the mean of c is 1e-350, which no float64 holds; (G + λ)⁻¹ of it is about 1e-100.
    x = jnp.array([[1.0, 0.2], [0.5, -1.0], [-0.3, 0.7], [1.5, 0.1]])
    params, c = jnp.array([0.3, -0.7]), 1e-230 * (1 + jnp.arange(4.0))
    model = lambda p, x: 1e-120 * (x @ p)
    inverse = pb.MoorePenrose() if damping is None else pb.Tikhonov(damping)

    def solved(scale):
        loss = lambda z, y: scale * y * z
        problem = pb.Composite(model, loss, pb.metric.Scores())
        return pb.natural_gradient(problem, params, (x, c), inverse=inverse, throw=False)

    assert bool(solved(1.0).result == pb.RESULTS.underflow)
    whole = solved(2.0**400)
    assert bool(whole.result == pb.RESULTS.successful)
    assert float(jnp.linalg.norm(whole.vector)) > 0


def test_a_constant_column_is_none_whatever_the_weights():
    """Taken off once, the mean leaves its rounding there: 1e-16 of the heaviest sample."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((7, 2)))
    weights = pb.Weights(jnp.asarray([1e5, 33.0, 2e-5, 7.0, 0.3, 1e3, 3e-3]))
    model = lambda p, x: p["bias"] + x @ p["w"]
    problem = pb.Composite(model, metric=pb.metric.Scores(), measure=weights)
    at = {"bias": jnp.asarray(0.2), "w": jnp.ones(2)}
    rows = pb.pullback(problem, at, (x,)).whitened
    for size in (1.0, 0.1, 1e6 / 3):
        image = rows.mv(rows.structure.ravel({"bias": jnp.asarray(size), "w": jnp.zeros(2)}))
        assert float(jnp.max(jnp.abs(image))) < 1e-22 * size
