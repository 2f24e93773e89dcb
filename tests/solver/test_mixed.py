"""A model in single precision, its linear algebra in double."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import distance

import pullback as pb

# The Jacobian is in single precision all the same, and its condition number is said.
pytestmark = pytest.mark.filterwarnings("ignore:the condition number of A")

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(6, 3)), jnp.float32)
Y = jnp.asarray(RNG.normal(size=(6, 2)), jnp.float32)
PARAMS = {
    "w": jnp.asarray(RNG.normal(size=(3, 5)), jnp.float32),
    "v": jnp.asarray(RNG.normal(size=(5, 2)) * [1.0, 1e-4], jnp.float32),
}
SOLVERS = [pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal(), pb.solver.Auto()]
INVERSES = [pb.Tikhonov(1e-10), pb.MoorePenrose(rtol=1e-6), pb.TruncatedRank(3)]


def model(p, x):
    return jnp.tanh(x @ p["w"]) @ p["v"]


PROBLEM = pb.Composite(model, lambda z, y: jnp.sum((z - y) ** 2) / 2)


def dense(inverse):
    """Solve with the Jacobian as it is in single precision, in NumPy's double."""
    flat, unravel = jax.flatten_util.ravel_pytree(PARAMS)
    j = jax.jacrev(lambda p: model(unravel(p), X).ravel())(flat)
    j = np.asarray(j, np.float64) / np.sqrt(6)
    # The loss is a sum, the metric a mean.
    r = np.asarray((model(PARAMS, X) - Y).ravel(), np.float64) * np.sqrt(6)
    u, s, vt = np.linalg.svd(j, full_matrices=False)
    if inverse.damping is not None:
        h = s / (s**2 + inverse.damping)
    else:
        kept = s > 1e-6 * s[0] if isinstance(inverse, pb.MoorePenrose) else np.arange(s.size) < 3
        h = np.where(kept, 1 / s, 0.0)
    return vt.T @ (h * (u.T @ r))


def solve(inverse, solver, **options):
    return pb.natural_gradient(PROBLEM, PARAMS, (X, Y), inverse=inverse, solver=solver, **options)


@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_it_loses_nothing_but_the_rounding_of_the_model(solver, inverse):
    ng = solve(inverse, pb.solver.Mixed(solver))
    flat = jax.flatten_util.ravel_pytree(ng.vector)[0]
    assert flat.dtype == jnp.float32 and ng.result == pb.RESULTS.successful
    assert distance(flat, dense(inverse)) < 1e-5


def test_single_precision_alone_does_lose():
    inverse = pb.Tikhonov(1e-10)
    with pytest.warns(pb.PrecisionWarning, match=r"the damping is below the rounding of what Dual"):
        short = solve(inverse, pb.solver.Dual())
    short = jax.flatten_util.ravel_pytree(short.vector)[0]
    mixed = solve(inverse, pb.solver.Mixed(pb.solver.Dual()))
    mixed = jax.flatten_util.ravel_pytree(mixed.vector)[0]
    assert distance(mixed, dense(inverse)) < distance(short, dense(inverse)) / 10


def test_in_a_step_that_damps():
    rule = pb.step.LevenbergMarquardt()
    opt = pb.NaturalGradientDescent(
        PROBLEM, pb.MoorePenrose(rtol=1e-6), pb.solver.Mixed(), step=rule
    )
    params, state = PARAMS, opt.init(PARAMS)
    for _ in range(3):
        params, state, record = opt.step(params, state, (X, Y))
        assert record.accepted and record.loss_after < record.loss
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))


def test_what_it_refuses_and_where_it_does_nothing():
    with pytest.raises(ValueError, match=r"rounding of double precision.*damp"):
        solve(pb.MoorePenrose(), pb.solver.Mixed())
    wide = jax.tree.map(lambda x: x.astype(jnp.float64), (PARAMS, (X, Y)))
    options = {"inverse": pb.Tikhonov(1e-6)}
    plain = pb.natural_gradient(PROBLEM, *wide, solver=pb.solver.SVD(), **options)
    mixed = pb.natural_gradient(PROBLEM, *wide, solver=pb.solver.Mixed(pb.solver.SVD()), **options)
    assert jax.tree.all(jax.tree.map(np.array_equal, plain.vector, mixed.vector))
    assert mixed.stats.solver == "SVD"
