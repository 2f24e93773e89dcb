"""Kernels, distances of functions, vectors and covectors, constraints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import testing

D = 5


def product(factors):
    out = factors[0]
    for factor in factors[1:]:
        out = out @ factor
    return out


def deep(depth, seed=0):
    return [normal(D, D, seed=seed + i) for i in range(depth)]


FULL = pb.Composite(product, lambda z: z[2, 2] ** 2 / 2)
MASK = jnp.zeros((D, D), bool).at[2, 2].set(True)
MASKED = pb.Composite(
    product, lambda z: z[2, 2] ** 2 / 2, pb.metric.Masked(pb.metric.Euclidean(), MASK)
)
UNIT = np.zeros((D, D))
UNIT[2, 2] = 1.0


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_natural_kernel_of_a_matrix_product_is_the_identity_at_any_depth(depth):
    factors = deep(depth)
    natural = pb.natural_ntk(FULL, factors)
    assert np.abs(natural.column(2, 2) - UNIT).max() < 1e-12
    if depth in (1, 3):
        assert "M⁻¹ in every parametrisation" in natural.reason
        blind = pb.natural_ntk(MASKED, factors)
        moved = np.asarray(blind.column(2, 2))
        assert np.isclose(moved[2, 2], 1.0) and (np.abs(moved - UNIT).max() > 0.1) == (depth > 1)
        assert "does not see 24 of 25 output directions" in blind.reason and "gauge" in blind.reason


def test_kernels_are_their_definitions_and_the_discrete_ones_tend_to_them():
    factors = deep(2)
    j = np.asarray(
        jax.jacfwd(lambda p: product([p[:25].reshape(D, D), p[25:].reshape(D, D)]).ravel())(
            jnp.concatenate([w.ravel() for w in factors])
        )
    )
    euclidean, natural = pb.ntk(FULL, factors), pb.natural_ntk(FULL, factors)
    assert np.allclose(euclidean.matrix(), j @ j.T, rtol=1e-12, atol=1e-12) and np.allclose(
        natural.matrix(), np.eye(25), atol=1e-11
    )
    # Pushing what a singular metric does not see still moves what it sees: G⁺Jᵀc, c outside the
    # range of M.
    m = np.diag(np.asarray(MASK, float).ravel())
    dense = j @ np.linalg.pinv(j.T @ m @ j, rcond=1e-10) @ j.T
    assert (
        np.allclose(pb.natural_ntk(MASKED, factors).matrix(), dense, atol=1e-10)
        and np.abs(dense[:, 2]).max() > 0.01
    )
    assert np.allclose(euclidean.column(2, 2), (j @ j.T)[:, 12].reshape(D, D), atol=1e-12)
    for kernel in (euclidean, natural):
        errors = [
            float(jnp.linalg.norm(kernel.discrete_column(2, 2, step=h) - kernel.column(2, 2)))
            for h in (1e-2, 5e-3, 2.5e-3)
        ]
        assert np.allclose(np.diff(np.log2(errors)), -1, atol=0.02)
    with pytest.raises(ValueError, match=r"one index for each of its axes.*product\(c\)"):
        euclidean.column(2)
    assert "depends on the parametrisation" in euclidean.reason
    absent = pb.Composite(
        lambda p, x: x[:, 0] * p[0], lambda z, y: z, measure=pb.Weights(jnp.asarray([1.0, 0.0]))
    )
    with pytest.raises(ValueError, match="samples of weight zero are absent"):
        pb.ntk(absent, jnp.asarray([1.0]), (jnp.ones((2, 1)),))


MODEL = testing.tanh_mlp(2, 3, 4, jax.random.key(0))
X = normal(3, 2, seed=1)
CATEGORICAL = pb.Composite(MODEL.function, metric=pb.metric.Categorical())


@pytest.mark.slow
def test_kernels_of_a_batch_watched_elsewhere():
    at = normal(2, 2, seed=5)
    kernel = pb.natural_ntk(CATEGORICAL, MODEL.params, (X, jnp.asarray([0, 1, 2])), at=at)
    dense = testing.reference_natural_gradient(
        pb.Composite(MODEL.function, metric=pb.metric.Categorical()),
        MODEL.params,
        (X, jnp.asarray([0, 1, 2])),
    )
    flat, unravel = jax.flatten_util.ravel_pytree(MODEL.params)
    there = np.asarray(jax.jacfwd(lambda p: MODEL.function(unravel(p), at).ravel())(flat))
    g = dense.jacobian.T @ dense.metric @ dense.jacobian
    # Only covectors that the softmax sees (of sum zero) are in the range of the metric.
    c = np.array([[1.0, -1.0, 0.0], [0.0, 0.5, -0.5], [0.2, -0.1, -0.1]])
    expected = there @ np.linalg.pinv(g, rcond=1e-12) @ dense.jacobian.T @ c.ravel()
    assert np.allclose(np.asarray(kernel.product(jnp.asarray(c))).ravel(), expected, rtol=1e-7)
    assert kernel.matrix().shape == (6, 9)
    with pytest.raises(ValueError, match=r"at=\.\.\. is for models with data"):
        pb.ntk(FULL, deep(1), at=at)


def test_the_distance_of_functions_to_second_order():
    other = jax.tree.map(lambda p: p + normal(*p.shape, seed=7), MODEL.params)
    points = [
        jax.tree.map(lambda a, b, h=h: a + h * (b - a), MODEL.params, other)
        for h in (4e-3, 2e-3, 1e-3)
    ]
    curve = pb.distance(CATEGORICAL, MODEL.params, points, (X,))
    # KL and its quadratic estimate differ at third order, and the parameters at first.
    error = np.log2(np.abs(np.asarray(curve.function - curve.quadratic)))
    assert np.allclose(np.diff(error), -3, atol=0.1) and np.allclose(
        np.diff(np.log2(np.asarray(curve.parameters))), -1
    )
    log_p, log_q = (jax.nn.log_softmax(MODEL.function(p, X)) for p in (points[0], MODEL.params))
    assert np.isclose(
        curve.function[0], jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=1))
    )
    ends = pb.distance(CATEGORICAL, MODEL.params, pb.line(MODEL.params, other, 3), (X,))
    assert float(ends.function[0]) == 0.0 and "as functions" in str(ends)
    # Another parametrisation of the same function is at distance zero, however far its parameters
    # are.
    swapped = jax.tree.map(lambda p: p, MODEL.params) | {
        "w": -MODEL.params["w"],
        "b": -MODEL.params["b"],
        "v": -MODEL.params["v"],
    }
    same = pb.distance(CATEGORICAL, MODEL.params, swapped, (X,))
    assert abs(float(same.function)) < 1e-15 and float(same.parameters) > 1
    with pytest.raises(ValueError, match="metric without a divergence"):
        pb.distance(
            pb.Composite(lambda p: p, lambda z: 0.0, pb.metric.Riemannian(lambda z: jnp.eye(2))),
            jnp.ones(2),
            jnp.ones(2),
        )


def test_vectors_and_covectors_know_which_they_are():
    problem = pb.Composite(
        lambda p: jnp.concatenate([p["w"] ** 2, p["w"] * p["b"]]), lambda z: jnp.sum(jnp.sin(z))
    )
    params = {"w": normal(2, seed=1), "b": jnp.asarray([0.7, -0.2])}
    g = pb.differential(problem, params)
    metric = pb.pullback(problem, params, solver=pb.solver.SVD())
    v = metric.sharp(g)
    assert (
        isinstance(g, pb.CotangentVector)
        and isinstance(v, pb.TangentVector)
        and isinstance(metric.flat(v), pb.CotangentVector)
    )
    moved = params - 0.1 * v
    plain = pb.natural_gradient(problem, params)
    assert np.allclose(moved["w"], params["w"] - 0.1 * plain.vector["w"], atol=1e-12)
    assert np.isclose(g @ v, metric.norm(v) ** 2, rtol=1e-10) and np.allclose(
        (g + g - g).tree["w"], plain.covector["w"]
    )
    assert isinstance(metric.sharp(plain.covector), dict)
    for wrong, words in (
        (lambda: params - g, "cannot be subtracted from parameters: sharp is missing"),
        (
            lambda: params["w"] + pb.CotangentVector(1.0),
            "cannot be added to parameters: sharp is missing",
        ),
        (lambda: np.ones(2) + pb.CotangentVector(1.0), "sharp is missing"),
        (
            lambda: metric.flat(metric.flat(v)),
            "flat takes a vector, got a covector: sharp is missing",
        ),
        (lambda: metric.sharp(v), "sharp takes a covector, got a vector: flat is missing"),
        (lambda: v + g, "a covector cannot be added to a vector: sharp is missing"),
        (lambda: g - v, "a vector cannot be subtracted from a covector: flat is missing"),
        (lambda: metric.norm(g), "norm takes a vector"),
        (lambda: g @ g, "a covector eats a TangentVector"),
        (lambda: v @ g, "covector @ vector is the pairing"),
    ):
        with pytest.raises(TypeError, match=words):
            wrong()
    # Nothing is left of the wrappers in a compiled program.
    wrapped = jax.make_jaxpr(lambda t: (2.0 * pb.TangentVector(t) + pb.TangentVector(t)).tree)(X)
    assert str(wrapped) == str(jax.make_jaxpr(lambda t: t * 2.0 + t)(X))


def test_an_absent_sample_reaches_no_derivative():
    x, y = normal(3, 2).at[1].set(jnp.nan), jnp.asarray([1.0, jnp.nan, 0.0])
    problem = pb.Composite(
        lambda p, x: jnp.tanh(x @ p),
        metric=pb.metric.Bernoulli(),
        measure=pb.Weights(jnp.asarray([0.5, 0.0, 0.5])),
    )
    present = pb.Composite(lambda p, x: jnp.tanh(x @ p), metric=pb.metric.Bernoulli())
    p, keep = jnp.asarray([0.3, -0.8]), jnp.asarray([0, 2])
    here = (x[keep], y[keep])
    assert np.allclose(
        pb.differential(problem, p, (x, y)).tree, pb.differential(present, p, here).tree, rtol=1e-14
    )
    assert np.isclose(
        pb.distance(problem, p, 2 * p, (x, y)).function,
        pb.distance(present, p, 2 * p, here).function,
        rtol=1e-14,
    )
    step = pb.proximal_step(problem, p, (x, y), weight=3.0)
    assert np.allclose(
        step.params, pb.proximal_step(present, p, here, weight=3.0).params, rtol=1e-10
    )


def test_constraints_project_on_the_nearest_point():
    simplex, cone = pb.constraint.Simplex(), pb.constraint.PositiveDefinite(0.1)
    q = normal(3, 4, seed=1)
    p = simplex(q)
    assert (
        np.allclose(jnp.sum(p, axis=1), 1)
        and float(jnp.min(p)) >= 0
        and np.allclose(simplex(p), p, atol=1e-15)
    )
    # The projection condition <q - p, r - p> <= 0 for every r of the set.
    for r in jax.nn.softmax(normal(20, 4, seed=2)):
        assert np.all(np.asarray(jnp.sum((q - p) * (r[None] - p), axis=1)) <= 1e-12)
    matrix = normal(3, 3, seed=3)
    inside = cone(matrix)
    assert (
        np.isclose(np.linalg.eigvalsh(inside).min(), 0.1)
        and float(cone.slack(matrix)) < 0
        and abs(float(cone.slack(inside))) < 1e-12
    )
    safe = inside + inside.T + jnp.eye(3)
    assert np.array_equal(cone(safe), safe) and np.array_equal(
        simplex(jnp.asarray([0.2, 0.3, 0.5])), [0.2, 0.3, 0.5]
    )
    at = pb.constraint.At(lambda t: t["cov"], cone)
    tree = at({"cov": matrix, "mean": jnp.ones(3)})
    assert np.allclose(tree["cov"], inside) and np.all(np.asarray(tree["mean"]) == 1)
    clip = pb.constraint.Clipping(-0.5, 0.5)
    assert (
        np.abs(clip({"a": q, "n": 3})["a"]).max() == 0.5
        and float(clip.violation(q)) == np.abs(q).max() - 0.5
    )
    with pytest.raises(ValueError, match="lower must not exceed upper"):
        pb.constraint.Clipping(1.0, 0.0)


def test_a_step_by_back_projection_clipping_and_penalty():
    problem = pb.Composite(lambda p: p, lambda z: jnp.sum((z - jnp.asarray([2.0, -1.0])) ** 2) / 2)
    start, clip = jnp.asarray([0.5, 0.5]), pb.constraint.Clipping(0.0, 1.0)
    step = pb.constrained_step(problem, start, step=1.0, constraint=clip)
    assert (
        np.allclose(step.params, [1.0, 0.0])
        and np.allclose(step.free, [2.0, -1.0])
        and float(step.slack) == 0
    )
    assert (
        np.isclose(step.correction, np.sqrt(2))
        and float(pb.constrained_step(problem, start, step=0.1, constraint=clip).correction) == 0
    )
    outside = jnp.asarray([1.5, 0.5])
    soft = pb.constrained_step(
        problem, outside, step=0.1, constraint=pb.constraint.Penalty(clip, 10.0)
    )
    assert np.allclose(
        soft.params,
        outside - 0.1 * (outside - jnp.asarray([2.0, -1.0])) - 0.1 * jnp.asarray([5.0, 0.0]),
    )
    assert float(soft.dropped) < 1e-12
    # A penalty on a direction that does not move the model is dropped, and said to be.
    redundant = pb.Composite(lambda p: p[0] + p[1], lambda z: z**2)
    lost = pb.constrained_step(
        redundant,
        jnp.asarray([1.5, -1.0]),
        step=0.1,
        constraint=pb.constraint.Penalty(pb.constraint.At(lambda p: p[0], clip), 1.0),
    )
    assert np.isclose(lost.dropped, np.sqrt(0.5))
    with pytest.raises(ValueError, match=r"violates the constraint Clipping by 0\.5"):
        pb.constrained_step(problem, outside, step=0.1, constraint=clip)
