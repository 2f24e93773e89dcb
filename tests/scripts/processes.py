"""One of several processes of `tests/fit/test_processes.py`.

Its arguments are place, number, port, a folder and the names of cases, which all processes run one
after the other. What each case found is written to `found<place>.json`.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import pullback as pb

jax.config.update("jax_enable_x64", True)
RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.standard_normal((2, 4)), "v": np.ones((4, 2))}
BATCH = RNG.standard_normal((8, 2)), RNG.standard_normal((8, 2))
UNEVEN = RNG.standard_normal((7, 2)), RNG.standard_normal((7, 2))
SOLVERS = ("SVD", "Primal", "Dual", "Krylov")
INVERSE = pb.Tikhonov(1e-3)


def model(p, x):
    return jnp.tanh(x @ p["w"]) @ p["v"]


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


PROBLEM = pb.Composite(model, square)
OPT = pb.NaturalGradientDescent(
    PROBLEM, step=pb.step.LevenbergMarquardt(), solver=pb.solver.Primal()
)


def flat(tree):
    return [float(x) for leaf in jax.tree.leaves(tree) for x in np.ravel(np.asarray(leaf))]


class Case:
    """The arguments of the process, and what cases need of them."""

    def __init__(self, place, number, folder):
        self.place, self.number, self.folder = place, number, folder
        self.mesh = jax.make_mesh((jax.device_count(),), ("data",))
        self.params = jax.tree.map(jnp.asarray, PARAMS)

    def spread(self, batch):
        """A batch that every process knows, on all devices; on one process as it is."""
        if self.number == 1:
            return jax.tree.map(jnp.asarray, batch)
        there = NamedSharding(self.mesh, PartitionSpec("data"))
        share = lambda x: jax.make_array_from_callback(x.shape, there, lambda index: x[index])
        return jax.tree.map(share, batch)

    def own(self, batch):
        """The samples of this process: the first one has two, the others share the rest."""
        if self.number == 1:
            return batch
        parts = lambda x: [x[:2], *np.array_split(x[2:], self.number - 1)]
        return tuple(parts(x)[self.place] for x in batch)

    def shard(self, batch):
        if self.number == 1:
            return jax.tree.map(jnp.asarray, batch)
        return pb.shard(self.own(batch), self.mesh)

    def fit(self, batches, steps, params=None, **options):
        options = {"progress": False, "until": ()} | options
        return pb.fit(OPT, self.params if params is None else params, batches, steps, **options)


def gradient(case):
    data, found = case.spread(BATCH), {}
    for name in SOLVERS:
        solver = getattr(pb.solver, name)()
        ng = pb.natural_gradient(PROBLEM, case.params, data, inverse=INVERSE, solver=solver)
        found[name] = flat(ng.vector)
    return found


def uneven(case):
    """Each process has samples of its own, another number of them."""
    options = {"inverse": INVERSE, "solver": pb.solver.Primal()}
    ng = pb.natural_gradient(PROBLEM, case.params, case.shard(UNEVEN), **options)
    end = case.fit(case.shard(UNEVEN), 5)
    drawn = case.fit(pb.minibatches(case.shard(UNEVEN), 3), 5, validate=case.shard(UNEVEN), every=1)
    return {
        "vector": flat(ng.vector), "pushforward": flat(ng.pushforward), "fit": flat(end.params),
        "minibatches": flat(drawn.params), "validation": flat(drawn.history["validation"]),
    }  # fmt: skip


def iterators(case):
    """Batches on the mesh from a generator and from a list, with a shorter one at the end."""
    cuts = (slice(0, 8), slice(8, 16), slice(16, 21))  # enough for four processes
    whole = tuple(np.concatenate([a, b, a]) for a, b in zip(BATCH, UNEVEN, strict=True))
    pieces = [tuple(x[cut] for x in whole) for cut in cuts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pb.FitWarning)  # the last one has another shape
        made = case.fit((case.shard(piece) for piece in pieces), 3)
        listed = case.fit([case.shard(piece) for piece in pieces], 3)
    return {"iterator": flat(made.params), "list": flat(listed.params)}


def training(case, steps):
    """Saved and resumed, with telemetry."""
    end = case.fit(
        case.spread(BATCH), int(steps), checkpoint=case.folder / "run",
        telemetry=case.folder / "lines.jsonl", evaluate=lambda p: case.place, every=1,
    )  # fmt: skip
    return {
        "fit": flat(end.params), "ended": end.ended, "losses": flat(end.history["loss"]),
        "evaluation": flat(end.history["evaluation"]),
    }  # fmt: skip


class Chains:
    """A sampler whose state lies on the mesh, as Markov chains do."""

    def __init__(self, case):
        self.case = case

    def init(self, key, params):
        return self.case.spread((np.linspace(-1.0, 1.0, 16).reshape(8, 2),))[0]

    def draw(self, key, params, state):
        state = 0.9 * state + 0.1 * jax.random.normal(key, state.shape)
        return (state, jnp.sin(state)), state


def chains(case, steps):
    folder = case.folder / "chains"
    saving = pb.Checkpoints(folder, every_steps=2)
    end = case.fit(Chains(case), int(steps), checkpoint=saving)
    split = not end.sampler.sharding.is_fully_replicated
    gather = jax.jit(lambda x: x, out_shardings=NamedSharding(case.mesh, PartitionSpec()))
    return {"fit": flat(end.params), "sampler": flat(gather(end.sampler)), "split": split}


def walk(case, steps):
    """A long run that prints its steps, for somebody who kills it."""
    saving = pb.Checkpoints(case.folder / "walk", every_steps=5)

    def told(report):
        print(report.step, flush=True)
        time.sleep(0.1)

    print("ready", flush=True)
    opt = pb.NaturalGradientDescent(PROBLEM, pb.Tikhonov(0.1), pb.solver.Primal(), step=0.01)
    draw = pb.minibatches(case.spread(BATCH), 6)
    options = {"progress": False, "until": (), "checkpoint": saving, "callback": told}
    end = pb.fit(opt, case.params, draw, int(steps), **options)
    return {"fit": flat(end.params), "losses": flat(end.history["loss"])}


def stopped(case):
    """A callback that returns True on one process only: that of process 0 decides."""
    ended = {}
    for place in (0, 1):
        told = lambda report, place=place: case.place == place and report.step >= 2
        ended[str(place)] = case.fit(case.spread(BATCH), 40, callback=told).ended
    return ended


def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def solve_sharded(case, good):
    """Parameters over the axis of the samples."""
    sharded = case.spread((np.ones((4, 2)),))[0]
    pb.natural_gradient(PROBLEM, case.params | {"v": sharded}, good)


def bad(case):
    """Everything that a user may get wrong: an error on every process, and nobody waits."""
    last = case.place == case.number - 1
    x, y = BATCH
    spoilt = x.copy()
    spoilt[5, 1] = np.nan
    uneven = UNEVEN[0].copy()
    uneven[4, 1] = np.nan
    there = NamedSharding(case.mesh, PartitionSpec("data"))
    local = lambda x: jax.make_array_from_process_local_data(there, x)
    count = 4 if last else 2
    long = jax.tree.map(local, (x[:count], y[:count]))
    solve = lambda batch: pb.natural_gradient(PROBLEM, case.params, batch)
    good = case.spread(BATCH)
    own = jax.tree.map(lambda x: x * (1 + case.place), case.params)
    hidden = case.folder / (f"hidden{case.place}" if last else "seen")

    def raising(steps):
        yield good
        if last:
            raise OSError("the disk is gone")
        yield from [good] * steps

    def failing(report):
        if last:
            raise KeyError("no such column")

    calls = {
        "lengths": lambda: solve(long),
        "lengths in fit": lambda: case.fit(long, 3),
        "axis": lambda: pb.shard(BATCH, case.mesh, "date"),
        "named axis": lambda: pb.natural_gradient(
            pb.Composite(model, square, over="date"), case.params, good
        ),
        "dtypes": lambda: pb.shard((x.astype(np.float32) if last else x, y), case.mesh),
        "targets": lambda: pb.shard((x, y[:3] if last else y), case.mesh),
        "steps": lambda: case.fit(good, 4 if last else 3),
        "no steps": lambda: case.fit(good, -1 if last else 3),
        "key": lambda: case.fit(good, 3, key=case.place),
        "start": lambda: pb.natural_gradient(PROBLEM, own, good, inverse=INVERSE),
        "start of fit": lambda: case.fit(good, 3, params=own),
        "damping": lambda: pb.natural_gradient(
            PROBLEM, case.params, case.shard(UNEVEN), inverse=pb.Tikhonov(0.1 * (1 + case.place))
        ),
        "nan": lambda: solve(case.spread((spoilt, y))),
        # The first process has two of the seven, and two shares; the other ones are filled up.
        "uneven nan": lambda: solve(case.shard((uneven, UNEVEN[1]))),
        "targets of a likelihood": lambda: pb.natural_gradient(
            pb.Composite(lambda p, x: model(p, x)[:, 0], metric=pb.metric.Poisson()),
            case.params,
            case.shard((UNEVEN[0], np.asarray([1.0, 2.0, 0.0, 1.0, -1.0, 3.0, 1.0]))),
        ),
        "nan in fit": lambda: case.fit(case.spread((spoilt, y)), 3),
        "folder": lambda: case.fit(good, 3, checkpoint=hidden),
        "iterator": lambda: case.fit(raising(9), 5),
        "short iterator": lambda: case.fit(iter([good] * (2 if last else 5)), 5),
        "callback": lambda: case.fit(good, 5, callback=failing),
        "evaluate": lambda: case.fit(good, 5, evaluate=lambda p: failing(None) or 1.0),
        "params": lambda: solve_sharded(case, good),
    }
    found = {}
    for name, call in calls.items():
        print(name, flush=True)
        found[name] = refused(call)
    return found


def main(place, number, port, folder, *names):
    if number > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}", number, place, initialization_timeout=120,
            heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10,
        )  # fmt: skip
    case, found = Case(place, number, folder), {}
    for name in names:
        function, *more = name.split("-")
        found[name] = globals()[function](case, *more)
    (folder / f"found{place}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("error")
    place, number, port, folder, *names = sys.argv[1:]
    main(int(place), int(number), port, Path(folder), *names)
