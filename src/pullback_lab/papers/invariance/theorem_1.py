r"""Theorem 1. For a model \(\varphi: \Xi \to (\mathcal Z, M)\), overparametrised or not, singular
point or not, and any \(\{1\}\)-inverse \(X\) of \(G = J^\top M J\),

\[ J\,X\,\nabla_\xi L = \Pi_\xi\,(M^{-1}\,\mathrm{d}L), \]

the projection of the ambient gradient on \(\mathrm{span}\{\partial_i(\xi)\}\), orthogonal in \(M\).

Where \(\varphi\) is proper it is the gradient on the model, which any chart of the model gives:
here \(u \mapsto\) `outer(u)`, an immersion with as many coordinates as the model has dimensions,
for which \(G\) is invertible and the textbook's \(J_u G_u^{-1} J_u^\top c\) needs no generalised
inverse.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._inverses import projector, random_inverse
from .._numbers import distance, generator
from ._curved import METRIC, inner, loss, matrix, outer, phi, point
from ._diagrams import draw_parametrisation, parametrisation

POINTS = 5
INVERSES = 20
SMALL = 1e-3
"""The first parameter near the points of rank 2: as large as the third singular value."""


def points(
    rng: np.random.Generator | None = None, count: int = POINTS
) -> list[tuple[np.ndarray, int]]:
    """Points and the rank of the model there: generic ones, and one at which the rank falls."""
    rng = np.random.default_rng(1) if rng is None else rng
    return [
        *((point(rng), 3) for _ in range(count)),
        (np.array([0.0, 0.7, -0.4, 0.2, 0.9, -0.6]), 2),
    ]


def nearly_singular(
    problem: pb.Composite, rng: np.random.Generator, count: int
) -> tuple[float, int]:
    """The largest error of the library at points of rank 3 near those of rank 2, and the number of
    points at which it reports another rank.
    """
    worst, wrong = 0.0, 0
    for _ in range(count):
        xi = jnp.asarray(point(rng)).at[0].set(SMALL)
        z = phi(xi)
        j, m, c = (np.asarray(x) for x in (jax.jacfwd(phi)(xi), matrix(z), jax.grad(loss)(z)))
        ng = pb.natural_gradient(problem, xi)
        expected = projector(j, m, 3) @ np.linalg.solve(m, c)
        worst = max(worst, distance(ng.pushforward, expected))
        wrong += int(ng.stats.rank) != 3
    return worst, wrong


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Every point, with random inverses."""
    rng = generator(key)
    worst = dict.fromkeys(("generic", "singular", "library", "project", "chart"), 0.0)
    euclidean = []
    ranks = 0
    problem = pb.Composite(phi, loss=loss, metric=METRIC)
    jacobian = jax.jit(jax.jacfwd(phi))
    differential = jax.jit(jax.grad(loss))
    chart = jax.jit(lambda xi: jax.jacfwd(outer)(inner(xi)))
    project = jax.jit(lambda xi, v: pb.pullback(problem, xi).project(v))
    places = points(rng, POINTS * budget.seeds)
    for xi, rank in places:
        z = phi(jnp.asarray(xi))
        j, m, c = (np.asarray(x) for x in (jacobian(xi), matrix(z), differential(z)))
        g = j.T @ m @ j
        ambient = np.linalg.solve(m, c)
        expected = projector(j, m, rank) @ ambient
        kind = "generic" if rank == 3 else "singular"
        for _ in range(INVERSES):
            worst[kind] = max(
                worst[kind], distance(j @ (random_inverse(rng, g) @ (j.T @ c)), expected)
            )
        ng = pb.natural_gradient(problem, jnp.asarray(xi))
        ranks += int(ng.stats.rank) == rank
        worst["library"] = max(worst["library"], distance(ng.pushforward, expected))
        worst["project"] = max(
            worst["project"], distance(project(jnp.asarray(xi), jnp.asarray(ambient)), expected)
        )
        if rank == 3:
            ju = np.asarray(chart(xi))
            worst["chart"] = max(
                worst["chart"],
                distance(ng.pushforward, ju @ np.linalg.solve(ju.T @ m @ ju, ju.T @ c)),
            )
        other = projector(j, np.eye(len(c)), rank)
        euclidean.append(distance(other @ ambient, expected))
    near, wrong = nearly_singular(problem, rng, POINTS * budget.seeds)
    several = f"{INVERSES} random non-symmetric X at {len(places) - 1} points"
    return Measured(
        (
            at_most(
                f"J X g = Π(M⁻¹c), {several} of rank 3: largest error", worst["generic"], 1e-10
            ),
            at_most("the same at a point where the rank falls to 2", worst["singular"], 1e-10),
            at_most("natural_gradient(...).pushforward, all points", worst["library"], 1e-12),
            at_most("pullback(...).project(M⁻¹c), all points", worst["project"], 1e-12),
            at_most(
                "(9): where φ is proper, it is the gradient on the model by a chart",
                worst["chart"],
                1e-12,
            ),
            at_most(
                f"natural_gradient near those, third singular value about {SMALL:g}", near, 1e-9
            ),
            equals(
                "points at which the reported rank is wrong",
                len(places) - ranks + wrong,
                0,
                Role.CONTROL,
            ),
            at_least(
                "projecting orthogonally in the Euclidean metric misses by, median",
                np.median(euclidean),
                0.005,
                Role.CONTROL,
            ),
        ),
        parametrisation(),
    )


CLAIM = Claim(
    name="theorem-1",
    source="invariance",
    place="Theorem 1, (8) and (9), and Figure 1",
    quotation="When the tangent vectors ... span the whole tangent space of M at p",
    statement=(
        "Pushed forward to the outputs, the natural parameter gradient is the projection of the "
        "ambient gradient on what the model can do, whichever generalised inverse is used, also "
        "where the rank falls; where the parametrisation is proper it is the gradient on the "
        "model."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw_parametrisation,
)
