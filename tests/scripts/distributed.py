"""Cases of `tests/solver/test_devices_memory.py`, in a process with eight devices.

Reads names of cases, and prints one line of JSON for each:

- `solver-inverse-samples-inputs-width`: the program of a natural gradient on eight devices is
  compiled and read: what is sent, and the memory of a device. It is not run; shapes are enough.
- `program-model-solver-samples`: the same of a model of `devices.py`, damped, on eight devices.
- `panels-devices-rows`: the Cholesky factorisation of `solver/_panels.py`, compared with NumPy.
- `dealt-devices-rows`: the same of a matrix of which every device has the lower triangle.
- `tall-devices-rows-columns`: `tall_svd`, compared with NumPy, and `few-inverse`, a natural
  gradient with it, compared with that of one device.
- `refused`: what is said where a matrix is larger than the bound.
- `where`: what statistics say of where things were.
- `small-` and a case of `devices.py`: that case with K or G in panels, as if it were large.
"""

import functools
import json
import math
import re
import sys

import devices
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import pullback as pb
from pullback._base.axis import Axis
from pullback._compat.devices import Layout
from pullback._natural.natural_gradient import compute, compute_shared
from pullback._problem.batch import Batch
from pullback._rows import shared
from pullback.solver import _panels, _scaled_rows
from pullback.solver._strategy import Strategy
from pullback.solver._svd import tall_svd

jax.config.update("jax_enable_x64", True)

CLASSES = 3
INVERSES = {"Tikhonov": pb.Tikhonov(1e-2), "MoorePenrose": pb.MoorePenrose()}
COLLECTIVES = ("all-gather", "all-reduce", "collective-permute", "all-to-all", "reduce-scatter")
HEAD = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(.*\{$")
RESULT = re.compile(r" = (.*?) ([a-z][\w\-]*)\(")
SHAPE = re.compile(r"[a-z]+(\d+)\[([\d,]*)\]")
TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
BODY = re.compile(r"body=%([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=(%[\w.\-]+)")


def bytes_of(result):
    """The bytes of the arrays of a result, from their types."""
    shapes = SHAPE.findall(result)
    return sum(
        int(bits) // 8 * math.prod(int(d) for d in ds.split(",") if d) for bits, ds in shapes
    )


def volume(sent):
    return sum(size * times for _, size, times in sent)


def read(text):
    """What a program sends to one device: kind, bytes and number of each collective.

    A loop whose number of turns is not known counts once: it refines a solution, and a
    well-conditioned problem needs no more. The bytes of one turn of each, as in `Krylov`, are what
    is returned second. A condition counts as the branch that sends more.
    """
    bodies, name, entry = {}, None, None
    for line in text.splitlines():
        if head := HEAD.match(line):
            name = head.group(1)
            bodies[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name is not None and RESULT.search(line):
            bodies[name].append(line)

    @functools.cache
    def sent(name):
        found = []
        for line in bodies[name]:
            result, kind = RESULT.search(line).groups()
            kind = kind.removesuffix("-start")
            if kind in COLLECTIVES:
                found.append((kind, bytes_of(result), 1))
            elif kind == "while":
                turns = TURNS.search(line)
                turns = int(turns.group(1)) if turns else 1
                inside = sent(BODY.search(line).group(1))
                found += [(kind, size, turns * times) for kind, size, times in inside]
            elif kind == "conditional":
                names = re.findall(r"%([\w.\-]+)", str(BRANCHES.findall(line)))
                found += max((sent(name) for name in names), key=volume)
            elif kind == "call":
                found += sent(re.search(r"to_apply=%([\w.\-]+)", line).group(1))
        return tuple(found)

    loops = [line for lines in bodies.values() for line in lines if " while(" in line]
    unknown = [BODY.search(line).group(1) for line in loops if not TURNS.search(line)]
    return sent(entry), [volume(sent(name)) for name in unknown]


def model(p, x):
    return jnp.tanh(x @ p["w"]) @ p["v"]


def problem_of(samples, inputs, width):
    """A problem, and the shapes of its parameters and of its batch."""
    shape = jax.ShapeDtypeStruct
    params = {"w": shape((inputs, width), float), "v": shape((width, CLASSES), float)}
    batch = Batch(shape((samples, inputs), float), shape((samples,), int))
    return pb.Composite(model, metric=pb.metric.Categorical()), params, batch


def compiled(function, *shapes):
    # All that a natural gradient returns: its certificate takes products with A, too.
    return jax.jit(lambda *x: jax.tree.leaves(function(*x))).lower(*shapes).compile()


def measured(case):
    """Memory of one device, alone and of eight, and what it is sent then."""
    solver, inverse, *sizes = case.split("-")
    strategy = Strategy(INVERSES[inverse], getattr(pb.solver, solver)())
    problem, params, batch = problem_of(*map(int, sizes))
    alone = lambda params, batch: compute(problem, params, batch, strategy, careful=False)
    one = compiled(alone, params, batch)
    found = of_eight(problem, params, batch, strategy)
    return found | {"alone": one.memory_analysis().temp_size_in_bytes}


def program(case):
    """What the program of a model sends on eight devices, and the bytes of what it must not."""
    model, solver, samples = case.split("-")[1:]
    function, loss, metric, params, batch = devices.MODELS[model]()
    shaped = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
    more = lambda x: jax.ShapeDtypeStruct((int(samples), *x.shape[1:]), x.dtype)
    params, (x, *y) = jax.tree.map(shaped, params), jax.tree.map(more, batch)
    batch = Batch(x, y[0] if y else None)
    strategy = Strategy(INVERSES["Tikhonov"], getattr(pb.solver, solver)())
    found = of_eight(pb.Composite(function, loss, metric), params, batch, strategy)
    m, size = found["shape"]
    return found | {"rows": 8 * m * size, "batch": 8 * math.prod(x.shape)}


def of_eight(problem, params, batch, strategy):
    """Memory of one of eight devices, and what it is sent."""
    mesh = jax.make_mesh((8,), ("data",))
    on = lambda spec: NamedSharding(mesh, PartitionSpec(spec))
    layout = Layout(mesh, ("data",))
    many = lambda *point: compute_shared(layout, problem, *point, strategy, careful=False)
    there = lambda tree, spec: jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on(spec)), tree
    )
    eight = compiled(many, there(params, None), there(batch, "data"))
    sent, loops = read(eight.as_text())
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)
    given = [x for x in batch if x is not None]
    spread = jax.device_put(tuple(zeros(given)), on("data"))
    plan = pb.plan(problem, zeros(params), spread, inverse=strategy.inverse, solver=strategy.solver)
    return {
        "each": eight.memory_analysis().temp_size_in_bytes,
        "sent": volume(sent),
        "loops": loops,
        "planned": plan.route.sent,
        "memory": plan.route.memory,
        "shape": plan.shape,
        "devices": plan.devices,
        "text": str(plan),
        "gathers": sorted({size for kind, size, _ in sent if kind == "all-gather"}),
    }


def panels(case):
    """How far a solution is from that of NumPy, and whether pivots were found to be positive."""
    how, *numbers = case.split("-")
    count, rows = map(int, numbers)
    mesh, axis = jax.make_mesh((count,), ("data",)), Axis(("data",), count)
    rng = np.random.default_rng(0)
    a, r = rng.standard_normal((rows, rows + 9)), rng.standard_normal(rows)
    kernel = a @ a.T
    # Above the diagonal there may be anything.
    lower = np.tril(kernel) + np.triu(np.full_like(kernel, np.nan), 1)

    def solve(a):
        if how == "panels":
            made = _panels.Panels.of(a, lambda other: a @ other.T, axis)
        else:
            made = _panels.Panels.dealt(jnp.asarray(lower), axis)
        factor, positive = made.cholesky(jnp.asarray(0.1))
        _, negative = made.cholesky(jnp.asarray(-100.0))
        factor = factor if how == "panels" else _panels.DealtFactor(factor, rows)
        return factor.solve(jnp.asarray(r)), made.diagonal, positive, negative

    spec = PartitionSpec("data" if how == "panels" else None)
    mapped = jax.shard_map(
        solve, mesh=mesh, in_specs=spec, out_specs=PartitionSpec(), check_vma=False
    )
    y, diagonal, positive, negative = jax.jit(mapped)(jax.device_put(a, NamedSharding(mesh, spec)))
    if how == "dealt":
        diagonal = np.reshape(diagonal, (count, -1)).T.ravel()[:rows]
    expected = np.linalg.solve(kernel + 0.1 * np.eye(rows), r)
    return {
        "gap": devices.gap(y, expected),
        "diagonal": devices.gap(diagonal, np.diag(kernel)),
        "pivots": [bool(positive), bool(negative)],
        "panels": len(_panels.cuts(-(-rows // count), count)),
    }


def tall(case):
    """How far a decomposition of rows on several devices is from what NumPy finds."""
    count, rows, size = map(int, case.split("-")[1:])
    mesh, axis = jax.make_mesh((count,), ("data",)), Axis(("data",), count)
    spec = PartitionSpec("data")
    a = np.random.default_rng(0).standard_normal((rows, size)) @ np.diag(10.0 ** -np.arange(size))
    mapped = jax.shard_map(
        lambda a: tall_svd(a, axis), mesh=mesh, in_specs=spec,
        out_specs=(spec, PartitionSpec(), PartitionSpec()), check_vma=False,
    )  # fmt: skip
    u, s, vt = map(np.asarray, jax.jit(mapped)(jax.device_put(a, NamedSharding(mesh, spec))))
    return {
        "orthogonal": devices.gap(u.T @ u, np.eye(size)),
        "rows": devices.gap(u * s @ vt, a),
        "values": float(np.max(np.abs(s / np.linalg.svd(a)[1] - 1))),
    }


def few(case):
    """A natural gradient of few parameters by `SVD`, on several devices and on one."""
    x = devices.normal(64, 2)
    batch = x, devices.normal(64, 1, seed=1)
    problem = pb.Composite(lambda p, x: jnp.tanh(x @ p) @ jnp.ones((2, 1)), devices.square)
    options = {"inverse": INVERSES[case.split("-")[1]], "solver": pb.solver.SVD(), "throw": False}
    point = devices.normal(2, 2, seed=2)
    one = pb.natural_gradient(problem, point, batch, **options)
    many = pb.natural_gradient(problem, point, devices.put(batch), **options)
    ranks = [int(one.stats.rank), int(many.stats.rank)]
    return {"gap": devices.gap(many.vector, one.vector), "ranks": ranks}


def where(_):
    """What each solver says of where things were, and what a second call compiles."""
    problem = pb.Composite(lambda p, x: jnp.tanh(x @ p) @ jnp.ones((2, 1)), devices.square)
    batch = devices.put((devices.normal(64, 2), devices.normal(64, 1, seed=1)))
    point, found = devices.normal(2, 2, seed=2), {}
    _scaled_rows.COPIED, _panels.NARROWEST = 0, 1
    made = []
    note = lambda name, *_, **__: made.append(name) if "compile" in name else None
    jax.monitoring.register_event_duration_secs_listener(note)
    for name in ("SVD", "Primal", "Dual", "Krylov"):
        options = {"inverse": INVERSES["Tikhonov"], "solver": getattr(pb.solver, name)()}
        stats = pb.natural_gradient(problem, point, batch, **options).stats
        found[name] = [str(stats.where), dict(stats._lines()).get("devices"), repr(stats)]
    first = len(made)
    pb.natural_gradient(problem, point, batch, **options)
    return {"found": found, "compiled": [first, len(made)]}


def refused(_):
    """What solvers say that would need more than the bound of K or of A on every device."""
    problem = pb.Composite(lambda p, x: jnp.tanh(x @ p) @ jnp.ones((2, 1)), devices.square)
    batch = devices.put((devices.normal(8, 3), devices.normal(8, 1, seed=1)))
    solve = lambda solver: pb.natural_gradient(
        problem, devices.normal(3, 2), batch, solver=solver, inverse=INVERSES["MoorePenrose"]
    )
    fine = [str(solve(solver()).result) for solver in (pb.solver.Dual, pb.solver.SVD)]
    jax.clear_caches()
    _scaled_rows.GATHERED = shared.GATHERED = 100
    words = [
        devices.refused(lambda s=s: solve(s()))["message"] for s in (pb.solver.Dual, pb.solver.SVD)
    ]
    return {"fine": fine, "words": words}


def small(case):
    # Nor are there eigenvectors of K to take over.
    _panels.COPIED = 0
    _scaled_rows.COPIED, _scaled_rows.SPARE, _panels.NARROWEST = 0, 0, 1
    case = case.removeprefix("small-")
    return devices.run(case) if case.count("-") == 5 else devices.checked(case)


if __name__ == "__main__":
    assert jax.device_count() == 8
    for name in sys.argv[1:]:
        how = {
            "program": program,
            "panels": panels,
            "dealt": panels,
            "tall": tall,
            "few": few,
            "small": small,
            "where": where,
            "refused": refused,
        }.get(name.split("-")[0], measured)
        print(json.dumps({"case": name} | how(name)), flush=True)
