"""The guard against a change of rank: what it stops, and what it leaves alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pullback as pb

# z = (w₀², w₁), towards (-1, 0): J loses rank at w₀ = 0, where the undamped flow is at t = log 2.
PROBLEM = pb.Composite(
    lambda w: jnp.stack([w[0] ** 2, w[1]]), lambda z: (z[0] + 1) ** 2 / 2 + z[1] ** 2 / 2
)


def inspection(rank, condition=1.0, smallest=1.0):
    numbers = (jnp.asarray(rank, jnp.int32), jnp.asarray(condition), jnp.asarray(smallest))
    return pb.event.Inspection(pb.RESULTS.successful, *numbers)


def test_what_counts_as_a_change():
    guard, start = pb.event.RankChange(1e-2), inspection(3, 0.5, 2.0)
    assert not bool(guard.happened(start, inspection(3, 0.006)))
    assert bool(guard.happened(start, inspection(3, 0.004)))
    assert bool(guard.happened(start, inspection(2, 0.5)))
    assert bool(guard.happened(start, inspection(4, 0.5)))
    assert bool(guard.approached(start, inspection(3, 0.5, 1e-3), 1e-3))
    assert not bool(guard.approached(start, inspection(3, 0.5, 3e-3), 1e-3))
    # A field without a rank: Euclidean, damped, or of a solver that computes none.
    without = inspection(-1, 0.5, 2.0)
    assert not bool(guard.happened(without, inspection(-1, 1e-9, 1e-9)))
    assert not bool(guard.approached(without, inspection(-1, 1e-9, 1e-9), 1e-3))
    unknown = inspection(-1, np.nan, np.nan)
    assert not bool(guard.happened(unknown, unknown))


@pytest.mark.parametrize(
    "solver",
    [pb.solver.SVD(), pytest.param(pb.solver.Krylov(), marks=pytest.mark.slow)],
    ids=["svd", "krylov"],
)
def test_a_damped_flow_passes_where_the_undamped_one_stops(solver):
    kind = pb.NaturalFlow(pb.Tikhonov(1e-2), solver)
    sol = pb.flow(PROBLEM, jnp.ones(2), t1=1.0, kind=kind, rtol=1e-6, atol=1e-8)
    assert sol.result == pb.RESULTS.successful and int(sol.start.rank) == -1
    # dw₀/dt = -2w₀(w₀² + 1)/(4w₀² + λ): w₀ has decayed far below the guard's 1e-6.
    assert 0 < float(sol.params[0]) < 1e-8
    assert np.isclose(float(sol.params[1]), np.exp(-1 / 1.01), rtol=1e-5)


def test_rank_none_continues_and_a_bad_guard_is_refused():
    sol = pb.flow(
        PROBLEM, jnp.ones(2), t1=3.0, rank=None, throw=False, max_steps=400, rtol=1e-4, atol=1e-6
    )
    assert sol.result != pb.RESULTS.rank_changed
    with pytest.raises(ValueError, match=r"RankChange\(collapse=1.0\): collapse must be below 1"):
        pb.event.RankChange(1.0)
    with pytest.raises(ValueError, match=r"not an event, pass flow\(..., rank=RankChange"):
        pb.flow(PROBLEM, jnp.ones(2), t1=1.0, events=[pb.event.RankChange()])


def test_an_inspection_has_a_short_repr():
    assert repr(inspection(3)) == "Inspection(rank 3, smallest 1, successful)"
    assert repr(inspection(-1)) == "Inspection(successful)"
    jax.eval_shape(lambda s: [repr(s), 0.0][1] * s.smallest, inspection(3))
