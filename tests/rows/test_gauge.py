"""The gauge: which of the vectors with one pushforward is taken. It never changes what the metric
sees.
"""

import curved
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from helpers import distance, flat, make_example, normal

import pullback as pb
from pullback import testing
from pullback._base.tree import split, structure
from pullback._rows.gauge import as_gauge
from pullback.testing import _reference

SIZE = 6
EXAMPLE = testing.prescribed(3, 5, SIZE)
_root = np.random.default_rng(5).standard_normal((SIZE, SIZE))
MATRIX = jnp.asarray(_root @ _root.T + np.eye(SIZE))
DIAGONAL = jnp.linspace(0.2, 3.0, SIZE)


def another_pullback():
    """G of a problem with as many independent rows as parameters: positive definite."""
    return pb.pullback(*testing.prescribed(SIZE, 8, SIZE, key=jax.random.key(3)))


GAUGES = {
    "number": lambda: 2.5,
    "diagonal": lambda: DIAGONAL,
    "matrix": lambda: MATRIX,
    "lineax": lambda: lx.MatrixLinearOperator(MATRIX, lx.positive_semidefinite_tag),
    "lineax diagonal": lambda: lx.DiagonalLinearOperator(DIAGONAL),
    "pullback metric": another_pullback,
}
KINDS = {
    "moore-penrose": lambda gauge: pb.MoorePenrose(gauge=gauge),
    "tikhonov": lambda gauge: pb.Tikhonov(0.05, gauge=gauge),
    "truncated rank": lambda gauge: pb.TruncatedRank(2, gauge=gauge),
}


def dense(gauge):
    return _reference.dense_gauge(gauge, SIZE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GAUGES)
def test_every_gauge_agrees_with_the_dense_one(name, kind):
    inverse = KINDS[kind](GAUGES[name]())
    expected = testing.reference_natural_gradient(*EXAMPLE, inverse=inverse)
    metric = pb.pullback(*EXAMPLE, inverse=inverse)
    r = normal(5, seed=1)
    a = np.asarray(EXAMPLE.batch[0])
    for solver in (pb.solver.SVD(), pb.solver.Primal(), pb.solver.Dual()):
        assert distance(metric.sharp(expected.covector, inverse, solver), expected.vector) < 1e-9
        factors = metric.factorise(inverse, solver)
        assert int(factors.rank) in (-1, expected.rank)
        from_covector = factors.solve_covector(jnp.asarray(a.T @ r))
        assert distance(factors.solve_lifted(r), from_covector) < 1e-9


@pytest.mark.parametrize("name", GAUGES)
def test_weighted_moore_penrose_conditions(name):
    """Of all solutions of A δ = ΠA r it is the one of least δᵀWδ: W δ is orthogonal to the kernel
    of A.
    """
    gauge = GAUGES[name]()
    a, weights = np.asarray(EXAMPLE.batch[0]), dense(gauge)
    factors = pb.pullback(*EXAMPLE, inverse=pb.MoorePenrose(gauge=gauge)).factorise()
    r = normal(5, seed=2)
    delta = np.asarray(factors.solve_lifted(r))
    kernel = np.linalg.svd(a)[2][3:]
    assert np.max(np.abs(kernel @ weights @ delta)) < 1e-12
    assert np.max(np.abs(a.T @ (a @ delta - r))) < 1e-12
    plain = np.linalg.pinv(a, rcond=1e-10) @ r
    assert np.max(np.abs(a @ (delta - plain))) < 1e-12
    if name != "number":
        assert np.linalg.norm(delta - plain) > 0.01
        assert delta @ weights @ delta < plain @ weights @ plain


def test_a_diagonal_is_a_tree_like_the_parameters():
    example = make_example("categorical", "tied weights")
    gauge = jax.tree.map(lambda x: jnp.linspace(0.5, 2.0, x.size).reshape(x.shape), example.params)
    inverse = pb.MoorePenrose(gauge=gauge)
    expected = testing.reference_natural_gradient(*example, inverse=inverse)
    assert distance(pb.natural_gradient(*example, inverse=inverse).vector, expected.vector) < 1e-9
    assert (
        distance(
            pb.natural_gradient(*example, inverse=inverse).vector,
            pb.natural_gradient(*example).vector,
        )
        > 1e-3
    )


def test_a_number_for_each_leaf_is_a_damping_for_each_leaf():
    """(AᵀA + λW)⁻¹Aᵀr by NumPy, in every solver and in a rule that finds λ."""
    a, r, _ = curved.dense()
    gauge, order = {"b": 1.0, "v": 10.0, "w": 0.1}, [("b", 2), ("v", 4), ("w", 4)]
    weights = np.concatenate([np.full(size, gauge[name]) for name, size in order])
    damped = lambda damping: -np.linalg.solve(a.T @ a + damping * np.diag(weights), a.T @ r)
    inverse = pb.Tikhonov(0.01, gauge=gauge)
    for solver in (pb.solver.SVD(), pb.solver.Dual(), pb.solver.Primal(), pb.solver.Krylov()):
        solve = jax.jit(lambda solver=solver: curved.near(solver, inverse).solution)
        assert distance(-solve(), damped(0.01)) < 1e-8, solver
    rule = pb.step.LevenbergMarquardt(damping=0.01)
    opt = pb.NaturalGradientDescent(curved.PROBLEM, pb.MoorePenrose(gauge=gauge), step=rule)
    moved, _, record = opt.step(curved.PARAMS, opt.init(curved.PARAMS), (curved.X, curved.Y))
    step = curved.flat(moved) - curved.flat(curved.PARAMS)
    assert bool(record.accepted) and distance(step, damped(float(record.damping))) < 1e-9


def test_a_number_stands_for_the_leaves_below_it():
    params = {
        "a": [jnp.zeros((2, 2)), jnp.zeros(3)],
        "b": eqx.nn.Linear(2, 1, key=jax.random.key(0)),
    }
    like = structure(params)
    weights = lambda gauge: as_gauge(gauge, like, like.dtype).weights
    grouped = weights({"a": 2.0, "b": 3})
    np.testing.assert_array_equal(grouped, [2.0] * 7 + [3.0] * 3)
    mixed = weights({"a": [jnp.arange(1.0, 5.0).reshape(2, 2), 5.0], "b": jnp.asarray(3.0)})
    np.testing.assert_array_equal(mixed, [1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0, 3.0, 3.0, 3.0])
    # A number per leaf, by its path: also where leaves are functions, which have no coordinates.
    net = eqx.nn.MLP(1, 1, 2, 1, key=jax.random.key(0))
    name = lambda path, _: 4.0 if "bias" in jax.tree_util.keystr(path) else 1.0
    gauge = jax.tree_util.tree_map_with_path(name, net)
    like = structure(net)
    expected = like.ravel(
        jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.full(x.shape, name(path, x)), split(net)[0]
        )
    )
    np.testing.assert_array_equal(as_gauge(gauge, like, like.dtype).weights, expected)
    for wrong in ({"a": 2.0}, {"a": 2.0, "b": True}, {"a": jnp.ones(3), "b": 1.0}):
        with pytest.raises(ValueError, match="with a number for each leaf or group of leaves"):
            weights(wrong)


def test_remark_2_another_parametrisation_is_another_inner_product():
    """Seed 000, (32)-(33): F^T (natural gradient in θ) is the natural gradient in ξ in the gauge (F
    F^T)^{-1}, for ξ = f(θ).
    """
    problem, xi, batch = make_example("categorical", "tied weights")
    flat_xi = jnp.asarray(flat(xi))
    unravel = structure(xi).unravel
    step = np.random.default_rng(7).standard_normal((flat_xi.size, flat_xi.size))
    forward = jnp.asarray(np.eye(flat_xi.size) + 0.3 * step / np.sqrt(flat_xi.size))

    def f(theta):
        return forward @ jnp.sinh(theta)

    theta = jnp.arcsinh(jnp.linalg.solve(forward, flat_xi))
    composed = pb.Composite(lambda p, x: problem.model(unravel(f(p)), x), None, problem.metric)
    in_theta = pb.natural_gradient(composed, theta, batch)
    jacobian = jax.jacobian(f)(theta)
    pushed = jacobian @ in_theta.vector
    gauge = jnp.linalg.inv(jacobian @ jacobian.T)
    in_xi = pb.natural_gradient(
        problem, xi, batch, inverse=pb.MoorePenrose(gauge=(gauge + gauge.T) / 2)
    )
    assert distance(pushed, in_xi.vector) < 1e-9
    plain = pb.natural_gradient(problem, xi, batch)
    # (37)-(39): the vectors differ, what the model does with them does not.
    assert distance(pushed, plain.vector) > 1e-2
    root = lambda z: np.asarray(pb.pullback(problem, xi, batch).whitened.unit_output(z))
    assert distance(root(in_theta.pushforward), root(plain.pushforward)) < 1e-9


@pytest.mark.parametrize(
    ("gauge", "words"),
    [
        (jnp.ones(4), "gauge must be a positive number, a pytree like the parameters"),
        (jnp.ones((3, 3)), r"gauge must be a positive number.*a \(6, 6\) matrix"),
        (
            lx.MatrixLinearOperator(jnp.eye(4)),
            r"gauge must be a \(6, 6\) matrix, not of shape \(4, 4\), e\.g\. MoorePenrose",
        ),
        ("diagonal", "gauge must be a positive number"),
    ],
    ids=["length", "matrix", "operator", "text"],
)
def test_a_gauge_of_the_wrong_shape_is_refused(gauge, words):
    with pytest.raises(ValueError, match=words):
        pb.natural_gradient(*EXAMPLE, inverse=pb.MoorePenrose(gauge=gauge))


BAD = {
    "zero entry": DIAGONAL.at[2].set(0.0),
    "negative entry": DIAGONAL.at[2].set(-1.0),
    "negative number": -1.0,
    "indefinite": MATRIX - 3 * jnp.eye(SIZE) * jnp.linalg.eigvalsh(MATRIX)[1],
    "singular": jnp.ones((SIZE, SIZE)),
    "not symmetric": MATRIX.at[0, 1].add(0.1),
    "nan": MATRIX.at[0, 0].set(jnp.nan),
}


@pytest.mark.parametrize("name", BAD)
def test_a_gauge_that_is_not_positive_definite_is_named(name):
    structure_of = structure(EXAMPLE.params)
    assert not bool(as_gauge(BAD[name], structure_of, jnp.dtype(float)).valid)


def test_a_singular_pullback_metric_is_no_gauge():
    with pytest.raises(RuntimeError, match="`gauge` is not positive definite"):
        pb.natural_gradient(
            *EXAMPLE, inverse=pb.MoorePenrose(gauge=pb.pullback(*testing.prescribed(4, 8, SIZE)))
        )
    ng = pb.natural_gradient(
        *EXAMPLE, inverse=pb.MoorePenrose(gauge=BAD["negative entry"]), throw=False
    )
    assert bool(ng.result == pb.RESULTS.bad_gauge)


@pytest.mark.parametrize("name", GAUGES)
def test_the_maps_of_a_gauge_are_those_of_its_root(name):
    """R⁻¹R = I, RᵀR = W, and the transposes agree."""
    gauge = GAUGES[name]()
    like = structure(EXAMPLE.params)
    given = as_gauge(gauge, like, jnp.dtype(float))
    assert bool(given.valid)
    eye = jnp.eye(SIZE)
    root = np.asarray(jax.vmap(given.lift, out_axes=1)(eye))
    inverse = np.asarray(jax.vmap(given.lower, out_axes=1)(eye))
    assert distance(root.T @ root, dense(gauge)) < 1e-13
    assert np.abs(inverse @ root - np.eye(SIZE)).max() < 1e-13
    a = normal(4, SIZE, seed=3)
    assert distance(given.rows(a), np.asarray(a) @ inverse) < 1e-13
    assert distance(jax.vmap(given.pull)(a), np.asarray(a) @ inverse) < 1e-13


def test_a_gauge_may_be_given_as_one_that_is_made():
    like = structure(EXAMPLE.params)
    made = as_gauge(MATRIX, like, jnp.dtype(float))
    assert as_gauge(made, like, jnp.dtype(float)) is made
    assert as_gauge(None, like, jnp.dtype(float)).lower(DIAGONAL) is DIAGONAL
