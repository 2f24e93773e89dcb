"""What `devices.py` measures: processes with some devices each, and what every one of them does."""

import json
import os
import re
import socket
import subprocess
import sys
import time

COLLECTIVES = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
# Samples and width of the layer. The first ones are no multiples of 4: the rest is padded.
SMALL = {"Primal": (2050, 24), "Krylov": (2050, 24), "Dual": (130, 128)}
# K is larger than what every device keeps a copy of inside of a `jit`.
LARGE = {"Primal": (12288, 84), "Krylov": (24576, 84), "Dual": (2160, 230)}
COUNTS = 1, 2, 4, 8


def prepared(name, size, mesh, place=0, number=1, damping=1e-3):
    """Compile a natural gradient on a mesh; return what runs it, and what is known of it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import pullback as pb

    model = lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]
    problem = pb.Composite(model, metric=pb.metric.Categorical(), over="data")
    samples, width = size
    rng, solver = np.random.default_rng(0), getattr(pb.solver, name)()
    params = {"w": rng.standard_normal((8, width)) / 4, "b": np.zeros((1, width))}
    params = jax.tree.map(jnp.asarray, params | {"v": rng.standard_normal((width, 3)) / 4})
    x, y = rng.standard_normal((samples, 8)), rng.integers(0, 3, samples)
    mine = np.array_split(np.arange(samples), number)[place]  # the samples of this process
    batch = pb.shard((x[mine], y[mine]), mesh)
    inverse = pb.MoorePenrose() if damping is None else pb.Tikhonov(damping)
    solve = lambda p, b: (
        pb.natural_gradient(problem, p, b, inverse=inverse, solver=solver, throw=False).vector
    )
    with jax.set_mesh(mesh):
        program = jax.jit(solve).lower(params, batch).compile()
    call = lambda: jax.block_until_ready(program(params, batch))
    return call, {
        "solver": name,
        "shape": f"{samples} x {sum(leaf.size for leaf in jax.tree.leaves(params))}",
        "vector": [float(v) for leaf in jax.tree.leaves(call()) for v in np.ravel(leaf)],
        "MB": program.memory_analysis().temp_size_in_bytes / 1e6,
        "kB": received(program.as_text()) / 1e3 if mesh.size > 1 else 0.0,
    }


def timed(calls, rounds=5):
    """The least CPU time of all threads that each call took; the calls take turns."""
    seconds = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, seconds, strict=True):
            begun = time.process_time()
            call()
            taken.append(time.process_time() - begun)
    return [min(taken) for taken in seconds]


def worker(place, number, port):
    """One process: print what each solver found, as a line of JSON."""
    import jax

    jax.config.update("jax_enable_x64", True)
    if number > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", number, place)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    for name, size in SMALL.items():
        call, found = prepared(name, size, mesh, place, number)
        print(json.dumps(found | {"seconds": timed([call])[0]}), flush=True)


def compared():
    """One process with eight devices: print what each solver does on some of them, as JSON."""
    import jax

    jax.config.update("jax_enable_x64", True)
    for name, size in LARGE.items():
        meshes = [jax.make_mesh((n,), ("data",), devices=jax.devices()[:n]) for n in COUNTS]
        calls, found = zip(*(prepared(name, size, mesh) for mesh in meshes), strict=True)
        for count, seconds, line in zip(COUNTS, timed(calls), found, strict=True):
            print(json.dumps(line | {"devices": count, "seconds": seconds}), flush=True)


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


def started(devices, *words):
    """Start this file as a process with some devices."""
    forced = f"--xla_force_host_platform_device_count={devices}"
    env = os.environ | {"XLA_FLAGS": forced, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, words)],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(processes):
    """Return the lines that each process printed."""
    try:
        printed = [process.communicate(timeout=3600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit("".join(errors for _, errors in printed))
    return [[json.loads(line) for line in out.splitlines() if line[0] == "{"] for out, _ in printed]


def run(number, devices):
    """Start processes with some devices each; return what they found, by solver."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parts = ended([started(devices, place, number, port) for place in range(number)])
    seconds = [sum(line["seconds"] for line in lines) for lines in zip(*parts, strict=True)]
    return {
        line["solver"]: line | {"seconds": all_of_them}
        for line, all_of_them in zip(parts[0], seconds, strict=True)
    }


def shares():
    """Return what one process with eight devices found: by devices and solver."""
    (lines,) = ended([started(max(COUNTS))])
    made = {count: {} for count in COUNTS}
    for line in lines:
        made[line["devices"]][line["solver"]] = line
    return made


def draw(made, path):
    """Draw work and memory of one device against the number of devices."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "devices"
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for name, mark in zip(LARGE, "os^", strict=True):
        lines = [found[name] for found in made.values()]
        work = [line["seconds"] / count for count, line in zip(made, lines, strict=True)]
        for axis, values in zip(axes, (work, [line["MB"] for line in lines]), strict=True):
            axis.loglog(list(made), [value / values[0] for value in values], f"{mark}-", label=name)
    titles = ("work: CPU time of a device", "memory: working storage of a device")
    for axis, title in zip(axes, titles, strict=True):
        axis.loglog(list(made), [1 / count for count in made], "k:", label="1 / devices")
        axis.set(title=title, xlabel="devices", ylabel="relative to one device")
        axis.set_xticks(list(made), [str(count) for count in made])
        axis.set_yticks([1 / count for count in made], ["1", "1/2", "1/4", "1/8"])
        axis.minorticks_off()
    axes[0].legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    if sys.argv[1:]:
        worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        compared()
