"""How many products a Krylov solve takes with and without preconditioner, on a trained network: `python -m bench.krylov [STEPS]`, JSON.

W1 in float64 after 50 natural-gradient steps, damping 1e-6. For each solver the least number of iterations (a product with A and one with Aᵀ
each) after which the true residual ‖(G + λ) v - g‖/‖g‖, recomputed with products, is below the tolerance: found by doubling and
bisection on `max_steps`, so that nothing the solver says of itself is trusted. What a preconditioner is built from counts too, where it says so
(`products`).
"""

import json
import sys

import jax
import jax.numpy as jnp

DAMPING, TOLERANCE, LIMIT = 1e-6, 1e-8, 4096


def _preconditioners(pb) -> dict:
    """Those there are, by name."""
    names = ("Diagonal", "Kronecker", "Nystrom")
    return {name: getattr(pb.solver, name)() for name in names if hasattr(pb.solver, name)}


def _trained(pb, composite, params, batch, steps):
    @jax.jit
    def step(params, batch):
        vector = pb.natural_gradient(composite, params, batch, inverse=pb.Tikhonov(1e-3), throw=False).vector
        return jax.tree.map(lambda p, v: p - 0.2 * v, params, vector)

    for _ in range(steps):
        params = step(params, batch)
    return params


def _least(residual_after) -> int | None:
    """The least k with residual_after(k) < TOLERANCE."""
    high = 8
    while not residual_after(high) < TOLERANCE:
        high *= 2
        if high > LIMIT:
            return None
    low = high // 2
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (low, middle) if residual_after(middle) < TOLERANCE else (middle, high)
    return high


def main(steps: int = 50) -> None:
    """Train, count, print.

    **Arguments:**

    - `steps`: of training.
    """
    jax.config.update("jax_enable_x64", True)
    import pullback as pb

    from .peers.ours import problem
    from .problems import WORKLOADS, make

    workload = WORKLOADS["W1"]
    composite = problem(pb, workload)
    params, (x, y) = make(workload)
    single = jax.tree.map(jnp.asarray, (params, (x, y)))
    params = _trained(pb, composite, *single, steps)
    params, x = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), (params, single[1][0]))
    batch = (x, single[1][1])
    inverse = pb.Tikhonov(DAMPING)

    def residual_after(solver):
        @jax.jit
        def run(params, batch):
            ng = pb.natural_gradient(composite, params, batch, inverse=inverse, solver=solver, throw=False)
            metric = pb.pullback(composite, params, batch)
            pushed = metric.flat(ng.vector)
            rest = jax.tree.map(lambda a, v, g: a + DAMPING * v - g, pushed, ng.vector, ng.covector)
            size = lambda tree: jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))
            return size(rest) / size(ng.covector)

        return float(run(params, batch))

    def count(**arguments):
        found = _least(lambda k: residual_after(pb.solver.Krylov(rtol=1e-14, max_steps=k, **arguments)))
        built = getattr(arguments.get("preconditioner"), "products", 0)
        return None if found is None else found + (built if isinstance(built, int) else 0)

    plain = count()
    found = {"steps": steps, "damping": DAMPING, "tolerance": TOLERANCE, "plain": plain, "preconditioned": {}}
    if plain is None:
        found["error"] = f"the plain solve takes more than {LIMIT} iterations"
    known = _preconditioners(pb)
    if not known:
        found["error"] = "pullback.solver.Krylov has no preconditioner yet"
    for name, preconditioner in known.items():
        needed = count(preconditioner=preconditioner)
        if needed is not None:
            found["preconditioned"][name] = needed
    if known and not found["preconditioned"]:
        found["error"] = "no preconditioned solve reaches the tolerance"
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
