"""One of several processes of `tests/fit/test_processes.py`: place, number, port and a folder."""

import json
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import pullback as pb

jax.config.update("jax_enable_x64", True)


def flat(tree):
    return [float(x) for leaf in jax.tree.leaves(tree) for x in np.ravel(np.asarray(leaf))]


def problem_and_data():
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.standard_normal((2, 4))), "v": jnp.asarray(np.ones((4, 2)))}
    batch = rng.standard_normal((8, 2)), rng.standard_normal((8, 2))
    model = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]
    loss = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
    return pb.Composite(model, loss), params, batch


def main(place, number, port, folder, what):
    if number > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}", number, place, initialization_timeout=60,
            heartbeat_timeout_seconds=20, shutdown_timeout_seconds=20,
        )  # fmt: skip
    problem, params, batch = problem_and_data()
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    share = lambda x: jax.make_array_from_callback(x.shape, spread, lambda index: x[index])
    data = jax.tree.map(share, batch) if number > 1 else jax.tree.map(jnp.asarray, batch)
    found = {}
    if "gradient" in what:
        for name in ("SVD", "Primal", "Dual", "Krylov"):
            solver = getattr(pb.solver, name)()
            ng = pb.natural_gradient(
                problem, params, data, inverse=pb.Tikhonov(1e-3), solver=solver
            )
            found[name] = flat(ng.vector)
    if "nan" in what:
        x = batch[0].copy()
        x[5, 1] = np.nan
        bad = jax.tree.map(share, (x, batch[1]))
        try:
            pb.natural_gradient(problem, params, bad)
        except RuntimeError as error:
            found["nan"] = str(error)
    if "fit" in what:
        opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
        steps = int(what.split("fit")[1])
        end = pb.fit(
            opt, params, data, steps, checkpoint=folder / "run", telemetry=folder / "lines.jsonl",
            until=(),
        )  # fmt: skip
        found["fit"], found["ended"] = flat(end.params), end.ended
        found["losses"] = [float(x) for x in end.history["loss"]]
    (folder / f"found{place}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("error")
    place, number, port, folder, what = sys.argv[1:]
    main(int(place), int(number), port, Path(folder), what)
