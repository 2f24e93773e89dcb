"""What batch normalisation costs: a natural gradient with its statistics, as in a step of the
optimiser, and that of the same network with fixed scales and shifts beside it.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits

import pullback as pb

N = 64


def network(normalised):
    """Two convolutions, each normalised over the batch or not, and a dense layer."""

    def layer(x, w, scale, shift):
        numbers = ("NHWC", "HWIO", "NHWC")
        z = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)
        if normalised:
            z = (z - jnp.mean(z, (0, 1, 2))) * jax.lax.rsqrt(jnp.var(z, (0, 1, 2)) + 1e-5)
        return jax.nn.relu(z * scale + shift)

    def model(p, x):
        h = layer(layer(x, *p["first"]), *p["second"])
        return h.reshape(h.shape[0], -1) @ p["w"] + p["b"]

    return model


def make():
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(
        rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), jnp.float32
    )
    one, zero = (lambda n: jnp.ones(n, jnp.float32)), (lambda n: jnp.zeros(n, jnp.float32))
    params = {
        "first": (normal(3, 3, 1, 16), one(16), zero(16)),
        "second": (normal(3, 3, 16, 32), one(32), zero(32)),
        "w": normal(2048, 10),
        "b": zero(10),
    }
    digits = load_digits()
    images = jnp.asarray(digits.images[:N, :, :, None] / 16, jnp.float32)
    batch = images, jnp.asarray(digits.target[:N])
    return params, batch


@pytest.mark.slow
def test_batch_normalisation_costs_at_most_three_times_as_much():
    params, batch = make()
    inverse, solver = pb.inverse.Tikhonov(1e-3), pb.solver.Dual()
    taken = {True: [], False: []}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        steps = {}
        for coupled in taken:
            problem = pb.Composite(
                network(coupled), metric=pb.metric.Categorical(), coupled=coupled
            )
            solve = lambda p, b, problem=problem: pb.natural_gradient(
                problem, p, b, inverse=inverse, solver=solver, throw=False
            )
            steps[coupled] = jax.jit(solve)
            jax.block_until_ready(steps[coupled](params, batch))
        for _ in range(5):
            for coupled, step in steps.items():
                start = time.process_time()
                jax.block_until_ready(step(params, batch))
                taken[coupled].append(time.process_time() - start)
    ratio = min(taken[True]) / min(taken[False])
    print(f"CPU seconds: {min(taken[True]):.3f} and {min(taken[False]):.3f}, ratio {ratio:.2f}")
    assert ratio < 3
