"""Counts the products of a Krylov solve with and without preconditioner, on a trained network.

`python -m bench.krylov [STEPS]` prints JSON. The problem is W1 in float64 after 50 natural gradient
steps, with damping 1e-6. For each solver the tolerance is tightened by tens until the true residual
‖(G + λ)v - g‖/‖g‖, recomputed with products, is below 1e-6, then 1e-8. Counted are one product with
A and one with Aᵀ per iteration, those that a sketch is built from, and one for each output of a
sample that its block is built from.
"""

import json
import sys

import jax
import jax.numpy as jnp

DAMPING = 1e-6
RESIDUALS = (1e-6, 1e-8)
LIMIT = 20_000
TIGHTER = tuple(10.0**-k for k in range(4, 14))


def trained(pb, composite, params, batch, steps):
    """Parameters after some damped steps, in float32."""

    from pullback._compat.xla import jit

    @jit
    def step(params, batch):
        vector = pb.natural_gradient(
            composite, params, batch, inverse=pb.Tikhonov(1e-3), throw=False
        ).vector
        return jax.tree.map(lambda p, v: p - 0.2 * v, params, vector)

    for _ in range(steps):
        params = step(params, batch)
    return params


def products(pb, composite, params, batch, preconditioner) -> list[int | None]:
    """How many products each of the residuals takes; `None` if it is not reached."""
    from pullback._compat.xla import jit
    from pullback._natural.evaluate import lift

    inverse = pb.Tikhonov(DAMPING)

    @jit
    def run(params, batch, rtol):
        rows = pb.pullback(composite, params, batch).whitened
        _, c = composite.value_and_differential(rows.outputs, rows.objective.batch)
        r = lift(rows, c, inverse, own=composite.loss is None).r
        factors = pb.solver.Krylov(rtol, LIMIT, preconditioner).factorise(rows, inverse)
        v, count = factors.counted(r)
        b = rows.scale * r
        rest = rows.rmv(rows.mv(v) - b) + DAMPING * v
        return count, jnp.linalg.norm(rest) / jnp.linalg.norm(rows.rmv(b))

    build = getattr(preconditioner, "rank", 0)
    if isinstance(preconditioner, pb.solver.SampleBlocks):
        build = pb.pullback(composite, params, batch).rows // batch[0].shape[0]
    found: list[int | None] = []
    for rtol in TIGHTER:
        count, residual = run(params, batch, rtol)
        while len(found) < len(RESIDUALS) and residual <= RESIDUALS[len(found)]:
            found.append(int(count) + build)
        if len(found) == len(RESIDUALS):
            break
    return found + [None] * (len(RESIDUALS) - len(found))


def main(steps: int = 50) -> None:
    """Train for some steps, count, print."""
    jax.config.update("jax_enable_x64", True)
    import pullback as pb

    from .peers.ours import problem
    from .problems import WORKLOADS, make

    workload = WORKLOADS["W1"]
    composite = problem(pb, workload)
    params, (x, y) = jax.tree.map(jnp.asarray, make(workload))
    params = trained(pb, composite, params, (x, y), steps)
    params, x = jax.tree.map(lambda a: a.astype(jnp.float64), (params, x))
    batch = (x, y)
    adapted = pb.solver.Nystrom.adapted(pb.pullback(composite, params, batch), DAMPING)
    known = {
        "SampleBlocks": pb.solver.SampleBlocks(),
        "Diagonal": pb.solver.Diagonal(),
        "Kronecker": pb.solver.Kronecker(),
        f"Nystrom.adapted, rank {adapted.rank}": adapted,
    }
    found = {
        "steps": steps,
        "damping": DAMPING,
        "residuals": RESIDUALS,
        "plain": products(pb, composite, params, batch, None),
    }
    found["preconditioned"] = {
        name: products(pb, composite, params, batch, kind) for name, kind in known.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
