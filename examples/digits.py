"""Handwritten digits: a network trained until it saturates, and a convolutional one on minibatches
with two Fisher metrics.

`python examples/digits.py [--quick] [PICTURE]` compares with Adam and Optax's L-BFGS at equal
wall-clock time, and saves the picture (pictures/digits.png).
"""

import sys
import time

import jax
import jax.numpy as jnp
import optax
from _pictures import picture_path
from _race import picture, race, with_optax
from sklearn.datasets import load_digits

import pullback as pb

jax.config.update("jax_enable_x64", True)
QUICK = "--quick" in sys.argv
WIDTH, COUNT, STEPS = (8, 30, 5) if QUICK else (16, 100, 60)
ROUNDING = 1e-16  # of the loss: nothing is left to learn
images, labels = (jnp.asarray(a) for a in load_digits(return_X_y=True))
images = images / 16


def mlp(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"] + p["c"][None]


def conv(p, x):
    x = jax.lax.conv_general_dilated(x.reshape(-1, 1, 8, 8), p["k"], (2, 2), "SAME")
    return jnp.tanh(x).reshape(x.shape[0], -1) @ p["v"] + p["c"][None]


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape) / shape[0] ** 0.5


def main():
    weights = {"w": normal(0, 64, WIDTH), "b": jnp.zeros(WIDTH)}
    params = weights | {"v": normal(1, WIDTH, 10), "c": jnp.zeros(10)}
    batch = (images[:COUNT], labels[:COUNT])
    problem = pb.Composite(mlp, metric=pb.metric.Categorical())
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    pb.fit(opt, params, batch, 1)  # compiles
    began = time.monotonic()
    clock = []

    def note(report):
        clock.extend([time.monotonic() - began] * len(report.rows))
        return report.rows["loss_after"][-1] < ROUNDING

    fit = pb.fit(opt, params, batch, 59, callback=note)
    ours = list(zip(clock, fit.history["loss_after"], strict=True))
    runs = {"natural gradient, Levenberg-Marquardt": ours}
    entropy = optax.softmax_cross_entropy_with_integer_labels
    loss = lambda p: entropy(mlp(p, batch[0]), batch[1]).mean()
    for name, tx in {"Adam, 0.01": optax.adam(1e-2), "L-BFGS": optax.lbfgs()}.items():
        runs[name] = race(*with_optax(tx, loss, params), fit.seconds, ROUNDING)
    print(f"{COUNT} digits, {sum(x.size for x in params.values())} parameters")
    for name, run in runs.items():
        lowest, steps = min(v for _, v in run), f"{len(run)} steps in {run[-1][0]:.1f} s"
        print(f"  {name:40s} lowest loss {lowest:.1e}, last {run[-1][1]:.1e}, {steps}")
    small = {"k": normal(2, 8, 1, 3, 3), "v": normal(3, 128, 10), "c": jnp.zeros(10)}
    convolutional = pb.Composite(conv, metric=pb.metric.Categorical())
    for name, inputs in (("train Fisher", None), ("population Fisher", (images[1000:1032],))):
        rule = pb.step.LevenbergMarquardt(1.0)
        other = pb.NaturalGradientDescent(convolutional, step=rule, metric_batch=inputs)
        end = pb.fit(other, small, pb.minibatches((images[:1000], labels[:1000]), 32), STEPS).params
        right = float(jnp.mean(conv(end, images[1000:]).argmax(1) == labels[1000:]))
        print(f"  convolutional, {STEPS} batches of 32, {name:18s} {right:.1%} of the others right")
    if not (jnp.isfinite(fit.params["w"]).all() and fit.history["loss_after"][-1] < 1e-8):
        raise SystemExit("The loss should be below 1e-8.")
    picture(runs, picture_path("digits.png"), f"{COUNT} digits, to saturation", yscale="log")


if __name__ == "__main__":
    main()
