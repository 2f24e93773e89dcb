r"""The classifiers that Euclidean gradient flow is known to tend to, as convex (or concave)
programs.

\[ \min \lVert\beta\rVert_p \quad\text{subject to}\quad \tilde x_i \cdot \beta \ge 1. \]

- `l2_margin`: the support vector machine without slack, a least-distance problem; by non-negative
  least squares (Lawson and Hanson): with \(E = [\tilde X\ \ 1]^\top\), \(f = (0, 1)\) and \(r =
  E\hat z - f\) at \(\hat z = \arg\min_{z \ge 0}\lVert Ez - f\rVert\), \(\beta =
  -r_{1..D}/r_{D+1}\).
- `l1_margin`: a linear program in the positive and negative parts.
- `lp_margin`, p < 1: concave in each orthant, so a minimum is at a vertex but there are many local
  ones. Iteratively reweighted \(\ell_1\) from the \(\ell_1\) solution and from random reweightings
  of it: the best vertex found. No certificate that it is the global minimum.
- `l2_interpolant` \(X^+y\), `l1_interpolant`: the shortest solutions of \(X\beta = y\).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float
from scipy.optimize import linprog, nnls

from . import _check


def _signed(x: Any, y: Any) -> tuple[np.ndarray, Any]:
    x, y = _check.samples(x, y)
    return np.asarray(y[:, None] * x, float), x.dtype


def _solved(solution: Any) -> np.ndarray:
    if solution.status == 2:
        raise ValueError("x, y: no homogeneous linear classifier separates these data.")
    if not solution.success:
        raise RuntimeError(f"the linear program was not solved: {solution.message}")
    return np.asarray(solution.x)


def l2_margin(x: Float[ArrayLike, "N D"], y: Float[ArrayLike, " N"]) -> Float[Array, " D"]:
    """The classifier of least Euclidean norm with margins of at least 1.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1.
    """
    rows, dtype = _signed(x, y)
    e = np.vstack([rows.T, np.ones(rows.shape[0])])
    f = np.append(np.zeros(rows.shape[1]), 1.0)
    residual = e @ nnls(e, f, maxiter=30 * max(e.shape))[0] - f
    if abs(residual[-1]) < 1e-10:
        raise ValueError("x, y: no homogeneous linear classifier separates these data.")
    return jnp.asarray(-residual[:-1] / residual[-1], dtype)


def _weighted_l1(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    solution = linprog(
        np.concatenate([weights, weights]),
        A_ub=np.hstack([-rows, rows]),
        b_ub=-np.ones(rows.shape[0]),
        bounds=(0, None),
        method="highs",
    )
    return np.subtract(*np.split(_solved(solution), 2))


def l1_margin(x: Float[ArrayLike, "N D"], y: Float[ArrayLike, " N"]) -> Float[Array, " D"]:
    """The classifier of least ℓ1 norm with margins of at least 1.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1.
    """
    rows, dtype = _signed(x, y)
    return jnp.asarray(_weighted_l1(rows, np.ones(rows.shape[1])), dtype)


def lp_margin(
    x: Float[ArrayLike, "N D"], y: Float[ArrayLike, " N"], p: float, starts: int = 8, seed: int = 0
) -> Float[Array, " D"]:
    """The classifier of least ℓp quasi-norm found, 0 < p ≤ 1; p = 2/L belongs to a diagonal network
    of depth L ≥ 2.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1.
    - `p`: the exponent.
    - `starts`: how many starts, the ℓ1 solution and random reweightings.
    - `seed`: of the reweightings.
    """
    if not 0 < p <= 1:
        raise ValueError(f"lp_margin(p={p}): p must be in (0, 1]; for p = 2 call l2_margin.")
    if starts < 1:
        raise ValueError(f"lp_margin(starts={starts}): starts must be at least 1.")
    rows, dtype = _signed(x, y)
    rng, best, least = np.random.default_rng(seed), None, np.inf
    for start in range(starts):
        weights = (
            np.ones(rows.shape[1]) if start == 0 else rng.exponential(size=rows.shape[1]) + 1e-3
        )
        value = np.inf
        while True:
            beta = _weighted_l1(rows, weights)
            norm = float(np.sum(np.abs(beta) ** p))
            if norm >= value * (1 - 1e-9):
                break
            value = norm
            if value < least:
                best, least = beta, value
            floor = 1e-6 * np.max(np.abs(beta))
            weights = (np.abs(beta) + floor) ** (p - 1) * floor ** (1 - p)
    return jnp.asarray(best, dtype)


def l2_interpolant(
    x: Float[ArrayLike, "N D"], target: Float[ArrayLike, " N"]
) -> Float[Array, " D"]:
    """X⁺ target: ordinary least squares, of least norm where N < D.

    **Arguments:**

    - `x`: inputs.
    - `target`: what to fit.
    """
    x = _check.floating("x", x, 2)
    target = _check.like("target", target, x.shape[0], "one a row of x").astype(x.dtype)
    return jnp.linalg.lstsq(x, target)[0]


def l1_interpolant(
    x: Float[ArrayLike, "N D"], target: Float[ArrayLike, " N"]
) -> Float[Array, " D"]:
    """The solution of Xβ = target of least ℓ1 norm.

    **Arguments:**

    - `x`: inputs.
    - `target`: what to fit.
    """
    x = _check.floating("x", x, 2)
    target = _check.like("target", target, x.shape[0], "one a row of x")
    rows = np.asarray(x, float)
    solution = linprog(
        np.ones(2 * rows.shape[1]),
        A_eq=np.hstack([rows, -rows]),
        b_eq=np.asarray(target, float),
        bounds=(0, None),
        method="highs",
    )
    if solution.status == 2:
        raise ValueError("x, target: nothing interpolates the target; the rows of x are dependent.")
    return jnp.asarray(np.subtract(*np.split(_solved(solution), 2)), x.dtype)
