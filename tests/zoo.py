"""Models for the structure walk: `ZOO[name]() -> Animal`, each on samples of inputs, each with the
leaves that must be left to automatic differentiation. A leaf is named by its place among the
floating leaves of the parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
from registry_metrics import Registry

import pullback as pb


class Animal(NamedTuple):
    model: Callable
    params: Any
    inputs: Any
    free: frozenset[int] = frozenset()
    """The leaves for which automatic differentiation gives the rows."""


N = 5


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [
        jnp.asarray(rng.standard_normal(shape) / max(1, np.sqrt(shape[0] if shape else 1)))
        for shape in shapes
    ]


def inputs(*shape):
    return jnp.asarray(np.random.default_rng(1).standard_normal((N, *shape)))


ZOO: dict[str, Callable[[], Animal]] = Registry()


def animal(name, *shapes, x=(4,), free=()):
    """Register `model(params, x)` of a batch, with parameters of these shapes."""

    def register(model):
        ZOO[name] = lambda: Animal(model, arrays(*shapes), inputs(*x), frozenset(free))
        return model

    return register


def one(name, *shapes, x=(4,), free=()):
    """The same for a model of one sample."""

    def register(model):
        ZOO[name] = lambda: Animal(
            jax.vmap(model, (None, 0)), arrays(*shapes), inputs(*x), frozenset(free)
        )
        return model

    return register


def sum_of_outputs(z, *_):
    """A loss for outputs of any structure."""
    return sum(jnp.sum(x) for x in jax.tree.leaves(z))


def small(damping=1e-2):
    """A classifier of 20 samples with 48 parameters, and a damped inverse."""
    rng = np.random.default_rng(3)
    params = [jnp.asarray(rng.standard_normal(shape)) for shape in ((4, 6), (6,), (6, 3))]
    x, y = jnp.asarray(rng.standard_normal((20, 4))), jnp.arange(20) % 3
    problem = pb.Composite(
        lambda p, x: jnp.tanh(x @ p[0] + p[1]) @ p[2], metric=pb.metric.Categorical()
    )
    return problem, params, (x, y), pb.Tikhonov(damping)


@animal("dense", (4, 6), (6,), (6, 3), (3,))
def dense(p, x):
    return jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3]


@one("dense of one sample, other layout", (6, 4), (6,), (3, 6), (3,))
def other_layout(p, x):
    return p[2] @ jnp.tanh(p[0] @ x + p[1]) + p[3]


@animal("random features of a typed key", (3, 6), (6, 3))
def keyed(p, x, key=jax.random.key(5)):  # noqa: B008 (a constant)
    return jax.nn.relu(jnp.sin(x @ jax.random.normal(key, (4, 3))) @ p[0]) @ p[1]


@animal("no bias", (4, 6), (6, 3))
def no_bias(p, x):
    return jax.nn.relu(x @ p[0]) @ p[1]


@animal("inner jit and relu", (4, 6), (6,), (6, 3), (3,))
def inner_jit(p, x):
    hidden = jax.jit(lambda w, b, x: jax.nn.relu(x @ w + b))(p[0], p[1], x)
    return jax.jit(lambda h, w, b: h @ w + b)(hidden, p[2], p[3])


@animal("nested jit", (4, 6), (6, 3))
def nested_jit(p, x):
    inner = jax.jit(lambda w, x: jnp.sin(x @ w))
    return jax.jit(lambda p, x: inner(p[1], inner(p[0], x)))(p, x)


@animal("batch in the middle", (4, 6), (6, 3))
def batch_in_the_middle(p, x):
    hidden = jnp.einsum("ab,na->bn", p[0], x)  # [6, n]
    return jnp.einsum("bn,bc->nc", jnp.tanh(hidden), p[1])


@animal("scaled weights", (4, 6), (6, 3), free=(0, 1))
def scaled(p, x):
    return jnp.tanh(x @ (p[0] / 2.0)) @ (0.3 * p[1])


@animal("tied with its transpose", (4, 6), free=(0,))
def tied_transpose(p, x):
    return jnp.tanh(x @ p[0]) @ p[0].T


@animal("double use", (4, 4))
def double_use(p, x):
    return jnp.tanh(jnp.tanh(x @ p[0]) @ p[0])


@animal("product of a weight with itself", (4, 4), free=(0,))
def square(p, x):
    return x @ (p[0] @ p[0])


@animal("deep linear, weights first", (4, 5), (5, 6), (6, 3))
def deep_linear(p, x):
    return x @ (p[0] @ p[1] @ p[2])


@animal("exponential weight", (4, 6), (6, 3), free=(0,))
def exponential(p, x):
    return jnp.tanh(x @ jnp.exp(p[0])) @ p[1]


@animal("unused leaf", (4, 3), (7, 2), free=(1,))
def unused(p, x):
    return jnp.tanh(x @ p[0])


@animal("leaf without entries", (4, 3), (0, 3), free=(1,))
def empty(p, x):
    return jnp.tanh(x @ jnp.concatenate([p[0]])) + jnp.sum(p[1])


@animal("leaf is an output", (4, 3), (3,), free=(1,))
def output_leaf(p, x):
    return {"z": x @ p[0], "c": jnp.broadcast_to(p[1], (x.shape[0], 3))}


@animal("residual with a skipped product", (4, 4), (4,), free=(1,))
def residual(p, x):
    product = x @ p[0]  # used twice: the bias cannot be folded in
    return jnp.tanh(product + p[1]) + product


@animal("bias twice", (4, 4), (4, 4), (4,), free=(2,))
def bias_twice(p, x):
    return jnp.tanh(x @ p[0] + p[2]) @ p[1] + p[2]


@animal("layer norm", (4, 6), (6,), (6,), (6, 3), free=(1, 2))
def layer_norm(p, x):
    h = x @ p[0]
    h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-6)
    return (h * p[1] + p[2]) @ p[3]


@animal("sequence", (4, 6), (6,), (6, 3), x=(3, 4), free=(1,))
def sequence(p, x):
    return jnp.tanh(x @ p[0] + p[1]).mean(1) @ p[2]


@animal("long sequence", (4, 3), (3, 2), x=(20, 4))
def long_sequence(p, x):
    return jnp.tanh(jnp.tanh(x @ p[0]) @ p[1]).sum(1)


@one("attention", (4, 6), (4, 6), (4, 6), (6, 3), x=(5, 4))
def attention(p, x):
    q, k, v = x @ p[0], x @ p[1], x @ p[2]
    return (jax.nn.softmax(q @ k.T / 2.0) @ v @ p[3]).mean(0)


@one("heads in one weight", (3, 4, 2, 3), (2, 3, 4), x=(5, 4), free=(0,))
def heads(p, x):
    q, k, v = (jnp.einsum("td,dhk->htk", x, p[0][i]) for i in range(3))
    scores = jax.nn.softmax(jnp.einsum("htk,hsk->hts", q, k))
    return jnp.einsum("hts,hsk,hkd->d", scores, v, p[1])


@one("weights in blocks", (3, 4, 2), x=(3, 4))
def in_blocks(p, x):
    return jnp.tanh(jnp.einsum("bi,bio->bo", x, p[0])).sum(0)


@animal("convolution in two dimensions", (3, 3, 2, 4), (4,), (4, 3), x=(6, 6, 2), free=(1,))
def conv_2d(p, x):
    h = jax.lax.conv_general_dilated(
        x, p[0], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jnp.tanh(h + p[1]).mean((1, 2)) @ p[2]


@animal("convolution in one dimension, dilated", (4, 2, 3), (4, 3), x=(2, 9))
def conv_1d(p, x):
    h = jax.lax.conv_general_dilated(
        x, p[0], (1,), [(1, 2)], rhs_dilation=(2,), dimension_numbers=("NCH", "OIH", "NCH")
    )
    return jnp.tanh(h).mean(2) @ p[1]


@animal("transposed convolution", (3, 3, 4, 2), x=(4, 4, 2))
def conv_transposed(p, x):
    h = jax.lax.conv_general_dilated(
        x,
        p[0],
        (1, 1),
        [(2, 1), (2, 1)],
        lhs_dilation=(2, 2),
        dimension_numbers=("NHWC", "HWOI", "NHWC"),
    )
    return jnp.tanh(h).mean((1, 2))


@animal("grouped convolution", (3, 3, 1, 4), x=(6, 6, 2), free=(0,))
def conv_grouped(p, x):
    h = jax.lax.conv_general_dilated(
        x, p[0], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
    )
    return jnp.tanh(h).mean((1, 2))


def tokens(vocabulary, length):
    return jnp.asarray(np.random.default_rng(2).integers(0, vocabulary, (N, length)))


def embedded(p, x):
    return jnp.tanh(p[0][x].mean(1) @ p[1])


ZOO["embedding"] = lambda: Animal(embedded, arrays((9, 6), (6, 3)), tokens(9, 2))
ZOO["embedding, long sequence"] = lambda: Animal(
    embedded, arrays((9, 6), (6, 3)), tokens(9, 12), frozenset({0})
)
ZOO["embedding by take, out of bounds"] = lambda: Animal(
    lambda p, x: jnp.nan_to_num(
        jnp.tanh(jnp.take(p[0], x + 2, axis=0, mode="fill", fill_value=0.5).mean(1) @ p[1])
    ),
    arrays((9, 6), (6, 3)),
    tokens(9, 2),
)
ZOO["embedding tied with the output"] = lambda: Animal(
    lambda p, x: jnp.tanh(p[0][x].mean(1) @ p[1]) @ p[0].T,
    arrays((9, 6), (6, 6)),
    tokens(9, 2),
    frozenset({0}),
)


@one("recurrent loop", (4, 4), (3, 4), (4,), x=(3, 3), free=(2,))
def recurrent(p, x):
    h = jnp.zeros(4)
    for step in x:
        h = jnp.tanh(h @ p[0] + step @ p[1] + p[2])
    return h


@one("scan over time", (4, 4), (3, 4), (4,), (4, 2), x=(3, 3), free=(2,))
def scan(p, x):
    h, _ = jax.lax.scan(
        lambda h, x: (jnp.tanh(h @ p[0] + (x @ p[1] + p[2])), None), jnp.zeros(4), x, reverse=True
    )
    return h @ p[3]


@one("scan in a scan", (4, 4), (4, 2), x=(2, 3, 4))
def scan_in_scan(p, x):
    def inner(h, x):
        return jnp.tanh(h @ p[0] + x), h.sum()

    def outer(h, x):
        h, s = jax.lax.scan(inner, h, x)
        return h, s

    h, s = jax.lax.scan(outer, jnp.zeros(4), x)
    return h @ p[1] + s.sum()


@one("scan over layers", (3, 4, 4), (4, 2), free=(0,))
def scan_over_layers(p, x):
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, p[0])
    return h @ p[1]


@animal("loop with a counter", (4, 4), (4, 2))
def counted_loop(p, x):
    h = jax.lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ p[0]), x)
    return h @ p[1]


@animal("branches", (4, 3), (4, 3), free=(0, 1))
def branches(p, x):
    return jax.vmap(
        lambda x: jax.lax.cond(x[0] > 0, lambda x: x @ p[0], lambda x: jnp.sin(x @ p[1]), x)
    )(x)


@animal("remat", (4, 6), (6, 3))
def remat(p, x):
    return jax.checkpoint(lambda p, x: jnp.tanh(jnp.tanh(x @ p[0]) @ p[1]))(p, x)


@jax.custom_vjp
def half_gradient(w, x):
    return x @ w


half_gradient.defvjp(
    lambda w, x: (x @ w, (w, x)), lambda saved, c: (0.5 * saved[1].T @ c, c @ saved[0].T)
)


@animal("derivative rule around a weight", (4, 6), (6, 3), free=(0,))
def custom_rule(p, x):
    return jnp.tanh(half_gradient(p[0], x)) @ p[1]


def network(p, x):
    return (jnp.tanh(jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3]) @ p[4])[0]


@one("gradient of a network", (2, 5), (5,), (5, 5), (5,), (5, 1), x=(2,), free=(1, 3))
def gradient(p, x):
    return jax.jvp(lambda x: network(p, x), (x,), (jnp.ones_like(x),))[1]


@one("Laplacian, forward mode", (2, 5), (5,), (5, 5), (5,), (5, 1), x=(2,), free=(1, 3))
def laplacian(p, x):
    def second(v):
        return jax.jvp(lambda x: jax.jvp(lambda x: network(p, x), (x,), (v,))[1], (x,), (v,))[1]

    return sum(second(v) for v in np.eye(2)) + network(p, x)


@one("Laplacian, reverse mode", (2, 5), (5,), (5, 1), x=(2,), free=(0, 1, 2))
def reverse_laplacian(p, x):
    return jnp.trace(jax.hessian(lambda x: (jnp.tanh(x @ p[0] + p[1]) @ p[2])[0])(x))


ZOO["equinox"] = lambda: Animal(
    lambda p, x: jax.vmap(p)(x),
    eqx.nn.MLP(4, 3, 6, 2, key=jax.random.key(0), dtype=float),
    inputs(4),
)


def linen():
    class Net(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            x = flax.linen.relu(flax.linen.Conv(3, (3,), param_dtype=float)(x))
            x = flax.linen.LayerNorm(param_dtype=float)(x)
            return flax.linen.Dense(2, param_dtype=float)(x.reshape(x.shape[0], -1))

    x = inputs(6, 2)
    net = Net()
    return Animal(net.apply, net.init(jax.random.key(0), x), x, frozenset({0, 4, 5}))


ZOO["flax linen"] = linen


def nnx():
    net = flax.nnx.Sequential(
        flax.nnx.Linear(4, 5, rngs=flax.nnx.Rngs(0), param_dtype=float),
        flax.nnx.tanh,
        flax.nnx.Linear(5, 2, rngs=flax.nnx.Rngs(1), param_dtype=float),
    )
    graph, params = flax.nnx.split(net)
    return Animal(lambda p, x: flax.nnx.merge(graph, p)(x), params, inputs(4))


ZOO["flax nnx"] = nnx
