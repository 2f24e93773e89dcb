"""`python -m bench.rules [--steps N]`: which step rule to take if nothing is said.

Every rule makes the same number of steps from the same start on the same batches. What counts is
the loss at the end, on all samples; the highest loss on the way tells of a rule that diverged. All
models but the first four lines of a table are those of the examples, in small.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import pullback as pb

RULES: dict[str, pb.step.AbstractStep] = {
    "Fixed(1.0)": pb.step.Fixed(1.0),
    "LineSearch()": pb.step.LineSearch(),
    "LevenbergMarquardt()": pb.step.LevenbergMarquardt(),
}


class Case(NamedTuple):
    """A problem, where it starts, all samples, and the size of a batch (0: all of them)."""

    problem: pb.Composite
    params: Any
    batch: Any
    size: int = 0


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _dense(widths: tuple[int, ...]) -> list[tuple[jax.Array, jax.Array]]:
    pairs = itertools.pairwise(widths)
    return [(_normal(i, a, b) / a**0.5, jnp.zeros(b)) for i, (a, b) in enumerate(pairs)]


def _network(params: Any, x: jax.Array) -> jax.Array:
    for weight, bias in params[:-1]:
        x = jnp.tanh(x @ weight + bias[None])
    return x @ params[-1][0] + params[-1][1][None]


def _half_square(z: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum((z - y) ** 2, axis=tuple(range(1, z.ndim)))


def curve() -> Case:
    """A curve through 20 points, 481 parameters."""
    x = jnp.linspace(-1.0, 1.0, 20)[:, None]
    return Case(pb.Composite(_network, _half_square), _dense((1, 20, 20, 1)), (x, jnp.sin(5 * x)))


def exponentials() -> Case:
    """A sum of two exponentials with noise."""
    t = jnp.linspace(0.0, 4.0, 40)
    model = lambda p, t: p[0] * jnp.exp(-p[1] * t) + p[2] * jnp.exp(-p[3] * t)
    y = model(jnp.asarray([3.0, 0.4, 5.0, 2.5]), t) + 0.01 * _normal(0, 40)
    return Case(pb.Composite(model, _half_square), jnp.asarray([1.0, 0.1, 1.0, 1.0]), (t, y))


def logistic() -> Case:
    """Logistic regression."""
    x = _normal(1, 200, 10)
    y = (x[:, 0] + 0.5 * x[:, 1] + _normal(2, 200) > 0).astype(float)
    return Case(
        pb.Composite(lambda p, x: x @ p, metric=pb.metric.Bernoulli()), _normal(3, 10), (x, y)
    )


def poisson() -> Case:
    """Poisson regression."""
    x = _normal(4, 200, 5)
    rate = jnp.exp(x @ jnp.asarray([0.5, -0.5, 0.3, 0.0, 1.0]))
    y = jax.random.poisson(jax.random.key(5), rate).astype(float)
    model = lambda p, x: x @ p
    return Case(pb.Composite(model, metric=pb.metric.Poisson()), 2 * _normal(6, 5), (x, y))


def equation() -> Case:
    """u'' = -π² sin(πx) on (0, 1) with zero at both ends."""
    x = jnp.linspace(0.0, 1.0, 60)

    def value(params, x):
        return x * (1 - x) * _network(params, x[None, None])[0, 0]

    second = jax.grad(jax.grad(value, 1), 1)
    model = lambda p, x: jax.vmap(second, (None, 0))(p, x) + jnp.pi**2 * jnp.sin(jnp.pi * x)
    problem = pb.Composite(model, lambda z: 0.5 * z**2)
    return Case(problem, _dense((1, 16, 16, 1)), (x,))


def _digits() -> tuple[jax.Array, jax.Array]:
    found: Any = load_digits()
    return jnp.asarray(found.data / 16), jnp.asarray(found.target)


def classifier() -> Case:
    """Digits, 64-16-10, all 600 of them."""
    x, y = _digits()
    problem = pb.Composite(_network, metric=pb.metric.Categorical())
    return Case(problem, _dense((64, 16, 10)), (x[:600], y[:600]))


def minibatches() -> Case:
    """The same with batches of 100."""
    return classifier()._replace(size=100)


CASES: dict[str, Callable[[], Case]] = {
    function.__name__: function
    for function in (
        curve, exponentials, logistic, poisson, equation, classifier, minibatches
    )
}  # fmt: skip


def run(case: Case, rule: pb.step.AbstractStep, steps: int) -> tuple[float, float, float]:
    """Return the loss at the end and the highest one on all samples, and the CPU seconds."""
    opt = pb.NaturalGradientDescent(case.problem, step=rule)
    batches = pb.minibatches(case.batch, case.size) if case.size else case.batch
    every = max(1, steps // 20)
    loss = jax.jit(lambda params: opt.loss(params, case.batch))
    options = {"evaluate": lambda p: {"whole": loss(p)}, "every": every, "progress": False}
    fit = pb.fit(opt, case.params, batches, steps, throw=False, **options)
    looked = fit.history["whole"]
    seen = looked[~np.isnan(looked)] if np.isfinite(looked).any() else np.asarray([np.nan])
    return float(seen[-1]), float(np.max(seen)), fit.seconds


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.rules", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="default: all")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"loss after {given.steps} steps (highest loss seen; seconds, compiling included)\n")
    print("| problem | " + " | ".join(RULES) + " |")
    print("|---" * (1 + len(RULES)) + "|")
    for name in given.cases or CASES:
        cells = []
        for rule in RULES.values():
            last, highest, seconds = run(CASES[name](), rule, given.steps)
            cells.append(f"{last:.2e} ({highest:.1e}; {seconds:.0f} s)")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
