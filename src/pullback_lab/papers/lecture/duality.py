r"""Vectors are pushed forward, covectors are pulled back, and a metric turns one into the other:

\[ \langle J^\top c, v\rangle = \langle c, Jv\rangle, \qquad \langle u, v\rangle_G = \langle Ju,
Jv\rangle_M, \qquad (v^\flat)^\sharp = v \text{ up to the kernel of } G, \qquad (\mathrm dL)^\sharp
= \tilde\nabla L. \]
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from .invariance import BATCH, INPUTS, PROBLEM, network


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A network, random vectors and covectors."""
    rng = generator(key)
    params = jnp.asarray(rng.standard_normal(8))
    j = np.asarray(jax.jacfwd(lambda p: network(p, INPUTS))(params))

    @jax.jit
    def look(u, v, c):
        metric = pb.pullback(PROBLEM, params, BATCH)
        flat = metric.flat(v)
        return metric.pushforward(v), metric.pull(c), metric.inner(u, v), flat, metric.sharp(flat)

    found: dict[str, list[float]] = {name: [] for name in ("adjoint", "inner", "musical", "plain")}
    for _ in range(5 * budget.seeds):
        u = rng.standard_normal(8)
        v = rng.standard_normal(8)
        c = rng.standard_normal(10)
        pushed, pulled, inner, flat, back = (
            np.asarray(x) for x in look(*map(jnp.asarray, (u, v, c)))
        )
        size = np.linalg.norm(j @ u) * np.linalg.norm(j @ v) / 10
        found["adjoint"].append(
            float(abs(pulled @ v - c @ pushed) / (np.linalg.norm(c) * np.linalg.norm(pushed)))
        )
        found["inner"].append(float(abs(inner - (j @ u) @ (j @ v) / 10) / size))
        found["musical"].append(distance(back, v))
        found["plain"].append(distance(flat, v))
    ng = pb.natural_gradient(PROBLEM, params, BATCH)
    sharp = jax.jit(lambda g: pb.pullback(PROBLEM, params, BATCH).sharp(g))
    gradient = distance(sharp(ng.covector), ng.vector)
    return Measured(
        (
            at_most(
                "pull a covector back or push a vector forward: the pairing is the same, largest "
                "error",
                max(found["adjoint"]),
                1e-12,
            ),
            at_most(
                "the inner product pulled back is that of the pushforwards",
                max(found["inner"]),
                1e-13,
            ),
            at_most("vector to covector to vector", max(found["musical"]), 1e-8),
            at_most("the natural gradient is the differential made a vector", gradient, 1e-8),
            at_least(
                "a vector and its covector are not the same numbers: smallest difference",
                min(found["plain"]),
                0.1,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="duality",
    source="lecture",
    place="Vectors and covectors; pulling back a metric",
    quotation="vectors can be pushed forward, and covectors can be pulled back",
    statement=(
        "Vectors can be pushed forward and covectors pulled back; pushing two vectors forward "
        "and taking their inner product is taking it in the metric pulled back. The natural "
        "gradient is the differential, a covector, made a vector by the metric."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
