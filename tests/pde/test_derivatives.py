"""Derivatives in one pass against dense derivatives of JAX, for many functions and compositions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import normal

import pullback as pb
from pullback import pde
from pullback._compat.jaxpr import trace
from pullback._gram.structured import find

RNG = np.random.default_rng(0)
X = jnp.asarray([0.3, 0.7, -0.2])
W, V, C = (jnp.asarray(RNG.standard_normal(shape)) for shape in ((5, 3), (5, 5), (2, 1, 2)))
B = jnp.asarray(RNG.standard_normal(5))


def dense(u, x):
    """Value, Jacobian and Laplacian by JAX, forward over forward (loops have no other)."""
    return u(x), jax.jacfwd(u)(x), jnp.trace(jax.jacfwd(jax.jacfwd(u))(x), axis1=-2, axis2=-1)


@pytest.fixture(autouse=True)
def models_as_people_write_them():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@jax.custom_jvp
def squared(x):
    return x * x


@squared.defjvp
def _(primals, tangents):
    return squared(primals[0]), 2 * primals[0] * tangents[0]


def gated(x):
    return jnp.sum(jax.nn.sigmoid(W @ x + B) * (V @ jnp.tanh(W @ x)))


def convolved(x):
    image = jnp.outer(x, jnp.sin(x))[:, :, None]
    out = jax.lax.conv_general_dilated(
        image[None], C[..., None, :], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.tanh(out).sum()


def moving_filter(x):
    h = jax.lax.conv_general_dilated(jnp.sin(x)[None, None], x[None, None, :2], (1,), "SAME")
    return jnp.sum(h**2)


def looped(x):
    return jax.lax.scan(lambda c, w: (jnp.sin(c * w + x), jnp.sum(c)), x, W)[1].sum()


def counted(x):
    return jax.lax.fori_loop(0, jnp.asarray(3), lambda i, c: jnp.sin(c) * x[0] + i, x[1])


FUNCTIONS = {
    "mlp": lambda x: B @ jnp.tanh(V @ jnp.tanh(W @ x + B)),
    "residual network": lambda x: jnp.sum(jnp.sin(W @ x + V @ jnp.tanh(W @ x))),
    "vector": lambda x: jnp.tanh(V @ jnp.tanh(W @ x + B)),
    "gated": gated,
    "Fourier features": lambda x: jnp.concatenate([jnp.sin(W @ x), jnp.cos(W @ x)]) @ jnp.ones(10),
    "periodic": lambda x: jnp.tanh(W @ jnp.sin(2 * jnp.pi * x)).sum(),
    "convolution": convolved,
    "convolution with a moving filter": moving_filter,
    "softmax": lambda x: jax.nn.softmax(W @ x)[2],
    "logsumexp": lambda x: jax.nn.logsumexp(W @ x),
    "silu": lambda x: jnp.sum(jax.nn.silu(W @ x)),
    "softplus": lambda x: jnp.sum(jax.nn.softplus(W @ x)),
    "gelu": lambda x: jnp.sum(jax.nn.gelu(W @ x)),
    "elu": lambda x: jnp.sum(jax.nn.elu(W @ x)),
    "relu cubed": lambda x: jnp.sum(jax.nn.relu(W @ x) ** 3),
    "rule of one's own": lambda x: jnp.sum(squared(squared(W @ x))),
    "division": lambda x: x[0] / (1 + x[1] ** 2 + x[2]) - 3.0 / x[0],
    "division by itself": lambda x: jnp.sum((lambda h: h / h * x + h / h)(jnp.sin(x))),
    "powers": lambda x: (1 + x[0] ** 2) ** x[1] + x[1] ** 2.5 + 2.0 ** x[2],
    "where": lambda x: jnp.where(x > 0, x**3 * x[1], jnp.sin(x)).sum(),
    "maximum": lambda x: jnp.maximum(x[0] ** 2, x[1] * x[2]) + jnp.clip(x[0] ** 3, -1.0, 1.0),
    "norm": lambda x: jnp.linalg.norm(x),
    "einsum": lambda x: jnp.einsum("i,j,ij", x, jnp.sin(x), W[:3]),
    "product with itself": lambda x: jnp.outer(x, x) @ x @ x,
    "sort and product": lambda x: jnp.sort(x)[0] ** 2 * jnp.prod(x),
    "determinant": lambda x: jnp.linalg.slogdet(jnp.outer(x, x) + jnp.eye(3))[1],
    "branches": lambda x: jax.lax.cond(x[0] > 0, lambda x: jnp.sum(x**3), jnp.sum, x),
    "scan": looped,
    "counted loop": counted,
    "cumulative": lambda x: jnp.sum(jnp.cumsum(x) ** 2) + jnp.cumprod(x)[-1],
    "indices and integers": lambda x: x[jnp.argsort(x)[:2]].prod() * jnp.floor(9 * x[1]),
    "padded, rolled, flipped": lambda x: jnp.pad(x, 1, constant_values=2.0)[::-1] @ W[:, 0],
    "updated": lambda x: jnp.sum(x.at[1].mul(x[0]).at[0].add(x[2] ** 2) ** 2),
    "complex inside": lambda x: jnp.abs(jnp.exp(1j * x[0] * x[1] + x[2])) * jnp.cos(x[0]),
    "nested jit and checkpoint": lambda x: jax.jit(jax.checkpoint(gated))(x) ** 2,
    "vmapped": lambda x: jax.vmap(lambda w: jnp.sin(w @ x))(W).sum(),
    "inner derivative": lambda x: jnp.sum(jax.grad(gated)(x) ** 2),
    "linear": lambda x: x @ W[0] + 1.0,
    "constant": lambda x: jnp.ones(()),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_one_pass_gives_value_gradient_and_laplacian(name):
    u = FUNCTIONS[name]
    found, expected = jax.jit(lambda x: (pde.jet(u, x), dense(u, x)))(X)
    for part, reference in zip(found, expected, strict=True):
        assert part.shape == reference.shape and part.dtype == reference.dtype
        np.testing.assert_allclose(part, reference, rtol=1e-11, atol=1e-11)


def test_all_functions_read_the_same_pass():
    u, v = FUNCTIONS["vector"], jnp.asarray([1.0, -2.0, 0.5])

    @jax.jit
    def every(x):
        jacobian, hessian = jax.jacfwd(u)(x), jax.jacfwd(jax.jacfwd(u))(x)
        return [
            (pde.gradient(u, x), jacobian),
            (pde.partial(u, x, -1), jacobian[:, 2]),
            (jax.vmap(lambda axis: pde.partial(u, x, axis))(jnp.arange(3)), jacobian.T),
            (pde.second(u, x, v), jnp.einsum("aij,i,j", hessian, v, v)),
            (pde.second(u, x, np.asarray([0, 2, 0])), 4 * hessian[:, 1, 1]),
            (pde.hessian_vector(u, x, v), hessian @ v),
            (pde.laplacian(u, x, [2, 0]), hessian[:, 0, 0] + hessian[:, 2, 2]),
            (pde.laplacian(u, x, []), jnp.zeros(5)),
            (pde.jet(u, x, [1]).gradient, jacobian),
            (pde.jet(u, x, [1]).laplacian, hessian[:, 1, 1]),
            (pde.divergence(lambda x: u(x)[:3], x), jnp.trace(jacobian[:3])),
        ]

    for found, expected in every(X):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_derivatives_nest():
    """Δ²u, ∂₀Δu and Δ∂₀u, against nested derivatives by JAX."""
    u = FUNCTIONS["mlp"]
    laplacian = lambda f: lambda x: jnp.trace(jax.jacfwd(jax.jacfwd(f))(x))

    @jax.jit
    def every(x):
        biharmonic = pde.laplacian(lambda y: pde.laplacian(u, y), x)
        one = pde.partial(lambda y: pde.laplacian(u, y), x, 0)
        other = pde.laplacian(lambda y: pde.partial(u, y, 0), x)
        first = jax.jacfwd(laplacian(u))(x)[0]
        return (biharmonic, one, other), (laplacian(laplacian(u))(x), first, first)

    for found, expected in zip(*every(X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_trees_of_outputs_keep_their_structure():
    u = lambda x: {"a": x[0] ** 3, "b": (jnp.sin(x), 2)}
    found = pde.laplacian(u, X)
    np.testing.assert_allclose(found["a"], 6 * X[0])
    np.testing.assert_allclose(found["b"][0], -jnp.sin(X))
    assert found["b"][1] == 0


def test_derivatives_by_parameters_and_over_batches():
    params = [W, B, V]
    u = lambda p, x: jnp.sum(jnp.tanh(p[2] @ jnp.tanh(p[0] @ x + p[1])))
    points = jnp.stack([X, X + 0.1])

    def loss(laplacian):
        return lambda p: jnp.sum(jax.vmap(lambda x: laplacian(lambda y: u(p, y), x))(points) ** 2)

    found = jax.grad(loss(pde.laplacian))(params)
    expected = jax.grad(loss(lambda u, x: jnp.trace(jax.hessian(u)(x))))(params)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_a_fill_value_does_not_move():
    places = jnp.array([0, 5, 1])
    u = lambda x: jnp.prod(jnp.take(jnp.sin(x) * x, places, mode="fill", fill_value=1.5))
    alone = lambda x: 1.5 * jnp.sin(x[0]) * x[0] * jnp.sin(x[1]) * x[1]
    found = pde.jet(u, X)
    for one, other in zip(found, dense(alone, X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_kinks_have_the_derivatives_that_jax_gives_them():
    """At a kink the second derivative is that of the branch, never a delta function."""
    zero = jnp.zeros(1)
    assert float(pde.laplacian(lambda x: jax.nn.relu(x[0]), zero)) == 0.0
    assert float(pde.partial(lambda x: jax.nn.relu(x[0]), zero, 0)) == 0.0
    assert float(pde.laplacian(lambda x: jnp.abs(x[0]), zero)) == 0.0
    assert float(pde.laplacian(lambda x: jnp.maximum(x[0], 0.0) ** 2, zero + 1.0)) == 2.0


def test_single_precision_stays_single_under_strict_promotion():
    w = W.astype(jnp.float32)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        u = lambda x: jnp.sum(jnp.tanh(w @ x) * 2.0) + jnp.prod(jax.nn.softplus(x)) / x[0]
        for part in pde.jet(u, X.astype(jnp.float32)):
            assert part.dtype == jnp.float32
    expected = dense(u, X.astype(jnp.float32))[2]
    np.testing.assert_allclose(pde.laplacian(u, X.astype(jnp.float32)), expected, rtol=1e-5)


def products(u, x):
    """The products with a matrix, by the rows that each has."""
    program = trace(u, x)
    return [
        eqn.outvars[0].aval.shape
        for eqn in program.jaxpr.eqns
        if eqn.primitive.name == "dot_general"
    ]


def test_first_derivatives_are_rows_of_one_product():
    u = lambda x: jnp.sum(jnp.tanh(W @ x))
    # Value, three rows, no Laplacian before the first function of entries.
    assert sorted(products(lambda x: pde.laplacian(u, x), X)) == [(5,), (5, 3)]


def positions(one, d=3):
    """How many positions each weight of a network has in the program of a sample."""
    params = [jnp.asarray(RNG.standard_normal(s)) for s in ((d, 6), (6, 6), (6, 1))]
    u = lambda p: lambda x: (jnp.tanh(jnp.tanh(x @ p[0]) @ p[1]) @ p[2])[0]
    problem = pb.Composite(
        lambda p, x: jax.vmap(lambda x: one(u(p), x))(x), lambda r: jnp.sum(r**2)
    )
    plan = find(pb.pullback(problem, params, (jnp.ones((4, d)),)).whitened)
    assert plan is not None and not plan.free
    return [group.positions for group in sorted((*plan.factors, *plan.products))]


def test_derivatives_of_one_residual_share_the_pass():
    """The middle layer: value, d first derivatives, Laplacian, whoever asks for them."""
    assert positions(pde.laplacian)[1] == 5
    assert positions(lambda u, x: pde.laplacian(u, x) + u(x))[1] == 5
    assert positions(lambda u, x: pde.partial(u, x, 0) - pde.laplacian(u, x, [1, 2]) * u(x))[1] == 5
    assert positions(lambda u, x: jnp.sum(pde.jet(u, x).gradient) + pde.jet(u, x).laplacian)[1] == 5
    assert positions(lambda u, x: u(x) * pde.partial(u, x, 1) + pde.second(u, x, x[::-1]))[1] == 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda u: pde.laplacian(u, X[None]), r"one point.*shape \(d,\).*jax.vmap"),
        (lambda u: pde.gradient(u, 1.0), r"one point.*x\[None\]"),
        (lambda u: pde.jet(u, jnp.arange(3)), "a floating array"),
        (lambda u: pde.laplacian(u, X, [3]), r"axes must be different coordinates.*u, x, \[0\]"),
        (lambda u: pde.laplacian(u, X, [0, 0]), "different coordinates"),
        (lambda u: pde.laplacian(u, X, [0, -3]), "different coordinates"),
        (lambda u: pde.laplacian(u, X, 1), "different coordinates"),
        (lambda u: pde.partial(u, X, 3), r"partial\(axis=3\): axis must be one of the 3"),
        (lambda u: pde.partial(u, X, 0.5), "axis must be one of the 3"),
        (lambda u: pde.second(u, X, 1), r"direction of shape \(3,\)"),
        (lambda u: pde.hessian_vector(u, X, X[:2]), r"direction of shape \(3,\)"),
        (lambda u: pde.divergence(u, X), r"shape \(3,\) of the point, not \(\)"),
    ],
)
def test_wrong_arguments_are_explained(call, words):
    with pytest.raises(ValueError, match=words):
        call(lambda x: jnp.sum(x**2))


@jax.custom_jvp
def unevenly(x):
    """A function of entries whose derivative rule mixes them."""
    return jnp.tanh(x)


@unevenly.defjvp
def _(primals, tangents):
    return jnp.tanh(primals[0]), jnp.roll(tangents[0], 1) * jnp.linalg.norm(primals[0])


def test_a_rule_of_its_own_that_mixes_entries():
    w, x = normal(3, 4, seed=21), normal(3, seed=22)
    u = lambda x: jnp.sum(jnp.sin(unevenly(x @ w)))
    np.testing.assert_allclose(pb.pde.gradient(u, x), jax.jacfwd(u)(x), rtol=1e-13)
    # By the chain rule, with the derivatives that the rule gives.
    y = np.asarray(x @ w)
    size, image, total = np.linalg.norm(y), np.tanh(y), 0.0
    for row in np.asarray(w):
        first = np.roll(row, 1) * size
        second = np.roll(row, 1) * (y @ row) / size
        total += np.sum(np.cos(image) * second - np.sin(image) * first**2)
    np.testing.assert_allclose(pb.pde.laplacian(u, x), total, rtol=1e-12)
