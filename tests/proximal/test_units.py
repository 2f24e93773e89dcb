"""Steps of the proximal family in bad units, far from and at the minimum, and on bad data."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb

X = normal(5, 2, seed=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda *at: pb.proximal_step(*at, weight=1.0, throw=False),
        lambda *at: pb.implicit_step(*at, step=1.0, throw=False),
        lambda *at: pb.damped_newton_step(*at, weight=1.0, throw=False),
        lambda *at: pb.mirror_step(*at, weight=1.0, mirror=pb.EuclideanMirror(), throw=False),
    ],
)
def test_what_a_point_is_made_of_is_judged_first(make):
    problem = pb.Composite(lambda p, x: x @ p, metric=pb.metric.Poisson())
    params, y = jnp.ones(2), jnp.asarray([1.0, 2.0, 0.0])
    x = X[:3]
    assert make(problem, params, (x, y)).result == pb.RESULTS.successful
    assert make(problem, params, (x, y.at[1].set(-2.0))).result == pb.RESULTS.bad_targets
    spoilt = make(problem, params, (x.at[0, 0].set(jnp.nan), y))
    assert spoilt.result == pb.RESULTS.nonfinite_batch


@pytest.mark.parametrize("power", [4, 6, 9])
def test_parameters_in_other_units_make_the_same_steps(power):
    unit = jnp.asarray([10.0**power, 10.0**-power])
    turn = jnp.asarray([[2.0, 1.0], [1.0, 3.0]])
    problem = pb.Composite(lambda p: turn @ (unit * p), lambda z: jnp.sum((z - 1) ** 2) / 2)
    start = jnp.zeros(2)
    # Half way to the solution of turn z = 1, in these units and in others.
    right = np.linalg.solve(turn, [1.0, 1.0]) / 2
    for make in (pb.proximal_step, pb.damped_newton_step):
        step = make(problem, start, weight=1.0)
        assert np.allclose(unit * step.params, right, rtol=1e-8) and float(step.residual) < 1e-8
    implicit = pb.Composite(lambda p: jnp.asarray([1e8, 1.0]) * p, problem.loss)
    moved = pb.implicit_step(implicit, start, step=1.0).params
    assert np.allclose(moved, [1e8 / (1 + 1e16), 0.5], rtol=1e-9)
    linear = pb.Composite(lambda p: p, lambda z: jnp.vdot(unit, z))
    phi = lambda u: jnp.sum((unit * u) ** 2) / 2
    for mirror in (
        pb.BregmanMirror(phi),
        pb.DivergenceMirror(lambda u, p: phi(u) - phi(p) - jnp.vdot(unit**2 * p, u - p)),
    ):
        step = pb.mirror_step(linear, 1 / unit, weight=2.0, mirror=mirror)
        assert np.allclose(unit * step.params, [0.5, 0.5], rtol=1e-8)


def test_a_singular_newton_step_is_the_shortest():
    rows = jnp.asarray([[1.0, 2.0, 0.0], [0.0, 10.0, 1.0]])
    problem = pb.Composite(lambda p: rows @ p, lambda z: jnp.sum((z - 1) ** 2) / 2)
    step = pb.damped_newton_step(problem, jnp.zeros(3), weight=1.0)
    assert np.allclose(step.params, np.linalg.pinv(rows) @ [0.5, 0.5], rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_proximal_step_of_a_singular_model_is_the_shortest(scale):
    """What no curvature decides stays, in the units of the parameters and not of the Hessian."""
    rows = jnp.asarray([[1.0, 2.0, 0.0], [0.0, 10.0, scale]])
    problem = pb.Composite(lambda p: rows @ p, lambda z: jnp.sum((z - 1) ** 2) / 2)
    step = pb.proximal_step(problem, jnp.zeros(3), weight=1.0)
    assert np.allclose(step.params, np.linalg.pinv(rows) @ [0.5, 0.5], rtol=1e-9)


def test_a_start_at_the_minimum_is_a_minimum():
    start = jnp.asarray([0.3, 0.7])
    slope = jnp.asarray([1e-17, -3e-18])
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum((z - start) ** 2) + jnp.vdot(slope, z))
    step = pb.proximal_step(problem, start, weight=1.0)
    assert np.allclose(step.params, start, rtol=1e-15)
    far = pb.proximal_step(problem, start + 1e-9, weight=1.0, max_steps=0, throw=False)
    assert far.result == pb.RESULTS.inner_unconverged


@pytest.mark.parametrize("weight", [1.0, 1e-20, 1e-200])
def test_a_mirror_step_of_a_large_covector_stays_on_the_simplex(weight):
    cost = jnp.asarray([1e3, 0.0, -1e3])
    problem = pb.Composite(lambda p: p, lambda z: jnp.vdot(cost, z))
    mirror, start = pb.ReverseKLMirror(), jnp.asarray([0.5, 0.25, 0.25])
    step = pb.mirror_step(problem, start, weight=weight, mirror=mirror)
    assert np.isclose(float(jnp.sum(step.params)), 1.0, rtol=1e-14)
    assert float(step.params[2]) > 0.999


def test_a_vector_for_gauss_newton_is_like_the_parameters():
    problem = pb.Composite(lambda p, x: x @ p["w"], lambda z, y: (z - y) ** 2)
    params, batch = {"w": jnp.ones(2), "count": 3, "n": jnp.asarray(3)}, (X, jnp.zeros(5))
    wanted = 2 * np.asarray(X).T @ np.asarray(X) @ [1.0, 1.0] / 5
    for w in (params, {"w": jnp.ones(2, jnp.float32), "count": None, "n": None}):
        found = pb.generalised_gauss_newton(problem, params, w, batch)
        assert np.allclose(found["w"], wanted, rtol=1e-12) and found["w"].dtype == float
    with pytest.raises(ValueError, match="expected a tree"):
        pb.generalised_gauss_newton(problem, params, {"w": jnp.ones(3)}, batch)
