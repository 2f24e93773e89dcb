r"""Lemma 1. Let \(e_1, \dots, e_d\) be any vectors of an inner product space, dependent or not, \(G_{ij} = \langle e_i, e_j\rangle\), and
\(X\) any matrix with \(GXG = G\). Then for the vector \(v\) that represents the covector \(\omega\),

\[ \Pi(v) = X^{ij}\,\omega(e_j)\,e_i, \]

\(\Pi\) the orthogonal projection on the span. The coefficients \(X^{ij}\omega(e_j)\) depend on \(X\), the vector does not.

In the proof \(\omega(e_i) = G_{ij}a^j\) holds for the coordinates \(a\) of \(\Pi(v)\); the paper says of \(v\), which has none if it is not
in the span.
"""

from collections.abc import Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import pullback as pb

from .._example import Example, Row, at_least, at_most, distance
from .._inverses import asymmetry, projector, random_inverse

SPACE, VECTORS, RANKS, INVERSES = 6, 8, (1, 2, 3, 4), 20


def spanning_set(rng: np.random.Generator, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random vectors as columns, of prescribed rank; the matrix of an inner product; a covector.

    **Arguments:**

    - `rng`: the source of all three.
    - `rank`: the dimension of the span.
    """
    left, right = (np.linalg.qr(rng.standard_normal((n, rank)))[0] for n in (SPACE, VECTORS))
    vectors = left @ np.diag(rng.uniform(0.5, 2.0, rank)) @ right.T
    factor = rng.standard_normal((SPACE, SPACE))
    return vectors, factor @ factor.T + np.eye(SPACE), rng.standard_normal(SPACE)


def natural_pushforward(vectors: np.ndarray, inner: np.ndarray, covector: np.ndarray) -> np.ndarray:
    """What the library makes of it: the natural gradient of a linear function on a linear model, pushed forward.

    **Arguments:**

    - `vectors`: the columns of the model.
    - `inner`: the matrix of the inner product.
    - `covector`: the differential of the function.
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


def measure() -> Iterator[Row]:
    """Every rank, with random inverses."""
    rng, worst = np.random.default_rng(0), dict.fromkeys(("inverse", "random", "pseudo", "library", "coordinates"), 0.0)
    least = dict.fromkeys(("asymmetry", "coefficients", "control"), np.inf)
    for rank in RANKS:
        e, b, omega = spanning_set(rng, rank)
        g, pulled = e.T @ b @ e, e.T @ omega
        expected = projector(e, b, rank) @ np.linalg.solve(b, omega)
        pseudo = np.linalg.pinv(g, rcond=1e-12)
        for _ in range(INVERSES):
            x = random_inverse(rng, g)
            worst["inverse"] = max(worst["inverse"], distance(g @ x @ g, g))
            worst["random"] = max(worst["random"], distance(e @ (x @ pulled), expected))
            least["asymmetry"] = min(least["asymmetry"], asymmetry(x))
            least["coefficients"] = min(least["coefficients"], distance(x @ pulled, pseudo @ pulled))
        coordinates = np.linalg.lstsq(e, expected, rcond=1e-12)[0]
        worst["pseudo"] = max(worst["pseudo"], distance(e @ (pseudo @ pulled), expected))
        worst["library"] = max(worst["library"], distance(natural_pushforward(e, b, omega), expected))
        worst["coordinates"] = max(worst["coordinates"], distance(g @ coordinates, pulled))
        least["control"] = min(least["control"], distance(e @ np.linalg.solve(g + np.eye(VECTORS), pulled), expected))

    yield at_most(
        f"G X G = G, {INVERSES} random X for each rank {RANKS[0]} to {RANKS[-1]}: largest relative error", worst["inverse"], 1e-12
    )
    yield at_least("X is not symmetric: norm of the antisymmetric part relative to X, smallest", least["asymmetry"], 0.1)
    yield at_least("the coefficients X ω differ from G⁺ω by, smallest", least["coefficients"], 0.1)
    yield at_most("yet the vector is Π(v): largest error", worst["random"], 1e-11)
    yield at_most("with the Moore-Penrose inverse", worst["pseudo"], 1e-12)
    yield at_most("with pullback.natural_gradient", worst["library"], 1e-12)
    yield at_most("ω(eᵢ) = Gᵢⱼaʲ for the coordinates a of Π(v)", worst["coordinates"], 1e-12)
    yield at_least("control: (G + I)⁻¹, no {1}-inverse, misses Π(v) by", least["control"], 0.01)


EXAMPLE = Example(
    "lemma-1",
    "van Oostrum, Müller, Ay, Lemma 1",
    "Any generalised inverse of the Gram matrix of any spanning set, dependent or not, leads to the projection of the gradient on the span.",
    measure,
)
