"""Cases of `tests/natural/test_devices.py`, in a process with eight devices.

Reads the names of cases, `model-solver-inverse-measure-mesh-devices`, and prints one line of JSON
for each: how far what was computed on several devices is from what was computed on one.
"""

import functools
import json
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pullback as pb

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

N = 8
RNG = np.random.default_rng


def normal(*shape, seed=0):
    return jnp.asarray(RNG(seed).standard_normal(shape))


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def dense():
    def model(p, x):
        return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"]

    params = {"w": normal(3, 4), "b": normal(1, 4, seed=1), "v": normal(4, 3, seed=2)}
    batch = normal(N, 3, seed=3), jnp.asarray(RNG(4).integers(0, 3, N))
    return model, None, pb.metric.Categorical(), params, batch


def conv():
    def model(p, x):
        form = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        h = jnp.tanh(jax.lax.conv_general_dilated(x[..., None], p[0], (1, 1), "SAME", **form))
        h = jax.lax.conv_general_dilated(h, p[1], (2, 2), "VALID", **form)
        return h.reshape(x.shape[0], -1)[:, :2]

    params = [normal(3, 3, 1, 2), normal(2, 2, 2, 2, seed=1)]
    return model, square, pb.metric.Gaussian(), params, (normal(N, 4, 4), normal(N, 2, seed=2))


def attention():
    def one(p, x):
        weights = jax.nn.softmax((x @ p[0]) @ (x @ p[1]).T)
        return jnp.mean(jnp.tanh(weights @ x @ p[2]), axis=0)

    params = [normal(3, 2), normal(3, 2, seed=1), normal(3, 2, seed=2)]
    batch = normal(N, 4, 3, seed=3), normal(N, 2, seed=4)
    return jax.vmap(one, (None, 0)), square, None, params, batch


def scan():
    def one(p, x):
        step = lambda h, x: (jnp.tanh(p[0] @ h + p[1] * x), None)
        return p[2] @ jax.lax.scan(step, jnp.ones(3), x)[0]

    params = [normal(3, 3) / 2, normal(3, seed=1), normal(2, 3, seed=2)]
    batch = normal(N, 4, seed=3), normal(N, 2, seed=4)
    return jax.vmap(one, (None, 0)), square, None, params, batch


def pde():
    def u(p, x):
        return jnp.tanh(p[0] @ x + p[1]) @ p[2]

    def residual(p, x):
        return jnp.trace(jax.hessian(u, 1)(p, x)) + jnp.sin(x[0])

    params = [normal(6, 2), normal(6, seed=1), normal(6, seed=2)]
    model = lambda p, x: jax.vmap(residual, (None, 0))(p, x)
    return model, lambda z: z**2 / 2, None, params, (normal(N, 2, seed=3),)


def scores():
    def model(p, x):
        return jnp.sum(jnp.log(jnp.cosh(x @ p[0] + p[1])), axis=1)

    params = [normal(3, 4), normal(1, 4, seed=1)]
    return model, lambda z, y: z * y, pb.metric.Scores(), params, (normal(N, 3), normal(N, seed=2))


MODELS = {f.__name__: f for f in (dense, conv, attention, scan, pde, scores)}
SOLVERS = ("SVD", "Primal", "Dual", "Krylov", "Auto")
INVERSES = {"MoorePenrose": pb.MoorePenrose(), "Tikhonov": pb.Tikhonov(1e-2)}
# A device of the four has no sample of positive weight, and the first of all is absent.
WEIGHTS = jnp.asarray([0.0, 0.5, 0.3, 0.1, 0.0, 0.0, 0.2, 0.4])
MEASURES = {"Mean": pb.Mean(), "Sum": pb.Sum(), "Weights": pb.Weights(WEIGHTS)}
TYPES = {"Auto": AxisType.Auto, "Explicit": AxisType.Explicit}


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def gap(a, b):
    a, b = flat(a), flat(b)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-300))


def mesh_of(kind, devices):
    return jax.make_mesh((devices,), ("data",), axis_types=(TYPES[kind],))


def problem_of(model, measure):
    function, loss, metric, params, batch = MODELS[model]()
    if measure == "Weights":
        # What an absent sample contains reaches nothing.
        absent = lambda x: x.at[4].set(jnp.nan) if x.dtype == float else x
        batch = jax.tree.map(absent, batch)
    return pb.Composite(function, loss, metric, MEASURES[measure]), params, batch


@functools.cache
def alone(model, solver, inverse, measure):
    problem, params, batch = problem_of(model, measure)
    chosen = getattr(pb.solver, solver)()
    return pb.natural_gradient(
        problem, params, batch, solver=chosen, inverse=INVERSES[inverse], throw=False
    )


def run(case):
    model, solver, inverse, measure, kind, devices = case.split("-")
    problem, params, batch = problem_of(model, measure)
    one = alone(model, solver, inverse, measure)
    batch = jax.device_put(batch, NamedSharding(mesh_of(kind, int(devices)), PartitionSpec("data")))
    many = pb.natural_gradient(
        problem, params, batch, solver=getattr(pb.solver, solver)(), inverse=INVERSES[inverse],
        throw=False,
    )  # fmt: skip
    reference = alone(model, "SVD", inverse, measure).stats
    same = [
        np.array_equal(shard.data, leaf.addressable_shards[0].data)
        for leaf in jax.tree.leaves((many.vector, many.stats.residual))
        for shard in leaf.addressable_shards
    ]
    return {
        "vector": gap(many.vector, one.vector),
        "covector": gap(many.covector, one.covector),
        "pushforward": gap(many.pushforward, one.pushforward),
        "value": gap(many.value, one.value),
        "condition": float(reference.condition),
        "rank": [int(many.stats.rank), int(one.stats.rank)],
        "shape": [many.stats.shape, one.stats.shape],
        "result": [str(many.result), str(one.result)],
        "equal": all(same),
        "where": [str(many.stats.where), str(one.stats.where)],
        "shown": ["devices" in f"{n.stats!r}{n.stats}" for n in (many, one)],
        "spread": len(many.pushforward.sharding.device_set),
        "split": not many.pushforward.sharding.is_fully_replicated,
    }


def put(tree, kind="Explicit", devices=4, spec="data"):
    return jax.device_put(tree, NamedSharding(mesh_of(kind, devices), PartitionSpec(spec)))


def compared(problem, params, batch, spread=None, **options):
    """The distance of the answer of many devices from that of one, and the two results."""
    one = pb.natural_gradient(problem, params, batch, throw=False, **options)
    many = pb.natural_gradient(
        problem, params, put(batch) if spread is None else spread, throw=False, **options
    )
    results = [str(many.result), str(one.result)]
    return {"gap": gap((many.vector, many.pushforward), (one.vector, one.pushforward)),
            "results": results}  # fmt: skip


def regression():
    function, _, _, params, batch = dense()
    return function, params, (batch[0], normal(N, 3, seed=5))


def refused(function):
    try:
        function()
    except (ValueError, RuntimeError) as error:
        return {"message": str(error)}
    return {"message": ""}


def joint_loss():
    function, params, batch = regression()
    loss = lambda z, y: jnp.max(z) + jnp.mean((z - y) ** 2)
    return compared(pb.Composite(function, loss), params, batch)


def terms():
    function, params, batch = regression()
    first = pb.Composite(function, square)
    second = pb.Composite(lambda p, x: function(p, x)[:, :1], lambda z: z[:, 0] ** 2)
    problem = pb.Terms(a=first, b=second, weights={"a": 1.0, "b": 0.3})
    batches = {"a": batch, "b": (batch[0][:4],)}
    found = [
        compared(problem, params, batches, inverse=pb.Tikhonov(1e-3), solver=solver)
        for solver in (pb.solver.Dual(), pb.solver.Primal())
    ]
    # A term whose samples do not divide: every device does all of them.
    few = {"a": batch, "b": (batch[0][:3],)}
    found.append(compared(problem, params, few, {"a": put(few["a"]), "b": few["b"]}))
    return {"gap": max(x["gap"] for x in found), "results": found[-1]["results"]}


def coupled():
    function, params, batch = regression()
    centred = lambda p, x: function(p, x - jnp.mean(x, axis=0, keepdims=True))
    found = compared(pb.Composite(centred, square, coupled=True), params, batch)
    # Not declared, it is found out, also if it shows on some devices only.
    result = pb.natural_gradient(pb.Composite(centred, square), params, put(batch), throw=False)
    return found | {"undeclared": str(result.result)}


def derivative():
    function, params, batch = regression()
    problem = pb.Composite(function, square)

    def value(x, y):
        ng = pb.natural_gradient(problem, params, (x, y), inverse=pb.Tikhonov(1e-2), throw=False)
        return sum(jnp.sum(v**2) for v in jax.tree.leaves(ng.vector)) + ng.value

    slope = jax.grad(value)
    with jax.set_mesh(mesh_of("Explicit", 4)):
        many = slope(*put(batch))
    return {"gap": gap(many, slope(*batch))}


def own_map():
    function, params, batch = regression()
    mesh = mesh_of("Auto", 4)
    specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec()}
    problem = pb.Composite(function, square, over="data")
    options = {"inverse": pb.Tikhonov(1e-2), "throw": False}
    one = pb.natural_gradient(pb.Composite(function, square), params, batch, **options)

    def mapped(problem, check_vma=False):
        inner = lambda p, b: pb.natural_gradient(problem, p, b, **options).vector
        return jax.jit(jax.shard_map(inner, mesh=mesh, check_vma=check_vma, **specs))(params, batch)

    found = [mapped(problem)]
    for kind in TYPES:
        with jax.set_mesh(mesh_of(kind, 4)):
            solve = jax.jit(lambda p, b: pb.natural_gradient(problem, p, b, **options).vector)
            found.append(solve(params, batch))
    words = [
        refused(lambda: mapped(pb.Composite(function, square))),
        refused(lambda: mapped(problem, check_vma=True)),
        refused(lambda: pb.natural_gradient(problem, params, batch)),
        refused(lambda: pb.natural_gradient(
            pb.Composite(function, square, over="dat"), params, put(batch))),
    ]  # fmt: skip
    return {"gap": max(gap(x, one.vector) for x in found), "words": [x["message"] for x in words]}


def bad_input():
    function, params, batch = regression()
    problem = pb.Composite(function, square)
    spoilt = batch[0].at[5, 1].set(jnp.nan)
    sharded = params | {"v": put(params["v"])}
    solve = pb.natural_gradient
    words = [
        refused(lambda: solve(problem, params, put((spoilt, batch[1])))),
        refused(lambda: solve(problem, sharded, put(batch))),
    ]
    return {"words": [x["message"] for x in words]}


RULES = {
    "LineSearch": {},
    "GridSearch": {"step": pb.step.GridSearch((1.0, 0.5, 0.25))},
    "DampingSearch": {"step": pb.step.DampingSearch((1.0, 1e-2, 1e-4))},
    "HeavyBall": {
        "inverse": pb.Tikhonov(1e-2),
        "momentum": pb.momentum.HeavyBall(0.5),
        "step": 0.1,
    },
    "LevenbergMarquardt": {"step": pb.step.LevenbergMarquardt()},
    "TrustRegion": {"step": pb.step.TrustRegion()},
    "Geodesic": {"step": pb.step.Geodesic(pb.step.LevenbergMarquardt())},
    "Spring": {"inverse": pb.Tikhonov(1e-2), "momentum": pb.momentum.Spring(0.9), "step": 0.5},
}


def rule(name, kind):
    function, params, batch = regression()
    opt = pb.NaturalGradientDescent(pb.Composite(function, square), **RULES[name])

    def made(batch):
        point, state = params, opt.init(params)
        for _ in range(2):
            point, state, record = opt.step(point, state, batch)
        return point, record

    (one, first), (many, second) = made(batch), made(put(batch, kind))
    leaves = jax.tree.leaves(many)
    return {
        "gap": gap(many, one),
        "results": [str(second.result), str(first.result)],
        "devices": sorted({len(leaf.sharding.device_set) for leaf in leaves}),
        "whole": all(leaf.sharding.is_fully_replicated for leaf in leaves),
    }


def training(kind):
    function, params, batch = regression()
    problem = pb.Composite(function, square)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    spread, there = put(batch, kind), put(params, kind, spec=None)
    run = lambda p, b, steps, **options: pb.fit(
        opt, p, pb.minibatches(b, 4), steps, progress=False, **options
    )
    one, many = run(params, batch, 4), run(there, spread, 4)
    with tempfile.TemporaryDirectory() as folder:
        run(there, spread, 2, checkpoint=folder)
        resumed = run(there, spread, 4, checkpoint=folder)
    leaf = resumed.params["w"]
    return {
        "gap": gap(many.params, one.params),
        "resumed": bool(np.array_equal(flat(resumed.params), flat(many.params))),
        "devices": len(leaf.sharding.device_set),
        "kind": str(leaf.sharding.mesh.axis_types[0]),
    }


def under(kind):
    """Everything, called under `jax.set_mesh`, with a batch that is spread and one that is not."""
    function, params, batch = regression()
    problem = pb.Composite(function, square)
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    covector = pb.differential(problem, params, batch).tree

    def everything(b):
        fit = pb.fit(opt, params, b, 3, progress=False, validate=b)
        sampled = pb.fit(opt, fit.params, lambda key: b, 2, progress=False, state=fit.state)
        return {
            "natural_gradient": pb.natural_gradient(problem, params, b).vector,
            "step": opt.step(params, opt.init(params), b)[0],
            "fit": fit.params,
            "validate": fit.history["validation"][-1:],
            "continued": sampled.params,
            "sharp": pb.pullback(problem, params, b).sharp(covector),
            "examine": [float(pb.examine(problem, params, b).rank)],
            "ntk": pb.ntk(problem, params, b).matrix(),
            "flow": pb.flow(problem, params, b, t1=0.1, kind=pb.EuclideanFlow()).params,
        }

    one = everything(batch)
    with jax.set_mesh(mesh_of(kind, 4)):
        found = {"spread": everything(put(batch, kind)), "whole": everything(batch)}
    return {"gaps": {f"{there} {name}": gap(x, one[name])
                     for there, many in found.items() for name, x in many.items()}}  # fmt: skip


CHECKS = {f.__name__: f for f in (joint_loss, terms, coupled, derivative, own_map, bad_input)}


def checked(name):
    name, *more = name.split("-")
    if name in CHECKS:
        return CHECKS[name]()
    return {"rule": rule, "training": training, "under": under}[name](*more)


if __name__ == "__main__":
    assert jax.device_count() == 8
    for name in sys.argv[1:]:
        try:
            found = run(name) if name.count("-") == 5 else checked(name)
            print(json.dumps({"case": name} | found), flush=True)
        except Exception as error:
            print(json.dumps({"case": name, "error": repr(error)[:2000]}), flush=True)
