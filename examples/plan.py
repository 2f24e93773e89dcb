"""The bill of five workloads from shapes alone, and the measured truth beside it: `python
examples/plan.py [W1 W2 ...]`.
"""

import os
import sys
import time
from itertools import pairwise

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # CPU seconds are counted, and threads that wait would count

import jax
import jax.numpy as jnp

import pullback as pb

SIZES = {
    "W1": ((64, 256, 256, 10), 256, "float32"),
    "W2": ((2, 64, 64, 64, 1), 1000, "float64"),
    "W3": ((20, 32, 32, 10), 20_000, "float32"),
    "W4": ((784, 1500, 1500, 10), 512, "float32"),
    "W5": (100, 3, "float64"),  # a product of three 100 x 100 matrices, no data
}


def network(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def workload(name):
    """A problem, its parameters, a batch and an inverse."""
    sizes, count, dtype = SIZES[name]
    key = jax.random.key(0)
    if name == "W5":
        factors = [
            jnp.eye(sizes, dtype=dtype) + 0.3 * jax.random.normal(k, (sizes, sizes), dtype) / 10
            for k in jax.random.split(key, count)
        ]
        return (
            pb.Composite(lambda w: w[0] @ w[1] @ w[2], lambda z: jnp.sum((z - 1) ** 2) / 2),
            factors,
            None,
            pb.Tikhonov(1e-3),
        )
    params = [
        (jax.random.normal(key, (a, b), dtype) / a**0.5, jnp.zeros(b, dtype))
        for a, b in pairwise(sizes)
    ]
    x = jax.random.normal(key, (count, sizes[0]), dtype)
    if sizes[-1] == 1:
        squares = pb.Composite(network, lambda z, y: jnp.sum((z - y) ** 2, -1) / 2)
        return squares, params, (x, jnp.sin(x.sum(-1, keepdims=True))), pb.Tikhonov(1e-6)
    return (
        pb.Composite(network, metric=pb.metric.Categorical()),
        params,
        (x, jnp.arange(count) % sizes[-1]),
        pb.Tikhonov(1e-3),
    )


def measure(problem, params, batch, inverse, solver=None):
    """CPU seconds of one natural gradient, and what XLA sets aside for it in bytes."""
    run = jax.jit(
        lambda p, b: (
            pb.natural_gradient(problem, p, b, inverse=inverse, solver=solver, throw=False).vector
        )
    )
    compiled = run.lower(params, batch).compile()
    jax.block_until_ready(compiled(params, batch))
    start = time.process_time()
    jax.block_until_ready(compiled(params, batch))
    return time.process_time() - start, compiled.memory_analysis().temp_size_in_bytes


def main(names):
    for name in names or SIZES:
        args = workload(name)
        plan = pb.plan(*args[:3], inverse=args[3])
        print(f"== {name}\n{plan}")
        seconds, size = measure(*args)
        rate, ratio = plan.route.flops / seconds / 1e9, plan.route.memory / size
        print(
            f"measured: {seconds:.3g} s ({rate:.0f} Gflop/s), {size / 1e6:.0f} MB: {ratio:.2f} "
            "of it were predicted\n"
        )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(sys.argv[1:])
