r"""Lemma 1. Let \(e_1, \dots, e_d\) be any vectors of an inner product space, dependent or not,
\(G_{ij} = \langle e_i, e_j\rangle\), and \(X\) any matrix with \(GXG = G\). Then for the vector
\(v\) that represents the covector \(\omega\),

\[ \Pi(v) = X^{ij}\,\omega(e_j)\,e_i, \]

\(\Pi\) the orthogonal projection on the span. The coefficients \(X^{ij}\omega(e_j)\) depend on
\(X\), the vector does not.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._inverses import asymmetry, projector, random_inverse
from .._numbers import distance, generator

SPACE = 6
VECTORS = 8
RANKS = (1, 2, 3, 4)
INVERSES = 20
SMALL = 1e-4
"""A singular value that must count for the rank."""


def spanning_set(
    rng: np.random.Generator, rank: int, least: float = 0.5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random vectors as columns, of prescribed rank and singular values from 2 down to `least`; the
    matrix of an inner product; a covector.
    """
    left, right = (np.linalg.qr(rng.standard_normal((n, rank)))[0] for n in (SPACE, VECTORS))
    vectors = left @ np.diag(np.geomspace(2.0, least, rank)) @ right.T
    factor = rng.standard_normal((SPACE, SPACE))
    return vectors, factor @ factor.T + np.eye(SPACE), rng.standard_normal(SPACE)


def natural_pushforward(vectors: np.ndarray, inner: np.ndarray, covector: np.ndarray) -> np.ndarray:
    """What the library makes of it: the natural gradient of a linear function on a linear model,
    pushed forward.
    """
    # The arrays are data of the problem, so that one compilation serves all.
    problem = pb.Composite(
        eqx.Partial(jnp.matmul, jnp.asarray(vectors)),
        loss=eqx.Partial(jnp.vdot, jnp.asarray(covector)),
        metric=pb.metric.Riemannian(eqx.Partial(_constant, jnp.asarray(inner))),
    )
    return np.asarray(pb.natural_gradient(problem, jnp.zeros(vectors.shape[1])).pushforward)


def _constant(matrix, z):
    return matrix


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Every rank, with random inverses."""
    rng = generator(key)
    worst = dict.fromkeys(("inverse", "random", "pseudo", "library", "graded"), 0.0)
    least = dict.fromkeys(("asymmetry", "coefficients", "control"), np.inf)
    for rank in RANKS * budget.seeds:
        e, b, omega = spanning_set(rng, rank)
        g = e.T @ b @ e
        pulled = e.T @ omega
        expected = projector(e, b, rank) @ np.linalg.solve(b, omega)
        pseudo = np.linalg.pinv(g, rcond=1e-12)
        for _ in range(INVERSES):
            x = random_inverse(rng, g)
            worst["inverse"] = max(worst["inverse"], distance(g @ x @ g, g))
            worst["random"] = max(worst["random"], distance(e @ (x @ pulled), expected))
            least["asymmetry"] = min(least["asymmetry"], asymmetry(x))
            least["coefficients"] = min(
                least["coefficients"], distance(x @ pulled, pseudo @ pulled)
            )
        worst["pseudo"] = max(worst["pseudo"], distance(e @ (pseudo @ pulled), expected))
        worst["library"] = max(
            worst["library"], distance(natural_pushforward(e, b, omega), expected)
        )
        least["control"] = min(
            least["control"], distance(e @ np.linalg.solve(g + np.eye(VECTORS), pulled), expected)
        )
        e, b, omega = spanning_set(rng, rank, SMALL)
        expected = projector(e, b, rank) @ np.linalg.solve(b, omega)
        worst["graded"] = max(worst["graded"], distance(natural_pushforward(e, b, omega), expected))

    ranks = f"{INVERSES} random X for each rank {RANKS[0]} to {RANKS[-1]}"
    return Measured(
        (
            at_most(f"the vector is Π(v), {ranks}: largest error", worst["random"], 1e-11),
            at_most("the same with the Moore-Penrose inverse", worst["pseudo"], 1e-12),
            at_most("the same with pullback.natural_gradient", worst["library"], 1e-12),
            at_most(
                f"and for singular values from 2 down to {SMALL:g}, where the rank is to be found",
                worst["graded"],
                1e-7,
            ),
            at_most("G X G = G: largest relative error", worst["inverse"], 1e-12, Role.CONTROL),
            at_least(
                "X is not symmetric: norm of its antisymmetric part, smallest",
                least["asymmetry"],
                0.1,
                Role.CONTROL,
            ),
            at_least(
                "the coefficients X ω differ from G⁺ω by, smallest",
                least["coefficients"],
                0.1,
                Role.CONTROL,
            ),
            at_least(
                "(G + I)⁻¹, no generalised inverse, misses Π(v) by, smallest",
                least["control"],
                0.01,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="lemma-1",
    source="invariance",
    place="Lemma 1, (10)",
    quotation="not necessarily linearly independent",
    statement=(
        "Any generalised inverse of the Gram matrix of any spanning set, dependent or not, leads "
        "to the projection of the gradient on the span."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
