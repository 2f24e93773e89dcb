"""Tangent kernels, natural or not: dense definitions, depth, other inputs, discrete steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SOLVERS, gauge_like, normal

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
    with pytest.raises(ValueError, match="of weight zero are absent and have no place"):
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


TARGETS = jnp.asarray([0, 1, 2])
INVERSES = {
    "moore-penrose": pb.MoorePenrose(),
    "gauge": pb.MoorePenrose(gauge=gauge_like(MODEL.params)),
    "tikhonov": pb.Tikhonov(0.1),
}


# Every inverse once; `make test-all` runs all pairs.
FAST = {("svd", "gauge"), ("dual", "moore-penrose"), ("krylov", "tikhonov")}


@pytest.mark.parametrize(
    ("solver", "inverse"),
    [
        pytest.param(
            solver,
            inverse,
            id=f"{how}, {which}",
            marks=() if (how, which) in FAST else pytest.mark.slow,
        )
        for how, solver in SOLVERS.items()
        for which, inverse in INVERSES.items()
    ],
)
def test_every_solver_finds_the_dense_kernel(solver, inverse):
    """J h(G) Jᵀ with a metric that does not see the sum of the logits."""
    kernel = pb.natural_ntk(CATEGORICAL, MODEL.params, (X, TARGETS), inverse=inverse, solver=solver)
    dense = testing.reference_natural_gradient(CATEGORICAL, MODEL.params, (X, TARGETS))
    weights = np.ones(dense.matrix.shape[0])
    if inverse.gauge is not None:
        weights = jax.flatten_util.ravel_pytree(inverse.gauge)[0]
    root = 1 / np.sqrt(np.asarray(weights))
    g = root[:, None] * dense.matrix * root[None, :]
    damping = 0.0 if inverse.damping is None else inverse.damping
    h = np.linalg.pinv(g + damping * np.eye(len(g)), rcond=1e-12, hermitian=True)
    expected = (dense.jacobian * root) @ h @ (dense.jacobian * root).T
    assert np.allclose(kernel.matrix(), expected, rtol=1e-8, atol=1e-8)


class Counted(pb.solver.AbstractSolver):
    """An SVD that counts its factorisations and scales its solutions."""

    calls: list
    factor: float

    def check(self, inverse):
        pass

    def factorise(self, rows, inverse):
        self.calls.append(0)
        factors = pb.solver.SVD().factorise(rows, inverse)
        return eqx.tree_at(lambda f: f.h, factors, self.factor * factors.h)


def test_a_kernel_is_factorised_once_and_a_wrong_solver_is_refused():
    calls = []
    kernel = pb.natural_ntk(FULL, deep(2), solver=Counted(calls, 1.0))
    assert np.allclose(kernel.matrix(), np.eye(25), atol=1e-11)
    column = kernel.column(2, 2)
    assert np.allclose(jax.jit(lambda c: kernel.product(c))(jnp.asarray(UNIT)), column, atol=1e-14)
    assert np.allclose(kernel.column(-3, -3), column, atol=1e-14) and len(calls) == 1
    with pytest.raises(RuntimeError, match="did not reach the solution"):
        pb.natural_ntk(FULL, deep(2), solver=Counted([], 0.5))
    model = lambda p, x: x @ p - jnp.mean(x @ p, keepdims=True)
    with pytest.raises(RuntimeError, match="mixes samples"):
        pb.natural_ntk(pb.Composite(model, lambda z: z), jnp.ones(2), (X,))


@pytest.mark.parametrize("make", [pb.ntk, pb.natural_ntk])
def test_a_covector_that_is_none_is_refused_and_a_kernel_has_a_table(make):
    kernel = make(pb.Composite(lambda p, x: jnp.sin(x @ p)), normal(2, 3), (normal(4, 2),))
    for call in (kernel.product, kernel.direction, lambda c: kernel.discrete(c, step=0.1)):
        with pytest.raises(ValueError, match=r"expected a tree like the outputs, .*\[\(4, 3\)\]"):
            call(jnp.ones(12))
    assert "12 outputs, 6 parameters" in kernel._repr_html_()
    assert ("rank 6" in kernel._repr_html_()) == (make is pb.natural_ntk)


def test_what_a_kernel_depends_on_and_how_it_prints():
    factors = deep(2)
    cut = pb.natural_ntk(FULL, factors, inverse=pb.TruncatedRank(3))
    assert "TruncatedRank changes or drops singular values" in cut.reason
    whole = pb.natural_ntk(FULL, factors, inverse=pb.TruncatedRank(30))
    assert "M⁻¹ in every parametrisation" in whole.reason
    damped = pb.natural_ntk(FULL, factors, inverse=pb.Tikhonov(0.1))
    assert "damped" in damped.reason and repr(damped).startswith(
        "TangentKernel(JG⁺Jᵀ, 25 outputs, 50 parameters, Tikhonov"
    )
    assert repr(pb.ntk(FULL, factors)) == "TangentKernel(JJᵀ, 25 outputs, 50 parameters)"
    with pytest.raises(ValueError, match=r"column\(2, 5\): the outputs have shape \(5, 5\)"):
        damped.column(2, 5)
    with pytest.raises(ValueError, match=r"discrete\(step=0.0\): step must be positive"):
        damped.discrete_column(2, 2, step=0.0)
    with pytest.raises(ValueError, match="params contains a NaN"):
        pb.ntk(FULL, [jnp.full((D, D), jnp.nan)])
