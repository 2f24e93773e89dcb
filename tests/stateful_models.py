"""Models with batch normalisation and dropout in Equinox, Flax linen and NNX.

`MODELS[library, kind]() -> Case`, each a function `(params, state, inputs) -> outputs, state`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from helpers import normal

import pullback as pb

N, WIDTH, RATE = 7, 3, 0.3
KINDS = ("norm", "dropout", "both")
X = normal(N, 2, seed=1)
Y = jnp.sin(X @ normal(2, 2, seed=2))


class Case(NamedTuple):
    model: Callable
    point: pb.Stateful
    inputs: Any
    coupled: bool

    @property
    def problem(self) -> pb.Composite:
        return pb.Composite(self.model, half_square, coupled=self.coupled, stateful=True)


def half_square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def keyed(seed=3):
    return {"x": X, "key": jax.random.split(jax.random.key(seed), N)}


def in_double(tree):
    """Flax makes running statistics in float32."""
    return jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, tree)


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm | None
    dropout: eqx.nn.Dropout | None
    last: eqx.nn.Linear

    def __init__(self, kind, key):
        one, two = jax.random.split(key)
        self.first = eqx.nn.Linear(2, WIDTH, key=one)
        self.norm = None if kind == "dropout" else eqx.nn.BatchNorm(WIDTH, "batch", mode="batch")
        self.dropout = None if kind == "norm" else eqx.nn.Dropout(RATE)
        self.last = eqx.nn.Linear(WIDTH, 2, key=two)

    def __call__(self, x, key, state):
        h = self.first(x)
        if self.norm is not None:
            h, state = self.norm(h, state)
        h = jnp.tanh(h)
        if self.dropout is not None:
            h = self.dropout(h, key=key)
        return self.last(h), state


def equinox(kind):
    net, state = eqx.nn.make_with_state(EquinoxNet)(kind, jax.random.key(0))
    if kind == "dropout":
        state = {"seen": jnp.asarray(0)}

    def model(net, state, inputs):
        # Equinox adds Python integers to floating arrays.
        with jax.numpy_dtype_promotion("standard"):
            over = jax.vmap(net, (0, 0, None), (0, None), axis_name="batch")
            z, state = over(inputs["x"], inputs["key"], state)
        return z, {"seen": state["seen"] + 1} if kind == "dropout" else state

    return Case(model, pb.Stateful(net, state), keyed(), kind != "dropout")


class LinenNet(nn.Module):
    kind: str

    @nn.compact
    def __call__(self, x):
        h = nn.Dense(WIDTH, param_dtype=float)(x)
        if self.kind != "dropout":
            h = nn.BatchNorm(use_running_average=False, momentum=0.9, param_dtype=float)(h)
        h = nn.tanh(h)
        if self.kind != "norm":
            h = nn.Dropout(RATE, deterministic=False)(h)
        return nn.Dense(2, param_dtype=float)(h)


def linen(kind):
    net = LinenNet(kind)
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    # Flax is not written for strict promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        state = dict(net.init(keys, X))
    params = state.pop("params")

    def apply(params, state, x, key):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            variables = {"params": params, **state}
            return net.apply(variables, x, rngs={"dropout": key}, mutable=["batch_stats"])

    def model(params, state, inputs):
        if kind == "dropout":
            one = lambda x, key: apply(params, {}, x, key)[0]
            return jax.vmap(one)(inputs["x"], inputs["key"]), state
        z, new = apply(params, state, inputs["x"], inputs["key"][0])
        return z, new

    return Case(model, pb.Stateful(params, in_double(state)), keyed(), kind != "dropout")


class NnxNet(nnx.Module):
    def __init__(self, kind, rngs):
        self.first = nnx.Linear(2, WIDTH, param_dtype=float, rngs=rngs)
        norm = nnx.BatchNorm(WIDTH, momentum=0.9, param_dtype=float, rngs=rngs)
        self.norm = None if kind == "dropout" else norm
        self.dropout = None if kind == "norm" else nnx.Dropout(RATE, rngs=rngs)
        self.last = nnx.Linear(WIDTH, 2, param_dtype=float, rngs=rngs)

    def __call__(self, x):
        h = self.first(x)
        h = jnp.tanh(h if self.norm is None else self.norm(h))
        return self.last(h if self.dropout is None else self.dropout(h))


def nnx_net(kind):
    """The masks come from the state of NNX here: one stream for the batch, so `coupled`."""
    net = NnxNet(kind, nnx.Rngs(0, dropout=1))
    graph, params, state = nnx.split(net, nnx.Param, ...)

    def model(params, state, x):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            net = nnx.merge(graph, params, state)
            return net(x), nnx.split(net, nnx.Param, ...)[2]

    return Case(model, pb.Stateful(params, in_double(state)), X, True)


LIBRARIES = {"equinox": equinox, "linen": linen, "nnx": nnx_net}
MODELS = [(library, kind) for library in LIBRARIES for kind in KINDS]


def case(library: str, kind: str) -> Case:
    return LIBRARIES[library](kind)
