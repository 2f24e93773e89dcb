"""A quick program is tried first; where it does not answer, a careful one does."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import conditioned, exact, vector
from helpers import distance

import pullback as pb
from pullback._natural.natural_gradient import compute
from pullback._problem.validate import validate
from pullback.solver._strategy import Strategy

TINY = 1e-17
PROBLEM = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2, measure=pb.Sum())
A = conditioned(10, 6, 10.0)
R = A @ vector(6)
EXAMPLE = PROBLEM, jnp.zeros(6), (jnp.asarray(A), jnp.asarray(-R))
# The last sample is wrong and saturated.
STEEP = (
    pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli()),
    jnp.asarray([1.0, 1.3]),
    (jnp.asarray([[0.3, 1.0], [1.0, -0.2], [0.5, 0.5], [30.0, 0.0]]), jnp.asarray([0.0, 1, 1, 0])),
)


def careless(problem, params, batch, inverse, solver):
    strategy = Strategy(inverse, solver).as_data()
    return eqx.filter_jit(compute)(
        problem, *validate(problem, params, batch), strategy, careful=False
    )


@pytest.mark.parametrize("solver", [pb.solver.Dual(), pb.solver.Primal()])
def test_the_quick_program_has_no_answer_below_rounding_and_the_careful_one_has(solver):
    assert careless(*EXAMPLE, pb.Tikhonov(TINY), solver).result == pb.RESULTS.nonfinite_vector
    expected = exact(A, R, damping=TINY)
    ng = pb.natural_gradient(*EXAMPLE, inverse=pb.Tikhonov(TINY), solver=solver)
    assert ng.result == pb.RESULTS.successful and distance(ng.vector, expected) < 1e-9
    opt = pb.NaturalGradientDescent(PROBLEM, pb.Tikhonov(TINY), solver, 1.0)
    params, _, record = opt.step(EXAMPLE[1], opt.init(EXAMPLE[1]), EXAMPLE[2])
    assert record.accepted and distance(params, -expected) < 1e-9


def test_steep_samples_in_every_context():
    inverse, solver = pb.Tikhonov(1e-8), pb.solver.SVD()
    assert careless(*STEEP, inverse, solver).result == pb.RESULTS.steep
    problem, params, (x, y) = STEEP
    direct = pb.natural_gradient(*STEEP, inverse=inverse, solver=solver).vector

    def closing(x):
        # The arguments are not traced, what the model closes over is.
        given = pb.Composite(lambda p, i: x[i] @ p, metric=pb.metric.Bernoulli())
        batch = jnp.arange(4), y
        return pb.natural_gradient(given, params, batch, inverse=inverse, throw=False).vector

    opt = pb.NaturalGradientDescent(problem, inverse, solver, 1.0)
    moved = opt.step(params, opt.init(params), (x, y))[0]
    for name, found in {"closing": jax.jit(closing)(x), "step": params - moved}.items():
        np.testing.assert_allclose(found, direct, rtol=1e-9, err_msg=name)


def test_what_is_solved_for_together_is_the_sum():
    """And a solver of one's own, which has no way to do both at once, is asked twice."""
    g = jnp.asarray(vector(6))
    for solver in (pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal()):
        for inverse in (pb.MoorePenrose(), pb.Tikhonov(0.1)):
            factors = pb.pullback(*EXAMPLE).factorise(inverse, solver)
            both = factors.solve(jnp.asarray(R), g)
            parts = factors.solve_lifted(jnp.asarray(R)) + factors.solve_covector(g)
            np.testing.assert_allclose(both, parts, rtol=1e-11, atol=1e-12)
            damping = 0.0 if inverse.damping is None else inverse.damping
            dense = np.linalg.solve(A.T @ A + damping * np.eye(6), A.T @ R + vector(6))
            np.testing.assert_allclose(both, dense, rtol=1e-9)


@pytest.mark.parametrize("solver", [pb.solver.Primal(), pb.solver.Dual(), pb.solver.Krylov()])
def test_a_covector_in_the_kernel_below_rounding_is_refused(solver):
    """g/λ along the kernel, λ = 1e-18: a residual cannot tell, and the solver does not know."""
    a = conditioned(4, 6, 3.0)
    problem = pb.Composite(lambda p, x: x @ p, lambda z, y: (z - y) ** 2 / 2, measure=pb.Sum())
    batch = jnp.asarray(np.eye(6)), jnp.asarray(vector(6))
    given = problem, jnp.zeros(6), batch
    inverse, others = pb.Tikhonov(1e-18), (jnp.asarray(a),)
    ng = pb.natural_gradient(
        *given, inverse=inverse, solver=solver, metric_batch=others, throw=False
    )
    assert ng.result == pb.RESULTS.unconverged
    svd = pb.solver.SVD()
    ng = pb.natural_gradient(*given, inverse=inverse, solver=svd, metric_batch=others)
    _, s, vt = np.linalg.svd(a)
    h = np.concatenate([1 / (s**2 + 1e-18), np.full(2, 1e18)])
    assert distance(ng.vector, vt.T @ (h * (vt @ -vector(6)))) < 1e-9
    # With a damping above rounding each of them is right.
    ng = pb.natural_gradient(*given, inverse=pb.Tikhonov(1e-6), solver=solver, metric_batch=others)
    dense = np.linalg.solve(a.T @ a + 1e-6 * np.eye(6), -vector(6))
    assert distance(ng.vector, dense) < 1e-6
