"""Cases of `tests/compat/test_in_order.py`, in a process with eight devices.

Reads names of cases, and prints one line of JSON for each:

- `toy`: a small program with conditions and loops beside sums over devices, as it is and in order.
- `model-solver-inverse-samples`: a natural gradient of a model of `devices.py`; with `panels-` in
  front, K or G in panels, as if it were large.

Of a compiled program it prints which of its collectives nothing orders: XLA begins collectives in
one order, but a condition or loop has begun before the collectives inside it. So of a condition or
loop with collectives inside, and any other collective, one must need the result of the other.
"""

import functools
import json
import re
import sys

import devices
import jax
import jax.numpy as jnp
import numpy as np
from distributed import COLLECTIVES, HEAD, INVERSES
from jax.sharding import NamedSharding, PartitionSpec

import pullback as pb
from pullback._compat.devices import Layout
from pullback._compat.in_order import in_order
from pullback._natural.natural_gradient import compute_shared
from pullback._problem.batch import Batch
from pullback.solver import _panels, _scaled_rows
from pullback.solver._strategy import Strategy

OPERATION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = .*? ([a-z][\w\-]*)\((.*)$")
INSIDE = re.compile(
    r"(?:body|condition|to_apply|(?:true|false)_computation)=%([\w.\-]+)|"
    r"branch_computations=\{([^}]*)\}"
)
CONTAINERS = ("while", "conditional", "call")


def arguments(text):
    """What is in front of the parenthesis that closes, and what is behind it."""
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:place], text[place:]
    raise ValueError(text)


def programs(text):
    """The operations of each computation: what they do, need, and contain."""
    found, here = {}, None
    for line in text.splitlines():
        if head := HEAD.match(line):
            here = found.setdefault(head.group(1), {})
        elif here is not None and (match := OPERATION.match(line)):
            name, kind, rest = match.groups()
            given, rest = arguments(rest)
            inside = re.findall(r"[\w.\-]+", " ".join(map(" ".join, INSIDE.findall(rest))))
            needs = re.findall(r"%([\w.\-]+)", given)
            here[name] = kind.removesuffix("-start"), needs, inside * (kind in CONTAINERS)
    return found


def unordered(text):
    """The pairs of collectives that nothing orders, and how many conditions and loops have some."""
    found = programs(text)

    @functools.cache
    def sends(name):
        return any(
            k in COLLECTIVES or any(map(sends, inner)) for k, _, inner in found[name].values()
        )

    pairs, containers = [], 0
    for operations in found.values():
        before = {}
        for name, (_, needs, _) in operations.items():
            before[name] = set(needs).union(*(before.get(x, ()) for x in needs))
        all_of_them = [
            n for n, x in operations.items() if x[0] in COLLECTIVES or any(map(sends, x[2]))
        ]
        loops = [n for n in all_of_them if operations[n][0] in CONTAINERS]
        containers += len(loops)
        pairs += [
            (x, y)
            for x in loops
            for y in all_of_them
            if x != y and x not in before[y] and y not in before[x]
        ]
    return {"pairs": pairs[:5], "unordered": len(pairs), "containers": containers}


def toy(_):
    """Conditions and loops of every kind, of which no collective needs the result of another."""
    mesh = jax.make_mesh((8,), ("data",))
    total = lambda x: jax.lax.psum(x, "data")

    def work(x, y, z):
        twice = lambda x: total(jnp.sin(total(x)))
        found = jax.lax.cond(jnp.sum(total(y)) > 0, twice, lambda x: 2 * x, x)
        bounded = lambda state: (state[0] < 5) & (jnp.sum(total(state[1])) < 1e3)
        step = lambda state: (state[0] + 1, jax.lax.cond(state[0] > 2, twice, jnp.cos, state[1]))
        _, looped = jax.lax.while_loop(bounded, step, (0, z))
        mapped = jax.lax.map(
            lambda y: jax.lax.ppermute(y, "data", [(0, 1), (1, 0)]), jnp.stack([y, z])
        )
        flags = jax.jit(lambda x: jax.lax.pmax((x > 0).astype(int), "data"))(x - z)
        gathered = jax.lax.all_gather(z, "data", tiled=True)
        count, scanned = jax.lax.scan(lambda n, y: (n + 1, total(y) * n), 0, jnp.stack([x, y]))
        carry = jax.lax.fori_loop(0, 3, lambda k, x: x + total(x) * k, x)
        # A literal waits: a number of Python, of a type that is not its own.
        once = lambda state: (False, state[1] + total(state[1]), state[2] * np.int32(3))
        flagged = jax.lax.while_loop(lambda state: state[0], once, (True, y, np.int32(2)))[1:]
        return (
            flagged,
            found,
            looped,
            mapped,
            flags,
            gathered,
            count,
            scanned,
            carry,
            total(x),
            total(y * z),
        )

    spread, rng = PartitionSpec("data"), np.random.default_rng(0)
    given = [
        jax.device_put(rng.standard_normal(4096), NamedSharding(mesh, spread)) for _ in range(3)
    ]
    lines = {}
    for name, function in {"plain": work, "ordered": in_order(work)}.items():
        mapped = jax.shard_map(
            lambda *x, f=function: jax.tree.map(lambda x: jnp.atleast_1d(x)[None], f(*x)),
            mesh=mesh, in_specs=(spread,) * 3, out_specs=spread, check_vma=False,
        )  # fmt: skip
        program = jax.jit(mapped).lower(*given).compile()
        lines[name] = unordered(program.as_text())
        lines[name]["values"] = [np.asarray(x) for x in jax.tree.leaves(program(*given))]
    values = [lines[name].pop("values") for name in lines]
    return lines | {"equal": all(np.array_equal(a, b) for a, b in zip(*values, strict=True))}


def program(case):
    """A natural gradient of a model, compiled for eight devices."""
    if case.startswith("panels-"):
        _panels.COPIED = _scaled_rows.COPIED = _scaled_rows.SPARE = 0
        _panels.NARROWEST = 1
    model, solver, inverse, samples = case.removeprefix("panels-").split("-")
    function, loss, metric, params, batch = devices.MODELS[model]()
    layout = Layout(jax.make_mesh((8,), ("data",)), ("data",))
    on = lambda *spec: NamedSharding(layout.mesh, PartitionSpec(*spec))
    shaped = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on())
    shape = lambda x: (int(samples), *x.shape[1:])
    more = lambda x: jax.ShapeDtypeStruct(shape(x), x.dtype, sharding=on("data"))
    params, (x, *y) = jax.tree.map(shaped, params), jax.tree.map(more, batch)
    strategy = Strategy(INVERSES[inverse], getattr(pb.solver, solver)())
    problem = pb.Composite(function, loss, metric)
    # With `careful`, also what takes over where a first try fails.
    solve = lambda *point: compute_shared(layout, problem, *point, strategy, careful=True)
    lowered = jax.jit(lambda *x: jax.tree.leaves(solve(*x))).lower(params, Batch(x, *(y or [None])))
    return unordered(lowered.compile().as_text())


if __name__ == "__main__":
    assert jax.device_count() == 8
    for name in sys.argv[1:]:
        print(json.dumps({"case": name} | (toy if name == "toy" else program)(name)), flush=True)
