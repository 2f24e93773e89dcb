r"""Theorem 1. For a model \(\varphi: \Xi \to (\mathcal Z, M)\), overparametrised or not, singular point or not, and any \(\{1\}\)-inverse
\(X\) of \(G = J^\top M J\),

\[ J\,X\,\nabla_\xi L = \Pi_\xi\,(M^{-1}\,\mathrm{d}L), \]

the projection of the ambient gradient on \(\mathrm{span}\{\partial_i(\xi)\}\), orthogonal in \(M\).

The proof takes \(V = T_p\mathcal M\), which is not defined at a singular \(p\); \(V = T_p\mathcal Z\) is meant, and the statement then
holds at every point.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb

from .._example import Example, Row, at_least, at_most, distance, equals
from .._inverses import projector, random_inverse
from ._curved import METRIC, loss, matrix, phi, point

POINTS, INVERSES = 5, 20


def points() -> list[tuple[np.ndarray, int]]:
    """Points and the rank of the model there: five generic ones, and one at which the rank falls."""
    rng = np.random.default_rng(1)
    return [*((point(rng), 3) for _ in range(POINTS)), (np.array([0.0, 0.7, -0.4, 0.2, 0.9, -0.6]), 2)]


def measure() -> Iterator[Row]:
    """Every point, with random inverses."""
    rng, worst = np.random.default_rng(2), dict.fromkeys(("generic", "singular", "library", "project"), 0.0)
    euclidean, ranks = np.inf, 0
    problem = pb.Composite(phi, loss=loss, metric=METRIC)
    jacobian, differential = jax.jit(jax.jacfwd(phi)), jax.jit(jax.grad(loss))
    project = jax.jit(lambda xi, v: pb.pullback(problem, xi).project(v))
    for xi, rank in points():
        z = phi(jnp.asarray(xi))
        j, m, c = (np.asarray(x) for x in (jacobian(xi), matrix(z), differential(z)))
        g, ambient = j.T @ m @ j, np.linalg.solve(m, c)
        expected = projector(j, m, rank) @ ambient
        kind = "generic" if rank == 3 else "singular"
        for _ in range(INVERSES):
            worst[kind] = max(worst[kind], distance(j @ (random_inverse(rng, g) @ (j.T @ c)), expected))
        ng = pb.natural_gradient(problem, jnp.asarray(xi))
        ranks += int(ng.stats.rank) == rank
        worst["library"] = max(worst["library"], distance(ng.pushforward, expected))
        worst["project"] = max(worst["project"], distance(project(jnp.asarray(xi), jnp.asarray(ambient)), expected))
        euclidean = min(euclidean, distance(projector(j, np.eye(len(c)), rank) @ ambient, expected))

    yield at_most(
        f"J X g = Π(M⁻¹c), {INVERSES} random non-symmetric X at {POINTS} points of rank 3: largest error", worst["generic"], 1e-10
    )
    yield at_most("the same at a point where the rank falls to 2", worst["singular"], 1e-10)
    yield at_most("natural_gradient(...).pushforward, all points", worst["library"], 1e-12)
    yield at_most("pullback(...).project(M⁻¹c), all points", worst["project"], 1e-12)
    yield equals(f"points at which the reported rank is right, of {POINTS + 1}", ranks, POINTS + 1)
    yield at_least("control: projecting orthogonally in the Euclidean metric misses by", euclidean, 0.005)


EXAMPLE = Example(
    "theorem-1",
    "van Oostrum, Müller, Ay, Theorem 1",
    "Pushed forward to the outputs, the natural parameter gradient is the projection of the ambient gradient on what the model can do, "
    "whichever generalised inverse is used; also in a curved metric and where the rank falls.",
    measure,
)
