"""The cost estimate of five workloads from shapes alone, and the measured cost beside it: `python
examples/plan.py [W1 W2 ...]`.
"""

import os
import sys
import time
from itertools import pairwise

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # CPU time counts threads that wait

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
KEY = jax.random.key(0)


def network(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def squares(z, y):
    return jnp.sum((z - y) ** 2, -1) / 2


def workload(name):
    """A problem, its parameters, a batch and an inverse."""
    sizes, count, dtype = SIZES[name]
    normal = lambda key, *shape: jax.random.normal(key, shape, dtype)
    if name == "W5":
        noise = (normal(key, sizes, sizes) / 10 for key in jax.random.split(KEY, count))
        factors = [jnp.eye(sizes, dtype=dtype) + 0.3 * w for w in noise]
        problem = pb.Composite(lambda w: w[0] @ w[1] @ w[2], lambda z: jnp.sum((z - 1) ** 2) / 2)
        return problem, factors, None, pb.Tikhonov(1e-3)
    params = [(normal(KEY, a, b) / a**0.5, jnp.zeros(b, dtype)) for a, b in pairwise(sizes)]
    x = normal(KEY, count, sizes[0])
    if sizes[-1] == 1:
        y = jnp.sin(x.sum(-1, keepdims=True))
        return pb.Composite(network, squares), params, (x, y), pb.Tikhonov(1e-6)
    classifier = pb.Composite(network, metric=pb.metric.Categorical())
    return classifier, params, (x, jnp.arange(count) % sizes[-1]), pb.Tikhonov(1e-3)


def measure(problem, params, batch, inverse, solver=None):
    """CPU seconds of one natural gradient, and the bytes that XLA allocates for it."""
    options = {"inverse": inverse, "solver": solver, "throw": False}
    solve = lambda p, b: pb.natural_gradient(problem, p, b, **options).vector
    compiled = jax.jit(solve).lower(params, batch).compile()
    jax.block_until_ready(compiled(params, batch))
    start = time.process_time()
    jax.block_until_ready(compiled(params, batch))
    return time.process_time() - start, compiled.memory_analysis().temp_size_in_bytes


def main(names):
    for name in names or SIZES:
        problem, params, batch, inverse = workload(name)
        plan = pb.plan(problem, params, batch, inverse=inverse)
        print(f"== {name}\n{plan}")
        seconds, size = measure(problem, params, batch, inverse)
        rate = plan.route.flops / seconds / 1e9
        ratio = plan.route.memory / size
        print(f"measured: {seconds:.3g} s, {rate:.0f} Gflop/s; {size / 1e6:.0f} MB, ", end="")
        print(f"of which the estimate is {ratio:.2f}\n")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(sys.argv[1:])
