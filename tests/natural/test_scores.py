"""`Scores` takes the mean off its rows; what is left of equal rows is rounding, no direction."""

import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb

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
