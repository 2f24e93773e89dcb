"""A run that is saved after every step, made to be killed: `python resumable.py FOLDER RESULT
STEPS` writes the final parameters to RESULT.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb

jax.config.update("jax_enable_x64", True)


def main(folder, result, steps):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((32, 3)))
    batch = (x, jnp.sin(x).sum(1, keepdims=True))
    problem = pb.Composite(
        lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], lambda z, y: jnp.sum((z - y) ** 2, 1) / 2
    )
    params = {
        "w": jnp.asarray(np.random.default_rng(1).standard_normal((3, 8))),
        "v": jnp.full((8, 1), 0.1),
    }
    opt = pb.NaturalGradientDescent(
        problem, step=pb.step.LevenbergMarquardt(), momentum=pb.Spring(0.5)
    )
    saving = None if folder == "none" else pb.Checkpoints(folder, every_steps=1)
    print("ready", flush=True)
    fit = pb.fit(
        opt,
        params,
        pb.minibatches(batch, 8),
        int(steps),
        key=3,
        checkpoint=saving,
        telemetry=None if folder == "none" else f"{folder.rstrip('/')}.jsonl",
        callback=lambda r: print(r.step, flush=True),
    )
    np.savez(result, **fit.params, loss=fit.history["loss"], previous=fit.state.previous)


if __name__ == "__main__":
    main(*sys.argv[1:])
