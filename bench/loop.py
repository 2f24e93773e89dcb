"""`python -m bench.loop [mlp ...] [--rounds N]`: `fit` against a Python loop of `opt.step`.

Both make the same steps, compiled before, one after the other in every round. What counts is the
CPU time of the process, and of that the median ratio over the rounds; the ratio of the times on the
clock is printed beside it, for what runs on several threads.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import pullback as pb

MOST = 1.05
"""How much longer `fit` may take."""


class Case(NamedTuple):
    """An optimiser, where it starts, its batch, and how many steps to make."""

    opt: pb.NaturalGradientDescent
    params: Any
    batch: Any
    steps: int


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


def _dense(widths: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    pairs = itertools.pairwise(widths)
    return [(_normal(i, a, b) / a**0.5, jnp.zeros(b)) for i, (a, b) in enumerate(pairs)]


def _mlp(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ layers[-1][0] + layers[-1][1]


def _opt(problem: pb.Composite) -> pb.NaturalGradientDescent:
    return pb.NaturalGradientDescent(problem, pb.Tikhonov(1e-2), step=0.1)


def _labels(count: int) -> jax.Array:
    return jnp.arange(count) % 10


def mlp() -> Case:
    """A softmax network, 20-32-32-10, on 64 samples."""
    problem = pb.Composite(_mlp, metric=pb.metric.Categorical())
    return Case(_opt(problem), _dense((20, 32, 32, 10)), (_normal(9, 64, 20), _labels(64)), 60)


def wide() -> Case:
    """A softmax network, 64-256-256-10, on 128 samples."""
    problem = pb.Composite(_mlp, metric=pb.metric.Categorical())
    return Case(_opt(problem), _dense((64, 256, 256, 10)), (_normal(9, 128, 64), _labels(128)), 10)


def cnn() -> Case:
    """Two convolutions of 8 channels and a dense layer, on 32 pictures of 8 by 8."""

    def model(params, x):
        for w in params["conv"]:
            x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
            x = jax.nn.relu(x)
        return x.reshape(x.shape[0], -1) @ params["out"]

    params = {
        "conv": [_normal(1, 8, 1, 3, 3) / 3, _normal(2, 8, 8, 3, 3) / 9],
        "out": _normal(3, 512, 10) / 23,
    }
    problem = pb.Composite(model, metric=pb.metric.Categorical())
    return Case(_opt(problem), params, (_normal(9, 32, 1, 8, 8), _labels(32)), 20)


def pinn() -> Case:
    """A Laplace equation with a network 2-32-32-1, on 200 points."""

    def residual(layers, x):
        u = lambda x: _mlp(layers, x)[0]
        return jax.vmap(lambda x: jnp.trace(jax.hessian(u)(x)))(x)

    problem = pb.Composite(residual, lambda z, y: (z - y) ** 2 / 2)
    batch = (_normal(9, 200, 2), _normal(8, 200))
    return Case(_opt(problem), _dense((2, 32, 32, 1)), batch, 30)


def scan() -> Case:
    """A recurrent network of 16 units over 20 times, on 64 sequences."""

    def model(params, x):
        def one(h, now):
            return jnp.tanh(h @ params["h"] + now @ params["x"]), None

        last, _ = jax.lax.scan(one, jnp.zeros((x.shape[0], 16)), jnp.swapaxes(x, 0, 1))
        return (last @ params["out"])[:, 0]

    params = {"h": _normal(1, 16, 16) / 4, "x": _normal(2, 3, 16), "out": _normal(3, 16, 1) / 4}
    problem = pb.Composite(model, lambda z, y: (z - y) ** 2 / 2)
    return Case(_opt(problem), params, (_normal(9, 64, 20, 3), _normal(8, 64)), 60)


CASES: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "wide": wide,
    "cnn": cnn,
    "pinn": pinn,
    "scan": scan,
}


def fitted(case: Case) -> Any:
    """Make the steps with `fit`."""
    return pb.fit(case.opt, case.params, case.batch, case.steps, progress=False, until=()).params


def looped(case: Case) -> Any:
    """Make the steps in Python."""
    params, state = case.params, case.opt.init(case.params)
    for _ in range(case.steps):
        params, state, _ = case.opt.step(params, state, case.batch)
    return jax.block_until_ready(params)


def seconds(run: Callable[[Case], Any], case: Case) -> tuple[float, float]:
    """The time of a step: of the CPU, and on the clock."""
    start = time.process_time(), time.perf_counter()
    run(case)
    end = time.process_time(), time.perf_counter()
    return (end[0] - start[0]) / case.steps, (end[1] - start[1]) / case.steps


def compare(case: Case, rounds: int) -> tuple[float, float, float, float]:
    """The CPU time of a step in `fit` and in a Python loop, their ratio, and that on the clock."""
    for run in (fitted, looped):
        run(case)
    pairs = [(seconds(fitted, case), seconds(looped, case)) for _ in range(rounds)]
    ours, theirs = (statistics.median(x[0] for x in column) for column in zip(*pairs, strict=True))
    cpu, clock = (statistics.median(a[k] / b[k] for a, b in pairs) for k in (0, 1))
    return ours, theirs, cpu, clock


def main() -> int:
    """Print the comparison; 1 if `fit` takes too long somewhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    late = False
    print(f"{'model':8}{'fit, ms/step':>14}{'loop, ms/step':>15}{'ratio':>8}{'on the clock':>14}")
    for name in options.names:
        ours, theirs, ratio, clock = compare(CASES[name](), options.rounds)
        print(
            f"{name:8}{1e3 * ours:14.2f}{1e3 * theirs:15.2f}{ratio:8.2f}{clock:14.2f}", flush=True
        )
        late |= ratio > MOST
    return int(late)


if __name__ == "__main__":
    raise SystemExit(main())
