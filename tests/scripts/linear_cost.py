"""What the closed forms of `pullback.linear` cost: ratios of the shortest times of one interleaved
run, as JSON. Usage: linear_cost.py gradient|generic
"""

import functools
import json
import os
import re
import sys
import time
from pathlib import Path

# One core: XLA spreads the products of a gradient over all of them and LAPACK no factorisation, so
# that a ratio would depend on who else is there.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb

jax.config.update("jax_enable_x64", True)


def interleaved(functions, repeats):
    """The shortest time of each, taken in turns."""
    times = {name: [] for name in functions}
    for f in functions.values():
        jax.block_until_ready(f())
    for _ in range(repeats):
        for name, f in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(f())
            times[name].append(time.perf_counter() - start)
    return {name: min(found) for name, found in times.items()}


def near_identity(rng, size, depth):
    """Well-conditioned square factors."""
    return tuple(
        jnp.asarray(np.eye(size) + 0.3 * rng.standard_normal((size, size)) / np.sqrt(size))
        for _ in range(depth)
    )


def product(factors):
    """From left to right, as anyone would write it."""
    return functools.reduce(jnp.matmul, factors)


def next_to_a_gradient(rng, size=100):
    """{depth: {method: seconds over those of one jitted gradient}}."""
    target, found = jnp.asarray(rng.standard_normal((size, size))), {}
    for depth in (2, 3, 4):
        model, factors = pb.linear.MatrixProduct(depth), near_identity(rng, size, depth)
        plain = jax.jit(jax.grad(lambda ws: jnp.sum((product(ws) - target) ** 2) / 2))
        calls = {"gradient": functools.partial(plain, factors)}
        for name, method in (("split", model.split), ("exact", model.natural_gradient)):
            calls[name] = functools.partial(jax.jit(method), factors, target)
        seconds = interleaved(calls, 200)
        found[depth] = {
            name: round(seconds[name] / seconds["gradient"], 2) for name in ("split", "exact")
        }
    return found


def next_to_the_generic_path(rng, size=40):
    """The ratio of the times, the difference of the vectors and the peak of the memory."""
    target, factors = jnp.asarray(rng.standard_normal((size, size))), near_identity(rng, size, 3)
    generic = pb.Composite(product, loss=lambda z: jnp.sum((z - target) ** 2) / 2)
    theirs = jax.jit(
        lambda ws: pb.natural_gradient(generic, ws, solver=pb.solver.Dual(), throw=False).vector
    )
    ours = jax.jit(pb.linear.MatrixProduct(3).natural_gradient)
    seconds = interleaved(
        {"generic": lambda: theirs(factors), "ours": lambda: ours(factors, target)}, 3
    )
    a, b = (
        np.concatenate([np.ravel(w) for w in ws]) for ws in (ours(factors, target), theirs(factors))
    )
    # Not getrusage: the peak that it tells is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 2**20
    return {
        "ratio": seconds["generic"] / seconds["ours"],
        "difference": float(np.linalg.norm(a - b) / np.linalg.norm(b)),
        "gigabytes": peak,
    }


measured = {"gradient": next_to_a_gradient, "generic": next_to_the_generic_path}[sys.argv[1]]
print(json.dumps(measured(np.random.default_rng(0))))
