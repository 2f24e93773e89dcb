"""Cases of `tests/natural/test_leafwise.py`, in a process with eight devices.

Reads the names of cases, `model-inverse-way-mesh`, and prints one line of JSON for each: how far a
natural gradient of sharded parameters is from a dense reference, and where it lies. `hlo-way-width`
compiles one, for 1e8 parameters if the width is 5000, and prints what is sent between devices.
"""

import json
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pullback as pb

P = PartitionSpec
RNG = np.random.default_rng
Krylov = pb.solver.Krylov
N, LAMBDA = 24, 1e-2
MESHES = {"fsdp": (8, 1), "tensor": (2, 4), "both": (4, 2), "own": (2, 4), "only": (1, 8)}


def dense(p, x):
    return jnp.tanh(jnp.tanh(x @ p["in"] + p["bias"][None]) @ p["mid"]) @ p["out"]


def dense_case():
    shapes = {"in": (8, 16), "bias": (16,), "mid": (16, 8), "out": (8, 3)}
    params = {name: RNG(k).standard_normal(s) for k, (name, s) in enumerate(shapes.items())}
    x, y = RNG(9).standard_normal((N, 8)), RNG(10).standard_normal((N, 3))
    return dense, params, (x, y)


def conv(p, x):
    form = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    h = jnp.tanh(jax.lax.conv_general_dilated(x[..., None], p["in"], (1, 1), "SAME", **form))
    h = jnp.tanh(jax.lax.conv_general_dilated(h, p["mid"], (2, 2), "VALID", **form))
    return h.reshape(x.shape[0], -1) @ p["out"]


def conv_case():
    shapes = {"in": (3, 3, 1, 8), "mid": (2, 2, 8, 8), "out": (32, 2)}
    params = {name: RNG(k).standard_normal(s) for k, (name, s) in enumerate(shapes.items())}
    return conv, params, (RNG(9).standard_normal((N, 4, 4)), RNG(10).standard_normal((N, 2)))


def wave(p, x):
    return jnp.tanh(x @ p["in"].real) @ p["mid"] + jnp.sin(x @ p["in"].imag) @ p["mid"]


def complex_case():
    values = RNG(0).standard_normal((2, 8, 16))
    params = {"in": values[0] + 1j * values[1], "mid": RNG(1).standard_normal((16, 3))}
    return wave, params, (RNG(9).standard_normal((N, 8)), RNG(10).standard_normal((N, 3)))


CASES = {"dense": dense_case, "conv": conv_case, "complex": complex_case}


def square(z, y):
    return jnp.sum((z - y) ** 2, axis=1) / 2


def specs(params, way):
    """FSDP along the first axis that divides, tensor parallel by columns and rows in turn."""

    def fsdp(x, name, size):
        k = next((k for k, n in enumerate(x.shape) if n % size == 0), None)
        return P() if k is None else P(*(None,) * k, name)

    tensor = {"in": -1, "bias": 0, "mid": -2}
    found = {}
    for key, x in params.items():
        if way in ("fsdp", "own"):
            found[key] = fsdp(x, "data" if way == "fsdp" else "model", MESHES[way][way == "own"])
        elif key not in tensor:
            found[key] = P()
        else:
            entries = [None] * x.ndim
            entries[tensor[key]] = "model"
            if way == "both" and x.ndim > 1:
                for k in [k for k, n in enumerate(x.shape) if entries[k] is None and n % 4 == 0][
                    :1
                ]:
                    entries[k] = "data"
            found[key] = P(*entries)
    return found


def make_mesh(way, kind):
    kinds = (getattr(AxisType, kind),) * 2
    return jax.make_mesh(MESHES[way], ("data", "model"), axis_types=kinds)


def reference(model, params, batch, metric, damped):
    """Return δ and its condition, dense, in NumPy; complex leaves as pairs at the end."""
    x, y = batch
    leaves, treedef = jax.tree.flatten(params)
    real = [np.stack([z.real, z.imag], -1) if np.iscomplexobj(z) else z for z in leaves]

    def outputs(real):
        made = [jax.lax.complex(r[..., 0], r[..., 1]) if np.iscomplexobj(z) else r
                for r, z in zip(real, leaves, strict=True)]  # fmt: skip
        return model(jax.tree.unflatten(treedef, made), x)

    real = [jnp.asarray(r) for r in real]
    z = np.asarray(outputs(real))
    jacobian = [np.asarray(j).reshape(*z.shape, -1) for j in jax.jacobian(outputs)(real)]
    J = np.concatenate(jacobian, -1)
    M, c = np.eye(z.shape[1])[None].repeat(N, 0), z - y if y.ndim == 2 else None
    if metric == "Categorical":
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        M = np.stack([np.diag(q) - np.outer(q, q) for q in p])
        c = p - np.eye(z.shape[1])[y] if c is None else c
    G = np.einsum("nia,nij,njb->ab", J, M, J) / N
    g = np.einsum("nia,ni->a", J, c) / N
    s, V = np.linalg.eigh(G)
    if damped:
        return V @ ((V.T @ g) / (s + LAMBDA)), (s[-1] + LAMBDA) / LAMBDA
    rows = np.linalg.matrix_rank(G, tol=1e-10 * s[-1])
    return V[:, -rows:] @ ((V[:, -rows:].T @ g) / s[-rows:]), s[-1] / s[-rows]


def flat(tree):
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    pairs = [np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x for x in leaves]
    return np.concatenate([x.ravel() for x in pairs])


def gap(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def compare(name):
    model, inverse, way, kind = name.split("-")
    metric = "Categorical" if model in ("softmax", "outside") else "Gaussian"
    function, params, (x, y) = CASES.get(model, dense_case)()
    if model == "softmax":
        y = RNG(11).integers(0, 3, N)
        problem = pb.Composite(function, metric=pb.metric.Categorical())
    else:
        # The differential of this loss has a part outside the range of `Categorical`.
        kind_of = {"metric": getattr(pb.metric, metric)()}
        problem = pb.Composite(function, square, **kind_of)
    damped = inverse == "Tikhonov"
    options = {
        "inverse": pb.Tikhonov(LAMBDA) if damped else pb.MoorePenrose(),
        "solver": Krylov(),
    }
    one = pb.natural_gradient(problem, jax.tree.map(jnp.asarray, params), (x, y), **options)
    mesh, found = make_mesh(way, kind), specs(params, way)
    put = lambda x, spec: jax.device_put(jnp.asarray(x), NamedSharding(mesh, spec))
    sharded = {key: put(params[key], found[key]) for key in params}
    batch = (x, y) if way == "only" else (put(x, P("data")), put(y, P("data")))
    many = pb.natural_gradient(problem, sharded, batch, **options)
    delta, condition = reference(function, params, (x, y), metric, damped)
    stats = lambda n: [float(x) for x in (n.stats.output_share, n.stats.tangent_share,
                                          n.stats.covector_share)]  # fmt: skip
    return {
        "reference": gap(flat(many.vector), delta),
        "vector": gap(flat(many.vector), flat(one.vector)),
        "covector": gap(flat(many.covector), flat(one.covector)),
        "pushforward": gap(flat(many.pushforward), flat(one.pushforward)),
        "value": gap(flat(many.value), flat(one.value)),
        "condition": float(condition),
        "result": [str(one.result), str(many.result)],
        "rank": [int(one.stats.rank), int(many.stats.rank)],
        "shape": [one.stats.shape, many.stats.shape],
        "shares": [stats(one), stats(many)],
        "residual": float(many.stats.residual),
        "where": [str(one.stats.where), str(many.stats.where)],
        "kept": all(
            tree[key].sharding.is_equivalent_to(sharded[key].sharding, sharded[key].ndim)
            for tree in (many.vector, many.covector)
            for key in params
        ),
        "split": way == "only" or many.pushforward.sharding.spec[0] in ("data", ("data",)),
    }


def terms(_):
    """Several terms, one of weight zero samples, batches that do not divide, on several devices."""
    _, params, (x, y) = dense_case()
    weights = jnp.asarray(RNG(1).integers(0, 3, 21), float)
    first = pb.Composite(dense, square, measure=pb.Weights(weights))
    problem = pb.Terms(
        first=first, second=pb.Composite(dense, square), weights={"first": 2.0, "second": 0.5}
    )
    batch = {"first": (x[:21], y[:21]), "second": (x[:10] / 2, y[:10])}
    options = {"inverse": pb.Tikhonov(LAMBDA), "solver": Krylov()}
    one = pb.natural_gradient(problem, jax.tree.map(jnp.asarray, params), batch, **options)
    mesh, found = make_mesh("both", "Auto"), specs(params, "both")
    put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    sharded = {key: put(params[key], found[key]) for key in params}
    many = pb.natural_gradient(problem, sharded, pb.shard(batch, mesh), **options)
    return {
        "vector": gap(flat(many.vector), flat(one.vector)),
        "losses": gap(flat(many.losses), flat(one.losses)),
        "pushforward": gap(flat(many.pushforward), flat(one.pushforward)),
        "shape": [one.stats.shape, many.stats.shape],
        "result": [str(one.result), str(many.result)],
    }


def refused(_):
    """What cannot be done with sharded parameters says so."""
    _, params, (x, y) = dense_case()
    mesh, found = make_mesh("fsdp", "Explicit"), specs(params, "fsdp")
    put = lambda x, spec: jax.device_put(jnp.asarray(x), NamedSharding(mesh, spec))
    params = {key: put(params[key], found[key]) for key in params}
    batch = (put(x, P("data")), put(y, P("data")))
    problem = pb.Composite(dense, square)

    def words(call):
        try:
            call()
        except (ValueError, RuntimeError, NotImplementedError) as error:
            return str(error)
        return ""

    def solve(params=params, solver=None, **options):
        damped = {"inverse": pb.Tikhonov(LAMBDA)} | options
        return pb.natural_gradient(problem, params, batch, solver=solver or Krylov(), **damped)

    broken = np.array(params["mid"])
    broken[13, 2] = np.nan
    bad = params | {"mid": put(broken, found["mid"])}
    length = lambda p: jnp.sum(solve(p).vector["bias"] ** 2)
    return {
        "words": {
            "Primal": words(lambda: solve(solver=pb.solver.Primal())),
            "Nystrom": words(lambda: solve(solver=Krylov(preconditioner=pb.solver.Nystrom(4)))),
            "metric_batch": words(lambda: solve(metric_batch=(batch[0],))),
            "nan": words(lambda: solve(bad)),
            "grad": words(lambda: jax.grad(length)(params)),
        }
    }


COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def sent(text):
    """Return (kind, bytes) of what one computation of a program sends between devices."""
    found = []
    for kind_of, kind in COLLECTIVE.findall(text):
        shapes = re.findall(r"[a-z]+(\d+)\[([\d,]*)\]", kind_of)
        size = sum(int(b) // 8 * math.prod(map(int, s.split(",") if s else ())) for b, s in shapes)
        found.append((kind, size * (8 if kind == "reduce-scatter" else 1)))
    return found


def hlo(name):
    """Compile for 1e8 parameters in float32, or for fewer, and 512 samples."""
    way, wide = name.split("-")
    wide = int(wide)
    shapes = {
        "in": (wide, 2 * wide), "bias": (2 * wide,), "mid": (2 * wide, wide), "out": (wide, 8),
    }  # fmt: skip
    mesh = make_mesh(way, "Explicit")
    like = lambda shape, spec: jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=NamedSharding(mesh, spec)
    )
    params = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in shapes.items()}
    params = {key: like(shapes[key], spec) for key, spec in specs(params, way).items()}
    batch = like((512, wide), P("data")), like((512, 8), P("data"))
    problem = pb.Composite(dense, square)

    def solve(params, x, y):
        options = {"inverse": pb.Tikhonov(1e-3), "solver": Krylov(max_steps=100), "throw": False}
        return pb.natural_gradient(problem, params, (x, y), **options).vector

    with jax.set_mesh(mesh):
        made = jax.jit(solve).lower(params, *batch).compile()
    text = made.as_text()
    parts = {part.split(" ")[0].lstrip("%"): part for part in re.split(r"\n(?=%|ENTRY)", text)}
    bodies = re.findall(r"body=%?([\w.\-]+)", text)
    return {
        "loops": [sent(parts[body]) for body in bodies],
        "all": sent(text),
        "memory": made.memory_analysis().temp_size_in_bytes,
        "leaves": {key: 4 * math.prod(shape) for key, shape in shapes.items()},
        "batch": 4 * 512 * wide,
        "kept": [str(x.spec) for x in jax.tree.leaves(made.output_shardings)],
    } | (planned(problem, params, batch) if wide < 100 else {})


def planned(problem, params, batch):
    """What `plan` says of arrays that lie like these."""
    zeros = lambda x: jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding)
    params, batch = jax.tree.map(zeros, (params, batch))
    damped = {"inverse": pb.Tikhonov(1e-3)}
    plan = pb.plan(problem, params, batch, solver=Krylov(), **damped)
    try:
        pb.plan(problem, params, batch, **damped)
        words = ""
    except ValueError as error:
        words = str(error)
    fits = {route.solver: route.fits for route in plan.routes}
    route = {"sent": plan.route.sent, "bytes": plan.route.memory}
    return route | {"text": str(plan), "fits": fits, "words": words}


OTHERS = {"terms": terms, "refused": refused, "hlo": hlo}


def main():
    for name in sys.argv[1:]:
        kind, _, rest = name.partition("-")
        if kind != "hlo":
            jax.config.update("jax_enable_x64", True)
            jax.config.update("jax_numpy_dtype_promotion", "strict")
            jax.config.update("jax_numpy_rank_promotion", "raise")
        line = OTHERS[kind](rest) if kind in OTHERS else compare(name)
        print(json.dumps({"case": name} | line), flush=True)


if __name__ == "__main__":
    main()
