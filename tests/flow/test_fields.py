"""The fields: inverses of one's own, absent samples, and what a right-hand side computes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback.solver._svd import SVDFactors

X, Y = normal(3, 5, seed=1) / 3, normal(3, seed=2)
LINEAR = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2)


class Exponential(pb.AbstractInverse):
    """h(s) = (1 - e^{-ks²})/s²: declares nothing."""

    k: float = 30.0
    gauge: Any = None

    def filter(self, s, cutoff):
        return -jnp.expm1(-self.k * s * s) / jnp.where(s > 0, s * s, 1.0)


FILTERS = {
    "own": (Exponential(), lambda s: -np.expm1(-30.0 * s**2) / s**2, 3),
    "tikhonov": (pb.Tikhonov(1e-2), lambda s: 1 / (s**2 + 1e-2), -1),
    "truncated": (pb.TruncatedRank(2), lambda s: np.where(s >= np.sort(s)[-2], 1 / s**2, 0.0), 2),
}


@pytest.mark.parametrize(
    "name", ["own", *(pytest.param(name, marks=pytest.mark.slow) for name in list(FILTERS)[1:])]
)
def test_a_linear_model_follows_the_exponential_of_its_filter(name):
    """Along a right singular vector of A, v·θ tends to that of the solution as e^{-h(s)s²t}."""
    inverse, h, rank = FILTERS[name]
    start, t1 = normal(5, seed=3), 0.7
    kind = pb.NaturalFlow(inverse, pb.solver.SVD())
    sol = pb.flow(LINEAR, start, (X, Y), t1=t1, kind=kind, rtol=1e-10, atol=1e-12)
    u, s, vt = np.linalg.svd(np.asarray(X) / np.sqrt(3), full_matrices=False)
    error = vt @ np.asarray(start) - u.T @ np.asarray(Y) / np.sqrt(3) / s
    expected = np.asarray(start) + vt.T @ (error * np.expm1(-h(s) * s**2 * t1))
    assert np.allclose(sol.params, expected, rtol=0, atol=1e-9)
    assert int(sol.start.rank) == rank


def test_an_inverse_that_the_solver_cannot_compute_is_refused_when_the_flow_is_built():
    with pytest.raises(ValueError, match="SVD"):
        pb.NaturalFlow(Exponential(), pb.solver.Krylov())
    with pytest.raises(ValueError, match="inverse must be"):
        pb.NaturalFlow(1e-3)  # pyright: ignore


def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


PARAMS = {"w": normal(2, 2, seed=4), "v": normal(2, seed=5)}
INPUTS, TARGETS = normal(5, 2, seed=6), normal(5, seed=7)


@pytest.mark.parametrize(
    "kind",
    [
        pb.NaturalFlow(),
        pytest.param(pb.EuclideanFlow(), marks=pytest.mark.slow),
        pytest.param(pb.NewtonFlow(), marks=pytest.mark.slow),
    ],
    ids=lambda kind: type(kind).__name__,
)
def test_an_absent_sample_may_contain_anything(kind):
    """A NaN in a sample of weight zero, against the data without it."""
    weights = jnp.asarray([0.5, 0.0, 1.0, 2.0, 1.0])
    present = jnp.asarray([0, 2, 3, 4])
    loss = lambda z, y: (z - y) ** 2 / 2
    whole = pb.Composite(model, loss, measure=pb.Weights(weights))
    part = pb.Composite(model, loss, measure=pb.Weights(weights[present]))
    run = lambda problem, x, y: pb.flow(problem, PARAMS, (x, y), t1=0.02, kind=kind, rank=None)
    bad = run(whole, INPUTS.at[1].set(jnp.nan), TARGETS.at[1].set(jnp.nan))
    good = run(part, INPUTS[present], TARGETS[present])
    assert bad.result == pb.RESULTS.successful
    for name, leaf in PARAMS.items():
        assert np.allclose(bad.params[name], good.params[name], rtol=1e-9, atol=1e-11)
        assert not np.allclose(bad.params[name], leaf, atol=1e-4)
    assert np.isclose(float(bad.value(0.02)), float(good.value(0.02)), rtol=1e-9)
    assert np.all(np.isfinite(bad.outputs(0.02)))


@pytest.fixture
def counts(monkeypatch):
    """How often a factorisation and its solves are traced."""
    counts = {}

    def count(kind, name):
        method, counts[name] = getattr(kind, name), 0

        def counted(self, *args):
            counts[name] += 1
            return method(self, *args)

        monkeypatch.setattr(kind, name, counted)

    count(pb.solver.SVD, "factorise")
    count(SVDFactors, "solve_lifted")
    count(SVDFactors, "solve_covector")
    return counts


CURVED = pb.Composite(lambda p, x: jnp.tanh(x @ p), lambda z, y: (z - y) ** 2 / 2)


def damped_flow(damping, rtol, t1, level, events):
    kind = pb.NaturalFlow(pb.Tikhonov(damping), pb.solver.SVD())
    rank = pb.event.RankChange(level)
    start = normal(5, seed=3)
    # diffrax relaxes the promotion of dtypes around some of its calls: under the strict promotion
    # of these tests the compiled field would be traced for both.
    with jax.numpy_dtype_promotion("standard"):
        return pb.flow(CURVED, start, (X, Y), t1=t1, kind=kind, rtol=rtol, rank=rank, events=events)


def test_a_stage_solves_once_and_numbers_are_data(counts):
    """One factorisation and one solve in the field, in the halting condition and at the start."""
    for numbers in ((1e-2, 1e-6, 0.1, 1e-3), (1e-1, 1e-5, 0.2, 1e-4)):
        damped_flow(*numbers, events=())
        assert counts == {"factorise": 3, "solve_lifted": 3, "solve_covector": 0}


@pytest.mark.slow
def test_the_level_of_an_event_is_data(counts):
    damped_flow(1e-2, 1e-6, 0.1, 1e-3, [pb.event.LossBelow(1e-3)])
    before = dict(counts)
    other = damped_flow(1e-1, 1e-5, 0.2, 1e-4, [pb.event.LossBelow(1e-4)])
    assert counts == before
    assert other.events[0].description == "the loss fell to 0.0001"


@pytest.mark.slow
def test_a_log_loss_of_ones_own_gives_the_same_curve():
    log_loss = lambda z, y: jnp.log((z - y) ** 2 / 2)
    options = {"t1": 1.0, "rank": None, "rtol": 1e-9, "atol": 1e-11}
    plain = pb.flow(LINEAR, jnp.zeros(5), (X, Y), kind=pb.EuclideanFlow(), **options)
    ours = pb.flow(LINEAR, jnp.zeros(5), (X, Y), kind=pb.EuclideanFlow(log_loss), **options)
    assert np.allclose(plain.params, ours.params, rtol=0, atol=1e-9)


def test_a_log_loss_of_another_shape_is_refused():
    wrong = pb.EuclideanFlow(lambda z, y: jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"log L or one logarithm per sample, shape \(3,\)"):
        pb.flow(LINEAR, jnp.zeros(5), (X, Y), t1=1.0, kind=wrong)
    without = pb.Composite(lambda p: p, lambda z: jnp.sum(z**2))
    with pytest.raises(ValueError, match=r"must return log L, got shape \(2,\)"):
        pb.flow(without, jnp.ones(2), t1=1.0, kind=pb.EuclideanFlow(lambda z: jnp.zeros(2)))


@pytest.mark.slow
def test_a_flow_inside_jit_vmap_and_grad():
    run = lambda start: pb.flow(LINEAR, start, (X, Y), t1=0.5, rank=None)
    start = normal(5, seed=3)
    expected = run(start).params
    assert np.allclose(jax.jit(lambda p: run(p).params)(start), expected, rtol=1e-12)
    both = jax.vmap(lambda p: run(p).params)(jnp.stack([start, 2 * start]))
    assert np.allclose(both[0], expected, rtol=1e-8)
    # θ(t) is affine in θ(0): Π e^-t + I - Π, with Π the projection on the row space.
    found = jax.jacrev(lambda p: run(p).params)(start)
    x = np.asarray(X)
    projection = np.linalg.pinv(x) @ x
    assert np.allclose(found, np.eye(5) + (np.exp(-0.5) - 1) * projection, atol=1e-7)
