"""Regression on the diabetes data against Adam, L-BFGS and Optimistix at equal wall-clock, and weight decay as a penalty.

`python examples/diabetes.py [--quick] [PICTURE]` saves the picture (diabetes.png).
"""

import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib
import optax
import optimistix as optx
from sklearn.datasets import load_diabetes

import pullback as pb

matplotlib.use("Agg")
jax.config.update("jax_enable_x64", True)
QUICK = "--quick" in sys.argv
PICTURE = next((word for word in sys.argv[1:] if not word.startswith("-")), "diabetes.png")
x, y = (jnp.asarray(a) for a in load_diabetes(return_X_y=True))
x, y = x / x.std(0), ((y - y.mean()) / y.std())[:, None]


def mlp(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"] + p["c"][None]


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def residuals(p, _):
    return (mlp(p, x) - y).ravel()


def loss(p):
    return jnp.mean(square(mlp(p, x), y))


def timed(step, carry, seconds):
    """The losses of a jitted step within a time, compilation not counted."""
    carry = step(step(carry)[0])[0]
    began, found = time.monotonic(), []
    while (now := time.monotonic() - began) < seconds:
        carry, value = step(carry)
        found.append((now, float(value)))
    return found


def main():
    keys = jax.random.split(jax.random.key(0))
    w, v = jax.random.normal(keys[0], (10, 8)) / 3, jax.random.normal(keys[1], (8, 1)) / 3
    params = {"w": w, "b": jnp.zeros(8), "v": v, "c": jnp.zeros(1)}
    opt = pb.NaturalGradientDescent(pb.Composite(mlp, square), step=pb.step.Geodesic(pb.step.LevenbergMarquardt()))
    seconds = 2.0 if QUICK else 10.0

    def ours(carry):
        new, state, record = opt.step(*carry, (x, y))
        return (new, state), record.loss

    def with_optax(tx):
        def step(carry):
            value, g = jax.value_and_grad(loss)(carry[0])
            updates, state = tx.update(g, carry[1], carry[0], value=value, grad=g, value_fn=loss)
            return (optax.apply_updates(carry[0], updates), state), value

        return jax.jit(step), (params, tx.init(params))

    runs = {"natural gradient, geodesic Levenberg-Marquardt": timed(jax.jit(ours), (params, opt.init(params)), seconds)}
    for name, tx in {"Adam, 0.01": optax.adam(1e-2), "L-BFGS": optax.lbfgs()}.items():
        runs[name] = timed(*with_optax(tx), seconds)
    solver = optx.LevenbergMarquardt(1e-8, 1e-8)
    solve = eqx.filter_jit(lambda p: optx.least_squares(residuals, solver, p, max_steps=2000, throw=False).value)
    solve(params)  # compiles
    began = time.monotonic()
    value = float(loss(solve(params)))
    runs["Optimistix Levenberg-Marquardt, at its end"] = [(time.monotonic() - began, value)]
    for name, run in runs.items():
        print(f"{name:48s} loss {run[-1][1]:.6f} in {run[-1][0]:.1f} s, {len(run)} values")
    rules = {"MoorePenrose, line search": pb.step.LineSearch(), "Levenberg-Marquardt": pb.step.LevenbergMarquardt()}
    for name, rule in rules.items():
        decay = lambda p: 0.05 * optax.tree.norm(p, squared=True)
        fit = pb.fit(pb.NaturalGradientDescent(pb.Composite(mlp, square), step=rule, penalty=decay), params, (x, y), 20)
        value, share = fit.history["loss_after"][-1], fit.history["range_share"][-1]
        print(f"with weight decay, {name:29s} loss {value:.6f}, share of the gradient in the range {share:.4f}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, run in runs.items():
        axes.plot(*zip(*run, strict=True), "o" if len(run) == 1 else "-", label=name)
    axes.set(
        xlabel="seconds", ylabel="training loss", title="diabetes, 442 samples, 97 parameters", xscale="log", xlim=(1e-2, None)
    )
    figure.legend(loc="outside lower center", frameon=False)
    figure.savefig(PICTURE, dpi=150)


if __name__ == "__main__":
    main()
