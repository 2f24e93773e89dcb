"""Samples over devices: the answer of one device, and what each of several does for it.

python examples/devices.py            # 4 devices, forced on the CPU
python examples/devices.py 0 2 &      # the first of two processes
python examples/devices.py 1 2        # the second
"""

import os
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import pullback as pb

jax.config.update("jax_enable_x64", True)
SOLVERS = (pb.solver.Primal(), pb.solver.Krylov(), pb.solver.Dual())


def model(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def make(samples, inputs, width):
    rng = np.random.default_rng(0)
    params = {"w": rng.standard_normal((inputs, width)) / 4, "b": np.zeros((1, width))}
    params["v"] = rng.standard_normal((width, 3)) / 4
    batch = rng.standard_normal((samples, inputs)), rng.integers(0, 3, samples)
    return jax.tree.map(jnp.asarray, params), batch


def measure(solver, params, batch):
    """The natural gradient, CPU seconds of all devices, and megabytes of working storage of one."""
    on_mesh = len(batch[0].sharding.device_set) > 1
    problem = pb.Composite(model, metric=pb.metric.Categorical(), over="data" if on_mesh else None)
    inverse = pb.Tikhonov(1e-3)
    solve = lambda p, b: (
        pb.natural_gradient(problem, p, b, inverse=inverse, solver=solver, throw=False).vector
    )
    program = jax.jit(solve).lower(params, batch).compile()
    vector = jax.block_until_ready(program(params, batch))
    begun = time.process_time()
    jax.block_until_ready(program(params, batch))
    return vector, time.process_time() - begun, program.memory_analysis().temp_size_in_bytes / 1e6


def main(samples=2048):
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    print(f"{jax.process_count()} process(es), {jax.device_count()} devices, {samples} samples")
    print(f"{'solver':8} {'N x P':>13} {'gap':>8} {'CPU s':>14} {'MB a device':>16}")
    for solver in SOLVERS:
        wide = isinstance(solver, pb.solver.Dual)
        params, batch = make(samples // (16 if wide else 1), 8, 128 if wide else 24)
        share = lambda x: jax.make_array_from_callback(x.shape, spread, lambda index, x=x: x[index])
        one, seconds, size = measure(solver, params, jax.tree.map(jnp.asarray, batch))
        with jax.set_mesh(mesh):
            many, shared, each = measure(solver, params, jax.tree.map(share, batch))
        flat = lambda tree: np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
        gap = np.linalg.norm(flat(many) - flat(one)) / np.linalg.norm(flat(one))
        shape = f"{batch[0].shape[0]} x {sum(x.size for x in jax.tree.leaves(params))}"
        work, memory = f"{seconds:.2f} -> {shared:.2f}", f"{size:.1f} -> {each:.1f}"
        print(f"{type(solver).__name__:8} {shape:>13} {gap:8.0e} {work:>14} {memory:>16}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        jax.distributed.initialize("127.0.0.1:12355", int(sys.argv[2]), int(sys.argv[1]))
    main()
