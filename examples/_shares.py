"""What `devices.py` measures: processes with some devices each, and what every one of them does."""

import json
import os
import re
import socket
import subprocess
import sys
import time

SAMPLES = {"Primal": 2050, "Krylov": 2050, "Dual": 130}  # no multiples of 4: the rest is padded
WIDTH = {"Primal": 24, "Krylov": 24, "Dual": 128}
COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


def worker(place, number, port):
    """One process: print what each solver found, as a line of JSON."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import pullback as pb

    jax.config.update("jax_enable_x64", True)
    if number > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", number, place)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    model = lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]
    problem = pb.Composite(model, metric=pb.metric.Categorical(), over="data")
    for name, samples in SAMPLES.items():
        rng, width, solver = np.random.default_rng(0), WIDTH[name], getattr(pb.solver, name)()
        params = {"w": rng.standard_normal((8, width)) / 4, "b": np.zeros((1, width))}
        params = jax.tree.map(jnp.asarray, params | {"v": rng.standard_normal((width, 3)) / 4})
        x, y = rng.standard_normal((samples, 8)), rng.integers(0, 3, samples)
        mine = np.array_split(np.arange(samples), number)[place]  # the samples of this process
        batch = pb.shard((x[mine], y[mine]), mesh)
        solve = lambda p, b, solver=solver: (
            pb.natural_gradient(
                problem, p, b, inverse=pb.Tikhonov(1e-3), solver=solver, throw=False
            ).vector
        )
        with jax.set_mesh(mesh):
            program = jax.jit(solve).lower(params, batch).compile()
            vector, seconds = jax.block_until_ready(program(params, batch)), []
            for _ in range(5):
                begun = time.process_time()
                jax.block_until_ready(program(params, batch))
                seconds.append(time.process_time() - begun)
        found = {
            "solver": name,
            "shape": f"{samples} x {sum(leaf.size for leaf in jax.tree.leaves(params))}",
            "vector": [float(v) for leaf in jax.tree.leaves(vector) for v in np.ravel(leaf)],
            "seconds": min(seconds),
            "MB": program.memory_analysis().temp_size_in_bytes / 1e6,
            "kB": received(program.as_text()) / 1e3 if jax.device_count() > 1 else 0.0,
        }
        print(json.dumps(found), flush=True)


def received(text):
    """The bytes of what the collectives of a compiled program return."""
    size = {"f64": 8, "s64": 8, "f32": 4, "s32": 4, "u32": 4, "pred": 1}
    total = 0
    for kinds in re.findall(rf"= (\S+|\(.*?\)) (?:{COLLECTIVES})(?:-start)?\(", text):
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", kinds):
            count = 1
            for length in filter(None, shape.split(",")):
                count *= int(length)
            total += size.get(kind, 8) * count
    return total


def run(number, devices):
    """Start processes with some devices each; return what they found, by solver."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    forced = f"--xla_force_host_platform_device_count={devices}"
    env = os.environ | {"XLA_FLAGS": forced, "JAX_PLATFORMS": "cpu"}
    start = lambda place: subprocess.Popen(
        [sys.executable, __file__, str(place), str(number), port],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    processes = [start(place) for place in range(number)]
    try:
        printed = [process.communicate(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit("".join(errors for _, errors in printed))
    parts = [
        [json.loads(line) for line in out.splitlines() if line[0] == "{"] for out, _ in printed
    ]
    seconds = [sum(line["seconds"] for line in lines) for lines in zip(*parts, strict=True)]
    return {
        line["solver"]: line | {"seconds": all_of_them}
        for line, all_of_them in zip(parts[0], seconds, strict=True)
    }


def draw(made, path):
    """Draw work and memory of one device against the number of devices."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    counts = [devices for _, devices in made]
    for name in SAMPLES:
        lines = [found[name] for found in made.values()]
        work = [line["seconds"] / count for line, count in zip(lines, counts, strict=True)]
        for axis, values in zip(axes, (work, [line["MB"] for line in lines]), strict=True):
            axis.loglog(counts, [value / values[0] for value in values], "o-", label=name)
    titles = ("CPU time of one device", "working storage of one device")
    for axis, title in zip(axes, titles, strict=True):
        axis.loglog(counts, [1 / count for count in counts], "k:", label="1 / devices")
        axis.set(title=title, xlabel="devices", ylabel="relative to one device")
        axis.set_xticks(counts, [str(count) for count in counts])
        axis.minorticks_off()
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
