r"""The classifiers that Euclidean gradient flow is known to tend to, by convex or concave programs.

\[ \min \lVert\beta\rVert_p \quad\text{subject to}\quad \tilde x_i \cdot \beta \ge 1. \]

- `l2_margin`: the support vector machine without slack, a least-distance problem; by non-negative
  least squares (Lawson and Hanson): with \(E = [\tilde X\ \ 1]^\top\), \(f = (0, 1)\) and \(r =
  E\hat z - f\) at \(\hat z = \arg\min_{z \ge 0}\lVert Ez - f\rVert\), \(\beta =
  -r_{1..D}/r_{D+1}\). There \(r_{D+1} = -1/(1 + \lVert\beta\rVert^2)\), so that the rows are
  first scaled to \(\lVert\beta\rVert = 1\).
- `l1_margin`: a linear program in the positive and negative parts.
- `lp_margin`, p < 1: concave in each orthant, so minima are at vertices, and many are local.
  Iteratively reweighted \(\ell_1\) starts from the \(\ell_1\) solution and from random reweightings
  of it, and returns the best vertex found. Nothing certifies that it is the global minimum.
- `l2_interpolant` \(X^+y\), `l1_interpolant`: the shortest solutions of \(X\beta = y\).
"""

import jax.numpy as jnp
import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters
from jaxtyping import Array, ArrayLike, Float

from .._base import checks

INSEPARABLE = "(x, y): no homogeneous linear classifier separates these data."
CLOSE = 1e-6
"""What the tolerances of a linear program may take from a margin of 1."""


def _signed(
    owner: str, x: Float[ArrayLike, "N D"], y: Float[ArrayLike, " N"]
) -> tuple[np.ndarray, jnp.dtype]:
    """The inputs times their labels on the host, and the dtype of the result."""
    x, y = checks.labelled(owner, x, y)
    return np.asarray(y[:, None] * x, float), x.dtype


def _solved(owner: str, solution: "scipy.optimize.OptimizeResult") -> np.ndarray:
    """The solution of a linear program; raises if there is none."""
    if solution.status == 2:
        raise ValueError(owner + INSEPARABLE)
    if not solution.success:
        raise RuntimeError(f"{owner}: the linear program was not solved: {solution.message}")
    return np.asarray(solution.x)


def l2_margin(x: Float[ArrayLike, "N D"], y: Float[ArrayLike, " N"]) -> Float[Array, " D"]:
    """The classifier of least Euclidean norm with margins of at least 1.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1.
    """
    rows, dtype = _signed("l2_margin", x, y)
    f = np.append(np.zeros(rows.shape[1]), 1.0)
    # At most the norm of the result; then that norm itself.
    scale = 1 / np.min(_sizes("l2_margin", rows))
    for _ in range(2):
        e = np.vstack([rows.T * scale, np.ones(rows.shape[0])])
        e = e / np.linalg.norm(e, axis=0)
        residual = e @ scipy.optimize.nnls(e, f, maxiter=30 * max(e.shape))[0] - f
        beta = -residual[:-1] / (residual[-1] or 1.0) * scale
        # Without a classifier the residual is zero, and what is left of it is rounding.
        if not np.min(rows @ beta) > 0.5:
            raise ValueError("l2_margin" + INSEPARABLE)
        scale = np.linalg.norm(beta)
    return jnp.asarray(beta, dtype)


def _sizes(owner: str, rows: np.ndarray) -> np.ndarray:
    """The largest entry of each row; raises if a row is zero, for it has no side."""
    sizes = np.max(np.abs(rows), axis=1)
    if not np.all(sizes > 0):
        raise ValueError(owner + INSEPARABLE)
    return sizes


def _weighted_l1(owner: str, rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The classifier of least weighted ℓ1 norm with margins of at least 1."""
    # The program has absolute tolerances, and drops entries below 1e-9: rows of order one, and the
    # largest of the margins one.
    sizes = _sizes(owner, rows)
    least, unit = np.min(sizes), rows / sizes[:, None]
    solution = scipy.optimize.linprog(
        np.concatenate([weights, weights]),
        A_ub=np.hstack([-unit, unit]),
        b_ub=-least / sizes,
        bounds=(0, None),
        method="highs",
    )
    beta = np.subtract(*np.split(_solved(owner, solution), 2)) / least
    if not np.min(rows @ beta) >= 1 - CLOSE:
        raise RuntimeError(
            f"{owner}: the linear program was not solved, because rows of x differ in size by "
            f"{np.max(sizes) / least:.0e}. Leave out rows that are much longer than others: they "
            "have no margin of 1."
        )
    return beta


def l1_margin(x: Float[ArrayLike, "N D"], y: Float[ArrayLike, " N"]) -> Float[Array, " D"]:
    """The classifier of least ℓ1 norm with margins of at least 1.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1.
    """
    rows, dtype = _signed("l1_margin", x, y)
    return jnp.asarray(_weighted_l1("l1_margin", rows, np.ones(rows.shape[1])), dtype)


def lp_margin(
    x: Float[ArrayLike, "N D"], y: Float[ArrayLike, " N"], p: float, starts: int = 8, seed: int = 0
) -> Float[Array, " D"]:
    """The best classifier found of least ℓp quasi-norm, 0 < p ≤ 1, with margins of at least 1.

    A diagonal network of depth L ≥ 2 belongs to p = 2/L.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1.
    - `p`: the exponent.
    - `starts`: the number of starts: the ℓ1 solution, then random reweightings.
    - `seed`: the seed of the reweightings.
    """
    if not 0 < p <= 1:
        example = "lp_margin(x, y, p=0.5); for p = 2 call l2_margin"
        raise checks.error("lp_margin", "p", p, "in (0, 1]", example)
    starts = checks.integer("lp_margin", "starts", starts, least=1)
    rows, dtype = _signed("lp_margin", x, y)
    rng = np.random.default_rng(seed)
    best = None
    least = np.inf
    for start in range(starts):
        weights = (
            np.ones(rows.shape[1]) if start == 0 else rng.exponential(size=rows.shape[1]) + 1e-3
        )
        value = np.inf
        while True:
            beta = _weighted_l1("lp_margin", rows, weights)
            norm = float(np.sum(np.abs(beta) ** p))
            if norm >= value * (1 - 1e-9):
                break
            value = norm
            if value < least:
                best = beta
                least = value
            # The derivative of |β|^p, bounded where β = 0 and scaled to be at most 1.
            floor = 1e-6 * np.max(np.abs(beta))
            weights = (np.abs(beta) + floor) ** (p - 1) * floor ** (1 - p)
    return jnp.asarray(best, dtype)


def l2_interpolant(
    x: Float[ArrayLike, "N D"], target: Float[ArrayLike, " N"]
) -> Float[Array, " D"]:
    """X⁺ target: ordinary least squares, of least norm where N < D.

    **Arguments:**

    - `x`: inputs.
    - `target`: one number per row of `x`, to fit.
    """
    x = checks.floating("l2_interpolant", "x", x, 2)
    target = checks.vector("l2_interpolant", "target", target, x.shape[0], "one per row of x")
    target = target.astype(x.dtype)
    return jnp.linalg.lstsq(x, target)[0]


def l1_interpolant(
    x: Float[ArrayLike, "N D"], target: Float[ArrayLike, " N"]
) -> Float[Array, " D"]:
    """The solution of Xβ = target of least ℓ1 norm.

    **Arguments:**

    - `x`: inputs.
    - `target`: one number per row of `x`, to fit.
    """
    x = checks.floating("l1_interpolant", "x", x, 2)
    target = checks.vector("l1_interpolant", "target", target, x.shape[0], "one per row of x")
    rows, target = np.asarray(x, float), np.asarray(target, float)
    # The program has absolute tolerances, and drops entries below 1e-9.
    sizes = np.max(np.abs(rows), axis=1)
    sizes = np.where(sizes > 0, sizes, 1.0)
    rows, target = rows / sizes[:, None], target / sizes
    scale = np.max(np.abs(target), initial=0.0) or 1.0
    solution = scipy.optimize.linprog(
        np.ones(2 * rows.shape[1]),
        A_eq=np.hstack([rows, -rows]),
        b_eq=target / scale,
        bounds=(0, None),
        method="highs",
    )
    if solution.status == 2:
        raise ValueError(
            "l1_interpolant(x, target): nothing interpolates the target; the rows of x are "
            "dependent."
        )
    beta = scale * np.subtract(*np.split(_solved("l1_interpolant", solution), 2))
    return jnp.asarray(beta, x.dtype)
