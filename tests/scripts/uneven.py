"""Cases of `tests/natural/test_uneven.py`, in a process with four devices.

Reads names of cases and prints one line of JSON for each: how far ten samples on four devices are
from ten samples on one.
"""

import json
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import pullback as pb

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

N = 10
TYPES = {"Auto": AxisType.Auto, "Explicit": AxisType.Explicit}
WEIGHTS = jnp.asarray([0.3, 0.0, 0.1, 0.2, 0.4, 0.0, 0.5, 0.1, 0.2, 0.3])
INVERSE = pb.Tikhonov(1e-2)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def model(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


PARAMS = {"w": normal(3, 4), "b": normal(1, 4, seed=1), "v": normal(4, 3, seed=2)}
BATCH = normal(N, 3, seed=3), normal(N, 3, seed=4)


def mesh_of(kind="Explicit"):
    return jax.make_mesh((4,), ("data",), axis_types=(TYPES[kind],))


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def gap(a, b):
    a, b = flat(a), flat(b)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-300))


def compared(problem, batch, spread, **options):
    """How far many devices are from one, in what a user sees."""
    options = {"inverse": INVERSE, "throw": False} | options
    one = pb.natural_gradient(problem, PARAMS, batch, **options)
    many = pb.natural_gradient(problem, PARAMS, spread, **options)
    seen = lambda ng: (ng.vector, ng.covector, ng.value, ng.pushforward)
    shapes = [[x.shape for x in jax.tree.leaves(ng.pushforward)] for ng in (many, one)]
    return {
        "gap": max(map(gap, seen(many), seen(one))),
        "rank": [int(many.stats.rank), int(one.stats.rank)],
        "shape": [many.stats.shape, one.stats.shape],
        "results": [str(many.result), str(one.result)],
        "same": shapes[0] == shapes[1],
    }


def sharded(kind, measure, solver, inverse="Tikhonov"):
    measures = {"Mean": pb.Mean(), "Sum": pb.Sum(), "Weights": pb.Weights(WEIGHTS)}
    inverses = {"Tikhonov": INVERSE, "MoorePenrose": pb.MoorePenrose()}
    problem = pb.Composite(model, square, measure=measures[measure])
    batch = BATCH
    if measure == "Weights":
        batch = BATCH[0].at[1].set(jnp.nan), BATCH[1]
    options = {"solver": getattr(pb.solver, solver)(), "inverse": inverses[inverse]}
    return compared(problem, batch, pb.shard(batch, mesh_of(kind)), **options)


def likelihood():
    targets = jnp.asarray(np.random.default_rng(5).integers(0, 3, N))
    problem = pb.Composite(model, metric=pb.metric.Categorical())
    return compared(problem, (BATCH[0], targets), pb.shard((BATCH[0], targets), mesh_of()))


def scores():
    problem = pb.Composite(
        lambda p, x: model(p, x)[:, 0], lambda z, y: z * y[:, 0], pb.metric.Scores()
    )
    return compared(problem, BATCH, pb.shard(BATCH, mesh_of()))


def few():
    """Fewer samples than devices."""
    batch = BATCH[0][:3], BATCH[1][:3]
    return compared(pb.Composite(model, square), batch, pb.shard(batch, mesh_of()))


def joint():
    """A loss that is one number for the whole batch."""
    loss = lambda z, y: jnp.max(z) + jnp.mean((z - y) ** 2)
    return compared(pb.Composite(model, loss), BATCH, pb.shard(BATCH, mesh_of()))


def coupled():
    """A model that mixes samples is given no other ones."""
    centred = lambda p, x: model(p, x - jnp.mean(x, axis=0, keepdims=True))
    return compared(pb.Composite(centred, square, coupled=True), BATCH, pb.shard(BATCH, mesh_of()))


def terms():
    """One of two terms has samples that do not divide; on the mesh, or not."""
    second = pb.Composite(lambda p, x: model(p, x)[:, :1], lambda z: z[:, 0] ** 2)
    problem = pb.Terms(a=pb.Composite(model, square), b=second, weights={"a": 1.0, "b": 0.3})
    even = BATCH[0][:8], BATCH[1][:8]
    batches = {"a": even, "b": (BATCH[0][:3],)}
    on_mesh = jax.device_put(even, NamedSharding(mesh_of(), PartitionSpec("data")))
    spread = [{"a": on_mesh, "b": batches["b"]}, pb.shard(batches, mesh_of())]
    found = [compared(problem, batches, x, solver=pb.solver.Dual()) for x in spread]
    return found[0] | {"gap": max(x["gap"] for x in found), "same": all(x["same"] for x in found)}


def metric_batch():
    problem = pb.Composite(model, square)
    other = normal(7, 3, seed=8)
    options = {"inverse": INVERSE, "throw": False}
    one = pb.natural_gradient(problem, PARAMS, BATCH, metric_batch=(other,), **options)
    many = pb.natural_gradient(
        problem, PARAMS, pb.shard(BATCH, mesh_of()), metric_batch=(other,), **options
    )
    return {"gap": gap(many.vector, one.vector)}


def named():
    """The axis is named, and the batch is whole: on one device, or on every one."""
    problem = pb.Composite(model, square, over="data")
    one = pb.natural_gradient(pb.Composite(model, square), PARAMS, BATCH, inverse=INVERSE)
    everywhere = jax.device_put(BATCH, NamedSharding(mesh_of("Auto"), PartitionSpec()))
    found = [pb.natural_gradient(problem, PARAMS, everywhere, inverse=INVERSE).vector]
    solve = lambda p, b: (
        pb.natural_gradient(problem, p, b, inverse=INVERSE, throw=False).pushforward
    )
    with jax.set_mesh(mesh_of("Auto")):
        found.append(pb.natural_gradient(problem, PARAMS, BATCH, inverse=INVERSE).vector)
        pushed = jax.jit(solve)(PARAMS, BATCH)
    return {"gap": max(*(gap(x, one.vector) for x in found), gap(pushed, one.pushforward))}


def own_jit():
    """A padded batch is an argument of somebody's `jit`, where its arrays do not tell."""
    problem = pb.Composite(model, square)
    solve = lambda p, b: pb.natural_gradient(problem, p, b, inverse=INVERSE, throw=False).vector
    one = solve(PARAMS, BATCH)
    found = [jax.jit(solve)(PARAMS, pb.shard(BATCH, mesh_of(kind))) for kind in TYPES]
    mesh, named = mesh_of("Auto"), pb.Composite(model, square, over="data")
    inner = lambda p, b: pb.natural_gradient(named, p, b, inverse=INVERSE, throw=False).vector
    specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec()}
    mapped = jax.shard_map(inner, mesh=mesh, check_vma=False, **specs)
    found.append(jax.jit(mapped)(PARAMS, pb.shard(BATCH, mesh)))
    return {"gap": max(gap(x, one) for x in found)}


def block_descent():
    return pb.BlockDescent(pb.Composite(model, square), blocks=lambda path: path, rate=0.1)


def others():
    """What is given all samples on each device is given no other ones."""
    problem, spread = pb.Composite(model, square), pb.shard(BATCH, mesh_of())
    opt = pb.NaturalGradientDescent(problem)
    blocks = block_descent()
    seen = {
        "loss": lambda b: opt.loss(PARAMS, b),
        "matrix": lambda b: pb.pullback(problem, PARAMS, b).matrix(),
        "ntk": lambda b: pb.ntk(problem, PARAMS, b).matrix(),
        "blocks": lambda b: blocks.step(PARAMS, blocks.init(PARAMS), b)[0],
        "flow": lambda b: pb.flow(problem, PARAMS, b, t1=0.1).params,
        "differential": lambda b: pb.differential(problem, PARAMS, b),
    }
    found = {name: gap(see(spread), see(BATCH)) for name, see in seen.items()}
    return {"gap": max(found.values())} | found


def optax(kind):
    problem = pb.Composite(model, square)
    tx = pb.as_optax(pb.NaturalGradientDescent(problem, inverse=INVERSE, step=0.5))
    gradient = jax.tree.map(jnp.sin, PARAMS)
    made = lambda b: tx.update(gradient, tx.init(PARAMS), PARAMS, batch=b)[0]
    return {"gap": gap(made(pb.shard(BATCH, mesh_of(kind))), made(BATCH))}


def training(kind, source):
    """Minibatches, lists and iterators with a shorter batch at the end; resumed bit by bit."""
    problem = pb.Composite(model, square)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    mesh = mesh_of(kind)
    cuts = [slice(0, 4), slice(4, 8), slice(8, 10)] * 2
    pieces = [(BATCH[0][cut], BATCH[1][cut]) for cut in cuts]
    put = lambda tree: jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
    made = {
        "batch": lambda shard: shard(BATCH),
        "minibatches": lambda shard: pb.minibatches(shard(BATCH), 7),
        "list": lambda shard: [shard(piece) for piece in pieces],
        "iterator": lambda shard: (shard(piece) for piece in pieces),
    }[source]
    there = lambda: made(lambda batch: pb.shard(batch, mesh))
    run = lambda p, b, steps, **more: pb.fit(opt, p, b, steps, progress=False, until=(), **more)
    one, many = run(PARAMS, made(lambda batch: batch), 6), run(put(PARAMS), there(), 6)
    with tempfile.TemporaryDirectory() as folder:
        run(put(PARAMS), there(), 4, checkpoint=folder)
        resumed = run(put(PARAMS), there(), 6, checkpoint=folder)
        few = Mesh(mesh.devices[:2], ("data",))
        fewer = jax.device_put(PARAMS, NamedSharding(few, PartitionSpec()))
        again = made(lambda batch: pb.shard(batch, few))
        elsewhere = run(fewer, again, 6, checkpoint=folder)
    leaf = resumed.params["w"]
    return {
        "gap": max(gap(many.params, one.params), gap(elsewhere.params, one.params)),
        "resumed": bool(np.array_equal(flat(resumed.params), flat(many.params))),
        "devices": len(leaf.sharding.device_set),
        "losses": gap(many.history["loss"], one.history["loss"]),
    }


def held_out(kind):
    """A held-out loss on a padded batch, and an optimiser that does not share samples."""
    opt = block_descent()
    run = lambda b: pb.fit(opt, PARAMS, b, 3, validate=b, every=1, progress=False, until=())
    one, many = run(BATCH), run(pb.shard(BATCH, mesh_of(kind)))
    held = [x.history["validation"] for x in (many, one)]
    return {"gap": max(gap(many.params, one.params), gap(*held))}


def bad():
    words = []
    problem = pb.Composite(model, square)
    spread = pb.shard(BATCH, mesh_of("Auto"))
    cut = type(spread)(jax.tree.map(lambda x: x[:8], spread.inputs), spread.targets[:8])
    spoilt = pb.shard((BATCH[0].at[9, 1].set(jnp.nan), BATCH[1]), mesh_of())
    for call in (
        lambda: pb.shard(BATCH, mesh_of(), "date"),
        lambda: pb.shard(BATCH),
        lambda: pb.shard((BATCH[0], BATCH[1][:4]), mesh_of()),
        lambda: pb.shard((None, BATCH[1]), mesh_of()),
        lambda: pb.natural_gradient(problem, PARAMS, cut),
        lambda: pb.minibatches(spread, 11),
        lambda: pb.natural_gradient(problem, PARAMS, spoilt),
    ):
        try:
            call()
            words.append("")
        except (ValueError, RuntimeError) as error:
            words.append(str(error))
    return {"words": words}


if __name__ == "__main__":
    assert jax.device_count() == 4
    for case in sys.argv[1:]:
        name, *more = case.split("-")
        try:
            print(json.dumps({"case": case} | globals()[name](*more)), flush=True)
        except Exception as error:
            print(json.dumps({"case": case, "error": repr(error)[:3000]}), flush=True)
