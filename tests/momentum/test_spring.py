"""Momenta against dense formulas written with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from curved import PARAMS, PROBLEM, X, Y, close, dense, flat, half_square, near
from helpers import normal

import pullback as pb
from pullback._base.tree import structure


def test_spring_is_the_smallest_correction_of_the_last_step():
    a, r, _ = dense()
    previous = np.linspace(-1, 1, a.shape[1])
    pinv = np.linalg.pinv(a)

    def direction(momentum, inverse=None):
        found = jax.jit(lambda p: momentum.direction(near(pb.solver.SVD(), inverse), p))
        return found(jnp.asarray(previous))

    expected = 0.7 * previous - pinv @ (r + a @ (0.7 * previous))
    close(direction(pb.Spring(0.7)), expected)
    # What the batch sees is the natural gradient step; what it does not see is the last step.
    close(a @ expected, -a @ pinv @ r)
    kernel = np.eye(a.shape[1]) - pinv @ a
    close(kernel @ expected, 0.7 * kernel @ previous)
    m = a.T @ a + 0.1 * np.eye(a.shape[1])
    # argmin ½|Ad + r|² + λ/2 |d - μp|²
    by_hand = np.linalg.solve(m, 0.1 * 0.7 * previous - a.T @ r)
    close(direction(pb.Spring(0.7), pb.Tikhonov(0.1)), by_hand)
    close(direction(pb.HeavyBall(0.7)), 0.7 * previous - pinv @ r)
    close(direction(pb.Spring(0.7, max_norm=0.1)), 0.1 * expected / np.linalg.norm(expected))


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


def published(batches, mu, eta, damping, max_step=np.inf, corrected=True):
    """SPRING, a dense loop written from the formula; returns the points and the stored φ."""
    like, point = structure(PARAMS), flat(PARAMS)
    phi, points, stored = np.zeros(point.size), [], []
    for k, batch in enumerate(batches, start=1):
        a, r, _ = dense(params=like.unravel(jnp.asarray(point)), batch=batch)
        kernel = a @ a.T + damping * np.eye(a.shape[0])
        phi = mu * phi + a.T @ np.linalg.solve(kernel, -r - mu * a @ phi)
        step = phi / np.sqrt(1 - mu ** (2 * k)) if corrected else phi
        point = point + min(eta, max_step / np.linalg.norm(phi)) * step
        points.append(point)
        stored.append(phi)
    return np.array(points), np.array(stored)


def ours(batches, **options):
    opt = pb.NaturalGradientDescent(PROBLEM, **options)

    def body(carry, batch):
        params, state, record = opt.step(*carry, batch)
        return (params, state), (structure(params).ravel(params), state.previous, record)

    start = (PARAMS, opt.init(PARAMS))
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    return jax.jit(lambda: jax.lax.scan(body, start, stacked))()[1]


BATCHES = [(normal(3, 2, seed=10 + i), normal(3, 2, seed=30 + i)) for i in range(6)]


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("max_step", [None, 0.05])
def test_spring_is_the_published_loop(corrected, max_step):
    """The step is bounded and corrected; what is remembered is neither."""
    bound = np.inf if max_step is None else max_step
    points, stored = published(BATCHES, 0.8, 0.3, 0.1, bound, corrected)
    momentum = pb.Spring(0.8, max_step=max_step, corrected=corrected)
    found, memory, record = ours(BATCHES, inverse=pb.Tikhonov(0.1), step=0.3, momentum=momentum)
    close(found, points)
    close(memory.last if corrected else memory, stored)
    if max_step is not None:
        norms = np.linalg.norm(np.diff([flat(PARAMS), *points], axis=0), axis=1)
        assert np.all(np.linalg.norm(stored, axis=1) * 0.3 > max_step)  # the bound acts
        close(record.norm, norms)
        close(record.rate, max_step / np.linalg.norm(stored, axis=1))
    if corrected:
        assert memory.count.tolist() == [1, 2, 3, 4, 5, 6]


RULES = {
    "LineSearch": pb.step.LineSearch(),
    "GridSearch": pb.step.GridSearch(),
    "LevenbergMarquardt": pb.step.LevenbergMarquardt(),
    "DampingSearch": pb.step.DampingSearch((1e-1, 1e-3)),
    "TrustRegion": pb.step.TrustRegion(divergence=0.5, extend=True, accept=0.0),
    "Geodesic": pb.step.Geodesic(pb.step.LineSearch()),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_to_the_bound_and_remembers_the_whole(rule):
    momentum = pb.Spring(0.5, max_step=0.02, corrected=True)
    _, memory, record = ours([(X, Y)] * 3, step=RULES[rule], momentum=momentum)
    assert np.all(record.accepted) and np.all(record.rate > 0)
    # ‖step‖ = rate ‖φ‖/√(1 - μ^{2k}), and the rate is at most max_step/‖φ‖.
    sizes = np.linalg.norm(memory.last, axis=1)
    assert np.all(sizes > 0.02)
    close(record.rate, 0.02 / sizes)
    if rule != "Geodesic":
        close(record.norm, 0.02 / np.sqrt(1 - 0.25 ** np.arange(1, 4)))


def test_rejected_steps_forget_direction_and_count_and_failed_ones_forget_nothing():
    momentum = pb.Spring(0.5, corrected=True)
    opt = pb.NaturalGradientDescent(PROBLEM, step=0.1, momentum=momentum)
    params, state, _ = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    _, failed, record = opt.step(params, state, (X.at[0, 0].set(jnp.nan), Y))
    assert bool(record.failed)
    close(failed.previous.last, state.previous.last)
    assert int(failed.previous.count) == 1 and np.any(state.previous.last != 0)
    up = pb.NaturalGradientDescent(PROBLEM, step=pb.step.GridSearch((1e3,)), momentum=momentum)
    _, rejected, record = up.step(params, state, (X, Y))
    assert not bool(record.accepted) and not bool(record.failed)
    assert int(rejected.previous.count) == 0 and not np.any(rejected.previous.last)


class Twice(pb.AbstractMomentum):
    """Remembers the gradient, which is not a direction; proposes -(δ + half of it)."""

    def init(self, size, dtype):
        return {"g": jnp.zeros(size, dtype), "n": jnp.zeros((), jnp.int32)}

    def direction(self, sub, memory):
        return -sub.solution - 0.5 * memory["g"]

    def remember(self, sub, memory, direction):
        return {"g": sub.evaluation.covector, "n": memory["n"] + 1}


def test_a_momentum_of_ones_own_remembers_what_it_wants():
    found, memory, _ = ours(BATCHES[:3], step=0.1, momentum=Twice())
    like, point, last = structure(PARAMS), flat(PARAMS), 0.0
    for i, batch in enumerate(BATCHES[:3]):
        a, r, _ = dense(params=like.unravel(jnp.asarray(point)), batch=batch)
        point, last = point - 0.1 * (np.linalg.pinv(a) @ r + 0.5 * last), a.T @ r
        close(found[i], point)
        close(memory["g"][i], last)
    assert memory["n"].tolist() == [1, 2, 3]


def test_a_momentum_that_breaks_its_contract_raises():
    class Pair(pb.AbstractMomentum):
        def direction(self, sub, memory):
            return -sub.solution, memory

    class Grows(pb.AbstractMomentum):
        def direction(self, sub, memory):
            return -sub.solution

        def remember(self, sub, memory, direction):
            return jnp.stack([direction, direction])

    for momentum, words in ((Pair(), r"What is kept .* `remember"), (Grows(), "Give `init` too")):
        opt = pb.NaturalGradientDescent(PROBLEM, step=0.1, momentum=momentum)
        with pytest.raises(ValueError, match=words):
            opt.step(PARAMS, opt.init(PARAMS), (X, Y))


def test_bounds_are_checked():
    with pytest.raises(ValueError, match=r"max_step=-1.*positive"):
        pb.Spring(0.5, max_step=-1.0)
    with pytest.raises(ValueError, match=r"not both, e\.g\. Spring\(0\.9, max_step"):
        pb.Spring(0.5, max_norm=1.0, max_step=1.0)
    with pytest.raises(ValueError, match="corrected must be a boolean"):
        pb.Spring(0.5, corrected=1)
