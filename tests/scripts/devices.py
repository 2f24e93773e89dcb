"""Cases of `tests/natural/test_devices.py`, in a process with eight devices.

Reads the names of cases, `model-solver-inverse-measure-mesh-devices`, and prints one line of JSON
for each: how far what was computed on several devices is from what was computed on one.
"""

import functools
import json
import sys

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
        x = x[:, None]
        h = jnp.tanh(jax.lax.conv_general_dilated(x, p[0], (1, 1), "SAME"))
        h = jax.lax.conv_general_dilated(h, p[1], (2, 2), "VALID")
        return h.reshape(x.shape[0], -1)[:, :2]

    params = [normal(2, 1, 3, 3), normal(2, 2, 2, 2, seed=1)]
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
DEVICES = (1, 2, 4)


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
        "spread": len(many.pushforward.sharding.device_set),
        "split": not many.pushforward.sharding.is_fully_replicated,
    }


if __name__ == "__main__":
    assert jax.device_count() == 8
    for name in sys.argv[1:]:
        try:
            print(json.dumps({"case": name} | run(name)), flush=True)
        except Exception as error:
            print(json.dumps({"case": name, "error": repr(error)[:2000]}), flush=True)
