"""Regression on the diabetes data against Adam, L-BFGS and Optimistix at equal wall-clock time, and
weight decay as a penalty.

`python examples/diabetes.py [--quick] [PICTURE]` saves the picture (pictures/diabetes.png).
"""

import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optimistix as optx
from _pictures import picture_path
from _race import picture, race, with_optax
from sklearn.datasets import load_diabetes

import pullback as pb

jax.config.update("jax_enable_x64", True)
SECONDS = 1.0 if "--quick" in sys.argv else 10.0
x, y = (jnp.asarray(a) for a in load_diabetes(return_X_y=True))
x, y = x / x.std(0), ((y - y.mean()) / y.std())[:, None]


def mlp(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"] + p["c"][None]


residuals = lambda p, _=None: (mlp(p, x) - y).ravel()
loss = lambda p: jnp.mean(residuals(p) ** 2) / 2


def optimistix(params):
    """Runs to 1, 2, 4, ... steps, each time from the start, while the time lasts."""
    solver = optx.LevenbergMarquardt(1e-12, 1e-12)
    solve = lambda p, n: optx.least_squares(residuals, solver, p, max_steps=n, throw=False).value
    run = eqx.filter_jit(solve)
    found = [(0.0, float(loss(params)))]
    while found[-1][0] < SECONDS and len(found) <= 13:
        steps = 2 ** (len(found) - 1)
        run(params, steps)  # compiles
        began = time.monotonic()
        value = float(loss(run(params, steps)))
        found.append((time.monotonic() - began, value))
    return [point for point in found if point[0] <= SECONDS]


def main():
    keys = zip(jax.random.split(jax.random.key(0)), ((10, 8), (8, 1)), strict=True)
    w, v = (jax.random.normal(key, shape) / 3 for key, shape in keys)
    params = {"w": w, "b": jnp.zeros(8), "v": v, "c": jnp.zeros(1)}
    problem = pb.Composite(mlp, lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.Geodesic(pb.step.LevenbergMarquardt()))

    @jax.jit
    def ours(carry):
        new, state, record = opt.step(*carry, (x, y))
        return (new, state), record.loss

    start = (params, opt.init(params))
    runs = {"natural gradient, geodesic Levenberg-Marquardt": race(ours, start, SECONDS)}
    for name, tx in {"Adam, 0.01": optax.adam(1e-2), "L-BFGS": optax.lbfgs()}.items():
        runs[name] = race(*with_optax(tx, loss, params), SECONDS)
    runs["Optimistix Levenberg-Marquardt"] = optimistix(params)
    for name, run in runs.items():
        print(f"{name:48s} loss {run[-1][1]:.6f} in {run[-1][0]:.1f} s")
    for rule in (pb.step.LineSearch(), pb.step.LevenbergMarquardt()):
        decay = lambda p: 0.05 * optax.tree.norm(p, squared=True)
        decayed = pb.NaturalGradientDescent(problem, step=rule, penalty=decay)
        inside = pb.fit(decayed, params, (x, y), 20).history["range_share"][-1]
        name = type(rule).__name__
        print(f"weight decay, {name}: fraction of the gradient in the range {inside:.4f}")
    limits = {"xscale": "log", "xlim": (1e-2, None), "ylim": (None, 0.5)}
    picture(runs, picture_path("diabetes.png"), "diabetes, 442 samples, 97 parameters", **limits)


if __name__ == "__main__":
    main()
