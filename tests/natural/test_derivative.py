"""Derivatives of the natural gradient against differences of the dense reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import MODELS, SOLVERS, distance, flat, normal

import pullback as pb
from pullback import testing
from pullback._natural.natural_gradient import compute
from pullback._problem.validate import validate
from pullback.solver._strategy import Strategy


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def mlp_example(dtype=float, **kwargs):
    function, params = MODELS["tied weights"](3, jax.random.key(0))
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    problem = pb.Composite(function, square, pb.metric.Gaussian(), **kwargs)
    return testing.Example(
        problem, params, (normal(4, 2, dtype=dtype), normal(4, 3, seed=1, dtype=dtype))
    )


def eager(example, inverse, solver):
    params, batch = validate(*example)
    return compute(example[0], params, batch, Strategy(inverse, solver))


@pytest.mark.parametrize("inverse", [pb.MoorePenrose(), pb.Tikhonov(0.01)], ids=str)
@pytest.mark.parametrize("solver", ["svd", "dual", "primal", "krylov"])
def test_a_model_may_close_over_what_is_differentiated(solver, inverse):
    """Stopping the gradient of arguments does not reach it; the factors must be constants."""
    x = normal(5, 3, seed=9)

    def length(c):
        model = lambda p, x: jnp.tanh(c * (x @ p) + c**2)
        problem = pb.Composite(model, lambda z, y: (z - y) ** 2 / 2)
        batch = (x, jnp.zeros(5))
        ng = pb.natural_gradient(
            problem, jnp.ones(3), batch, inverse=inverse, solver=SOLVERS[solver]
        )
        return jnp.sum(ng.vector)

    c = jnp.asarray(0.7)
    value, slope = jax.jvp(length, (c,), (jnp.ones(()),))
    assert abs(float(value - length(c))) < 1e-10 * abs(float(value))
    expected = float(difference(length, c, jnp.ones(()))[0])
    assert abs(float(slope) - expected) < 1e-6 * abs(expected)


@pytest.mark.parametrize("solver", ["svd", "dual", "primal", "krylov"])
def test_sharp_and_project_have_derivatives(solver):
    """The factors are constants; the derivative is that of the equation they solve."""
    w = normal(3, 2, seed=4)
    problem = pb.Composite(lambda p: jnp.tanh(w @ p), lambda z: jnp.sum(z**2))
    point, tangent, g = (normal(2, seed=seed) for seed in (5, 6, 7))
    c = normal(3, seed=8)
    at = lambda p: pb.pullback(problem, p, solver=SOLVERS[solver])
    dense = lambda p: np.asarray(jax.jacobian(lambda p: jnp.tanh(w @ p))(p))
    sharp = lambda p: np.linalg.solve(dense(p).T @ dense(p), g)
    project = lambda p: dense(p) @ np.linalg.lstsq(dense(p), c, rcond=None)[0]
    for ours, naive in ((lambda p: at(p).sharp(g), sharp), (lambda p: at(p).project(c), project)):
        found = jax.jvp(ours, (point,), (tangent,))[1]
        assert distance(found, difference(naive, point, tangent)) < 1e-7


INVERSES = {"moore-penrose": pb.MoorePenrose(), "tikhonov": pb.Tikhonov(0.05)}
SMOOTH = {
    "rank-deficient": mlp_example,
    "repeated singular values": lambda: testing.prescribed(3, 6, 5, [1.0, 1.0, 1.0]),
    "more parameters than rows": lambda: testing.prescribed(3, 3, 5, [1.0, 0.5, 0.5]),
}


def tangent_like(tree, seed=11):
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(
        treedef, [normal(*x.shape, seed=seed + i) for i, x in enumerate(leaves)]
    )


def difference(function, point, tangent, step=1e-5):
    """A central difference of the reference, extrapolated once: order 4."""
    at = lambda h: flat(function(jax.tree.map(lambda x, t: x + h * t, point, tangent)))
    once = lambda h: (at(h) - at(-h)) / (2 * h)
    return (4 * once(step) - once(2 * step)) / 3


def reference_derivative(problem, params, batch, inverse, tangent):
    naive = lambda p: testing.reference_natural_gradient(problem, p, batch, inverse=inverse).vector
    return difference(naive, params, tangent, step=1e-4)


@pytest.mark.parametrize("solver", ["svd", "primal", "dual"])
@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("kind", SMOOTH)
def test_derivative_against_finite_differences(kind, inverse, solver):
    problem, params, batch = SMOOTH[kind]()
    tangent = tangent_like(params)
    step = lambda p: eager((problem, p, batch), INVERSES[inverse], SOLVERS[solver]).vector
    found = jax.jvp(step, (params,), (tangent,))[1]
    assert (
        distance(found, reference_derivative(problem, params, batch, INVERSES[inverse], tangent))
        < 1e-6
    )


@pytest.mark.parametrize("inverse", INVERSES)
@pytest.mark.parametrize("solver", ["svd", "krylov"])
def test_grad_and_jvp_of_the_public_function(solver, inverse):
    problem, params, batch = mlp_example()
    tangent, weights = tangent_like(params), tangent_like(params, seed=30)
    step = lambda p: (
        pb.natural_gradient(
            problem, p, batch, inverse=INVERSES[inverse], solver=SOLVERS[solver]
        ).vector
    )
    along = lambda p: jnp.vdot(
        jax.flatten_util.ravel_pytree(step(p))[0], jnp.asarray(flat(weights))
    )
    expected = reference_derivative(problem, params, batch, INVERSES[inverse], tangent)
    gradient = jax.grad(along)(params)
    assert abs(flat(gradient) @ flat(tangent) - flat(weights) @ expected) < 1e-6 * np.linalg.norm(
        expected
    )
    if solver == "krylov":
        assert distance(jax.jvp(step, (params,), (tangent,))[1], expected) < 1e-6


@pytest.mark.parametrize("inverse", ["moore-penrose", "tikhonov"])
@pytest.mark.parametrize("solver", ["svd", "primal", "dual"])
def test_the_gradient_is_the_transpose_of_the_derivative(solver, inverse):
    """Solvers branch on their right-hand side; of a likelihood they solve graded systems."""
    function, params = MODELS["tied weights"](3, jax.random.key(0))
    problem = pb.Composite(function, metric=pb.metric.Categorical())
    batch = (normal(4, 2), jnp.arange(4) % 3)
    chosen = {"moore-penrose": pb.MoorePenrose(), "tikhonov": pb.Tikhonov(0.01)}[inverse]
    weights, tangent = normal(flat(params).size, seed=30), tangent_like(params)

    def along(p):
        step = pb.natural_gradient(problem, p, batch, inverse=chosen, solver=SOLVERS[solver])
        return jnp.vdot(jax.flatten_util.ravel_pytree(step.vector)[0], weights)

    gradient, slope = jax.grad(along)(params), jax.jvp(along, (params,), (tangent,))[1]
    expected = reference_derivative(problem, params, batch, chosen, tangent)
    for found in (flat(gradient) @ flat(tangent), float(slope)):
        assert abs(found - flat(weights) @ expected) < 1e-6 * np.linalg.norm(expected)


def test_second_derivatives_are_refused():
    """The factors are constants of the first derivative: the second would be wrong."""
    problem, params, batch = mlp_example()

    def length(s):
        moved = jax.tree.map(lambda x: x * s, params)
        step = pb.natural_gradient(problem, moved, batch, inverse=pb.Tikhonov(0.01))
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(step.vector))

    one, slope = jnp.ones(()), lambda s: jax.jvp(length, (s,), (jnp.ones(()),))[1]
    seconds = (
        lambda: jax.jvp(slope, (one,), (one,)),
        lambda: jax.jvp(jax.grad(length), (one,), (one,)),
        lambda: jax.grad(slope)(one),
        lambda: jax.grad(jax.grad(length))(one),
    )
    for second in seconds:
        with pytest.raises(NotImplementedError, match="second derivatives of a natural gradient"):
            second()


def test_derivative_in_the_batch_the_damping_and_the_gauge():
    problem, params, batch = mlp_example()
    gauge = jax.tree.map(lambda x: jnp.linspace(0.5, 2.0, x.size).reshape(x.shape), params)

    def reference(point):
        batch, damping, gauge = point
        inverse = pb.Tikhonov(float(damping), gauge=gauge)
        return testing.reference_natural_gradient(problem, params, batch, inverse=inverse).vector

    def ours(batch, damping, gauge):
        return eager(
            (problem, params, batch), pb.Tikhonov(damping, gauge=gauge), pb.solver.SVD()
        ).vector

    point = (batch, jnp.asarray(0.05), gauge)
    tangent = jax.tree.map(lambda t: 0.1 * t, tangent_like(point))
    for only in range(3):
        moved = tuple(
            t if i == only else jax.tree.map(jnp.zeros_like, t) for i, t in enumerate(tangent)
        )
        expected = difference(reference, point, moved, step=1e-4)
        assert distance(jax.jvp(ours, point, moved)[1], expected) < 1e-6


@pytest.mark.parametrize(
    "metric",
    [pb.metric.Euclidean(2.0), pb.metric.Bernoulli(), pb.metric.Poisson(), pb.metric.Categorical()],
)
def test_lift_and_sharp_are_differentiated_where_the_covector_is_zero(metric):
    """A sample that is fitted exactly has c = 0, and a derivative all the same."""
    z, c, t = normal(4), jnp.zeros(4), jnp.asarray([0.5, -1.0, 0.25, 0.25])
    for function in (lambda c: metric.root(z).unit_lift(c), lambda c: metric.sharp(z, c)):
        assert distance(jax.jvp(function, (c,), (t,))[1], function(t)) < 1e-14
    huge = jnp.asarray([2000.0, -2000.0, 0.0, 1.0])
    assert bool(jnp.all(metric.root(huge).unit_lift(c) == 0)) and bool(
        jnp.all(metric.sharp(huge, c) == 0)
    )


def test_derivative_of_a_truncated_inverse_is_refused():
    problem, params, batch = mlp_example()
    step = lambda p: pb.natural_gradient(problem, p, batch, inverse=pb.TruncatedRank(2)).vector
    with pytest.raises(
        NotImplementedError,
        match=r"TruncatedRank is not differentiated.*MoorePenrose\(rtol=\.\.\.\) or Tikhonov",
    ):
        jax.jvp(step, (params,), (params,))
