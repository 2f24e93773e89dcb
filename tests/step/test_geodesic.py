"""Geodesic steps: the order to which the outputs move straight, and the bound on the bend."""

import jax
import jax.numpy as jnp
import numpy as np
from curved import PARAMS, PROBLEM, X, Y, close, curved, dense, flat, near

import pullback as pb
from pullback._base.tree import structure

LIKE = structure(PARAMS)


def test_geodesic_steps_move_the_outputs_straight_to_third_order():
    def deviation(bent):
        @jax.jit
        def at(t):
            here = near(pb.solver.SVD())
            here = here.bent(1e9) if bent else here
            d = here.direction()
            moved = curved(here.point(here.curve(d)(t)), X) - curved(PARAMS, X)
            _, straight = jax.jvp(lambda p: curved(p, X), (PARAMS,), (LIKE.unravel(d),))
            return jnp.linalg.norm(moved - t * straight)

        return [float(at(jnp.asarray(t))) for t in (1e-2, 5e-3)]

    for bent, order in ((False, 2), (True, 3)):
        apart = deviation(bent)
        assert abs(np.log2(apart[0] / apart[1]) - order) < 0.1, (bent, apart)


def step(rule):
    opt = pb.NaturalGradientDescent(PROBLEM, solver=pb.solver.SVD(), step=rule)
    params, _, record = opt.step(PARAMS, opt.init(PARAMS), (X, Y))
    return flat(params), record


def test_the_bend_is_used_up_to_its_bound_and_recorded():
    """a by NumPy: -A⁺ Sᵀ d²f[d, d], with S = 1/√3 for the mean over three samples."""
    a, r, point = dense()
    d = -np.linalg.pinv(a) @ r
    outputs = lambda v: curved(LIKE.unravel(v), X).ravel()
    hessian = np.asarray(jax.hessian(outputs)(jnp.asarray(point)))
    bend = -np.linalg.pinv(a) @ np.einsum("kij,i,j->k", hessian, d, d) / np.sqrt(3)
    ratio = np.linalg.norm(bend) / np.linalg.norm(d)
    there, record = step(pb.step.Geodesic(pb.step.Fixed(0.1), bound=1.01 * ratio))
    close(record.curvature, ratio)
    close(there - point, 0.1 * d + 0.01 / 2 * bend)
    # A number is a fixed rate.
    close(step(pb.step.Geodesic(0.1, bound=1.01 * ratio))[0], there)
    # Beyond the bound the step is straight.
    there, record = step(pb.step.Geodesic(pb.step.Fixed(0.1), bound=0.99 * ratio))
    assert float(record.curvature) == 0
    close(there - point, 0.1 * d)


def test_a_rule_that_damps_bends_too():
    straight, _ = step(pb.step.LevenbergMarquardt(damping=0.1))
    bent, record = step(pb.step.Geodesic(pb.step.LevenbergMarquardt(damping=0.1), bound=1e9))
    assert float(record.curvature) > 0 and np.abs(bent - straight).max() > 1e-3
