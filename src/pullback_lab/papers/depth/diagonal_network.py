r"""The natural gradient of a diagonal network, \(\beta = w_1\odot\cdots\odot w_L\), as the source
computes it, B.2: solve

\[ F(\beta)\,J\,\delta = \nabla_\beta L, \qquad J_{i,(l,k)} = \delta_{ik}\,c_{l,i}, \quad c_l =
\textstyle\prod_{m \ne l} w_m, \tag{26} \]

by a least squares routine that is said to return the solution of least norm.

**Corrected**, twice. (a) (26) is the definition, \(J^\top FJ\delta = J^\top\nabla_\beta L\), only
if \(J\) is onto. Once a coordinate is zero in two layers its row of \(J\) vanishes, and the least
squares answer to (26) is not the projection. (b) Only rank revealing drivers (LAPACK gelsy, gelsd)
return the solution of least norm; gels assumes full rank, and \(F\) has rank \(N\) if \(N < D\).
Which one a call to a library means depends on version and device.

Where \(J\) is onto and \(F\) invertible, \(\delta_l = c_l\,\delta_\beta/\sum_m c_m^2\) coordinate
by coordinate.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._logistic import DIAGONAL, batch, fisher, gradient, separable


def jacobian(weights: np.ndarray) -> np.ndarray:
    """∂β/∂w, D x LD, by eq. (28)."""
    others = [np.prod(np.delete(weights, i, axis=0), axis=0) for i in range(len(weights))]
    return np.hstack([np.diag(c) for c in others])


def library(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The natural gradient of the library, flat."""
    return np.asarray(
        pb.natural_gradient(DIAGONAL, jnp.asarray(weights), batch(x, y)).vector
    ).ravel()


def least_norm(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """F(w)⁺∇_w, in NumPy."""
    j = jacobian(weights)
    beta = np.prod(weights, axis=0)
    return np.linalg.pinv(j.T @ fisher(x, beta) @ j, rcond=1e-11, hermitian=True) @ (
        j.T @ gradient(x, y, beta)
    )


def as_printed(weights: np.ndarray, x: np.ndarray, y: np.ndarray, driver: str) -> np.ndarray:
    """The least squares answer to (26) of a LAPACK driver."""
    beta = np.prod(weights, axis=0)
    matrix = fisher(x, beta) @ jacobian(weights)
    right = gradient(x, y, beta)
    if driver != "gels":
        found: Any = scipy.linalg.lstsq(matrix, right, cond=1e-11, lapack_driver=driver)
        return np.asarray(found[0])
    padded = np.concatenate([right, np.zeros(max(0, matrix.shape[1] - right.size))])
    found = scipy.linalg.get_lapack_funcs("gels", (matrix,))(matrix, padded[:, None])
    return np.asarray(found[1])[: matrix.shape[1], 0]


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Regular networks, one with a dead coordinate, and fewer samples than columns."""
    rng = generator(key)
    tall = []
    closed = []
    dead = []
    projection = []
    drivers = {"gelsd": [], "gelsy": []}
    full_rank = []
    for _ in range(max(budget.seeds, 3)):
        x, y = separable(rng, 12, 4)
        w = rng.uniform(0.5, 1.5, (3, 4)) * rng.choice([-1.0, 1.0], (3, 4))
        found = as_printed(w, x, y, "gelsd")
        expected = least_norm(w, x, y)
        tall += [distance(found, expected), distance(library(w, x, y), expected)]
        c = jacobian(w).reshape(4, 3, 4).sum(axis=0)
        ambient = np.linalg.solve(fisher(x, w.prod(axis=0)), gradient(x, y, w.prod(axis=0)))
        closed.append(distance(expected, (c * ambient / (c**2).sum(axis=0)).ravel()))
        w[:2, 0] = 0.0  # zero in two layers
        j = jacobian(w)
        dead.append(distance(j @ as_printed(w, x, y, "gelsd"), j @ least_norm(w, x, y)))
        projection.append(distance(j @ library(w, x, y), j @ least_norm(w, x, y)))
        x, y = separable(rng, 4, 9)
        w = rng.uniform(0.5, 1.5, (2, 9))
        expected = library(w, x, y)
        for driver, gaps in drivers.items():
            gaps.append(distance(as_printed(w, x, y, driver), expected))
        full_rank.append(distance(as_printed(w, x, y, "gels"), expected))
    rows = (
        at_most(
            "J onto, N ≥ D: (26) by gelsd, and the library, against F(w)⁺∇_w",
            max(tall),
            1e-8,
            Role.KEPT,
        ),
        at_most("N < D: (26) by a driver that assumes full rank (gels)", max(full_rank), 1e-6),
        at_most(
            "a coordinate zero in two layers: motion of β by (26) against the projection",
            max(dead),
            1e-6,
        ),
        at_most("the same by G⁺g, the library", max(projection), 1e-8, Role.CORRECTED),
        at_most(
            "N < D: (26) by gelsd and by gelsy",
            max(max(g) for g in drivers.values()),
            1e-6,
            Role.CORRECTED,
        ),
        at_most("J onto, F invertible: c_l δ_β/Σ c²", max(closed), 1e-8, Role.CORRECTED),
        at_least("control: gels returns numbers, off by", min(full_rank), 1e-3, Role.CONTROL),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-diagonal-network",
    source="depth",
    place="appendix B.2, eqs. (26) to (31)",
    quotation="least squares solver which finds the solution with the lowest l2 norm",
    statement=(
        "The natural gradient of a diagonal network is the solution of F J δ = ∇_β that a least "
        "squares routine finds, the one of least norm."
    ),
    verdict=Verdict.CORRECTED,
    stands=True,
    run=run,
    correction=(
        "F J δ = ∇_β is the definition only if J is onto, and only rank revealing drivers return "
        "the solution of least norm when F is singular."
    ),
    key_number="a coordinate zero in two layers: motion of β by (26) against the projection",
)
