"""Regression on the diabetes data against Adam, L-BFGS and Optimistix at equal wall-clock, and
weight decay as a penalty.

`python examples/diabetes.py [--quick] [PICTURE]` saves the picture (diabetes.png).
"""

import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optimistix as optx
from _race import picture, race, with_optax
from sklearn.datasets import load_diabetes

import pullback as pb

jax.config.update("jax_enable_x64", True)
SECONDS = 1.0 if "--quick" in sys.argv else 10.0
PICTURE = next((word for word in sys.argv[1:] if not word.startswith("-")), "diabetes.png")
x, y = (jnp.asarray(a) for a in load_diabetes(return_X_y=True))
x, y = x / x.std(0), ((y - y.mean()) / y.std())[:, None]


def mlp(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"] + p["c"][None]


def residuals(p, _=None):
    return (mlp(p, x) - y).ravel()


def loss(p):
    return jnp.mean(residuals(p) ** 2) / 2


def optimistix(params):
    """Its solver has no loop of ours: it is run to 1, 2, 4, ... steps, each time from the start,
    while the time lasts.
    """
    solver, found, steps = optx.LevenbergMarquardt(1e-12, 1e-12), [(0.0, float(loss(params)))], 1
    while found[-1][0] < SECONDS and steps <= 4096:
        solve = eqx.filter_jit(
            lambda p, steps=steps: (
                optx.least_squares(
                    lambda p, _: (mlp(p, x) - y).ravel(), solver, p, max_steps=steps, throw=False
                ).value
            )
        )
        solve(params)  # compiles
        began = time.monotonic()
        value = float(loss(solve(params)))
        found, steps = [*found, (time.monotonic() - began, value)], 2 * steps
    return [point for point in found if point[0] <= SECONDS]


def main():
    keys = jax.random.split(jax.random.key(0))
    draw = lambda key, *shape: jax.random.normal(key, shape) / 3
    params = {
        "w": draw(keys[0], 10, 8),
        "b": jnp.zeros(8),
        "v": draw(keys[1], 8, 1),
        "c": jnp.zeros(1),
    }
    problem = pb.Composite(mlp, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.Geodesic(pb.step.LevenbergMarquardt()))

    @jax.jit
    def ours(carry):
        new, state, record = opt.step(*carry, (x, y))
        return (new, state), record.loss

    runs = {
        "natural gradient, geodesic Levenberg-Marquardt": race(
            ours, (params, opt.init(params)), SECONDS
        )
    }
    for name, tx in {"Adam, 0.01": optax.adam(1e-2), "L-BFGS": optax.lbfgs()}.items():
        runs[name] = race(*with_optax(tx, loss, params), SECONDS)
    runs["Optimistix Levenberg-Marquardt"] = optimistix(params)
    for name, run in runs.items():
        print(f"{name:48s} loss {run[-1][1]:.6f} in {run[-1][0]:.1f} s")
    for rule in (pb.step.LineSearch(), pb.step.LevenbergMarquardt()):
        decay = lambda p: 0.05 * optax.tree.norm(p, squared=True)
        fit = pb.fit(
            pb.NaturalGradientDescent(problem, step=rule, penalty=decay), params, (x, y), 20
        )
        print(
            f"weight decay, {type(rule).__name__}: fraction of the gradient in the range "
            f"{fit.history['range_share'][-1]:.4f}"
        )
    picture(
        runs,
        PICTURE,
        "diabetes, 442 samples, 97 parameters",
        xscale="log",
        xlim=(1e-2, None),
        ylim=(None, 0.5),
    )


if __name__ == "__main__":
    main()
