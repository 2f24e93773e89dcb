"""Real data to saturation, and what the loops cost."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import pullback as pb


def digits(count, width, dtype):
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape) / shape[0] ** 0.5, dtype)
    params = {
        "w": normal(64, width),
        "b": jnp.zeros(width, dtype),
        "v": normal(width, 10),
        "c": jnp.zeros(10, dtype),
    }
    return params, (jnp.asarray(images[:count] / 16, dtype), jnp.asarray(labels[:count]))


def mlp(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"] + p["c"][None]


def saturate(count, width, dtype):
    params, batch = digits(count, width, dtype)
    opt = pb.NaturalGradientDescent(
        pb.Composite(mlp, metric=pb.metric.Categorical()), step=pb.step.LevenbergMarquardt()
    )
    fit = pb.fit(
        opt, params, batch, 59, callback=lambda report: report.rows["loss_after"][-1] < 1e-8
    )
    assert fit.history["loss_after"][-1] < 1e-8 and fit.steps < 60
    assert all(np.isfinite(x).all() and x.dtype == dtype for x in jax.tree.leaves(fit.params))
    assert np.isfinite(fit.history["loss"]).all() and np.all(np.diff(fit.history["loss"]) <= 0)
    return fit


def test_digits_saturate_in_single_precision():
    saturate(20, 6, jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=str)
def test_a_hundred_digits_saturate(dtype):
    saturate(100, 16, dtype)


@pytest.mark.slow
def test_what_the_loops_cost():
    """`fit` against a bare jitted loop at steps of about a millisecond; the Optax face against
    `opt.step`. Interleaved; the least seconds of the processor, which other work disturbs less than
    those of the clock.
    """
    x = jnp.asarray(np.random.default_rng(0).standard_normal((256, 8)))
    y = jnp.sin(x).sum(1, keepdims=True)
    params = {
        "w": jnp.asarray(np.random.default_rng(1).standard_normal((8, 8))),
        "v": jnp.full((8, 1), 0.1),
    }
    model = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]
    square = lambda z, y: jnp.sum((z - y) ** 2, 1) / 2
    opt = pb.NaturalGradientDescent(
        pb.Composite(model, square), inverse=pb.Tikhonov(0.1), step=pb.step.Fixed(0.1)
    )
    tx, steps = pb.as_optax(opt), 300

    @jax.jit
    def bare(params, state):
        return opt.step(params, state, (x, y))[:2]

    @jax.jit
    def optax_step(params, state):
        gradient = jax.grad(lambda p: jnp.mean(square(model(p, x), y)))(params)
        updates, state = tx.update(gradient, state, params, batch=(x, y))
        return jax.tree.map(jnp.add, params, updates), state

    def loop(step, state):
        def run():
            carry = (params, state)
            for _ in range(steps):
                carry = step(*carry)
            jax.block_until_ready(carry)

        return run

    runs = {
        "bare": loop(bare, opt.init(params)),
        "optax": loop(optax_step, tx.init(params)),
        "fit": lambda: pb.fit(opt, params, (x, y), steps),
    }
    times = {name: [] for name in runs}
    for _ in range(6):
        for name, run in runs.items():
            began = time.process_time()
            run()
            times[name].append(time.process_time() - began)
    ratio = lambda name: min(times[name]) / min(times["bare"])
    print(
        f"bare {min(times['bare']) / steps * 1e3:.2f} ms per step, fit {ratio('fit'):.3f} times, "
        f"optax {ratio('optax'):.3f} times"
    )
    assert ratio("fit") < 1.05 and ratio("optax") < 1.3
