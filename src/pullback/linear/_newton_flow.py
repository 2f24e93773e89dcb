r"""Natural gradient flow of logistic regression at any time, from one convex problem.

The Fisher matrix of \(L = \sum_i \log(1 + e^{-u_i})\), \(u = \tilde X\beta\), is the Hessian. So
\(\frac{d}{dt}\nabla L(\beta_t) = F\dot\beta_t = -\nabla L(\beta_t)\) and

\[ \nabla L(\beta_t) = e^{-t}\,\nabla L(\beta_0) \iff \beta_t = \arg\min_\beta\ \sum_i \log(1 +
e^{-u_i}) + e^{-t} q_i u_i, \qquad q_i = \varphi(-u_i(0)). \]

*Independent rows.* Then \(\varphi(-u_i(t)) = e^{-t} q_i\) for each i, that is \(\log(1 +
e^{u_i(t)}) = t + \log(1 + e^{u_i(0)})\), and with the Moore-Penrose inverse \(\beta_t = \beta_0 +
\tilde X^{+}(u(t) - u(0))\).

*Otherwise* Newton's method along the path in t: a step of the flow starts each solve, whose steps
\(\delta\) come from \(\tilde X^\top W\tilde X\delta = \tilde X^\top(\varphi(-u) - e^{-t}q)\) by the
triangle of a QR of \(W^{1/2}\tilde X\). Rounding in the matrix slows the convergence but does not
change the solution, which the residual determines. This runs on the host, in NumPy: the number of
steps is not known beforehand.

*Rounding in the residual.* Where heavy rows span less than all columns (the linear program of
`_limit.py` has many optima, or a part of the data is not separable), rows of weight \(e^{-mt}\),
\(m > 1\), decide what is left, and are lost in a residual of size \(e^{-t}\). So after each solve
the rounding of the residual is followed into the logits. Where it exceeds `LOST` times the largest,
the path continues in as many digits as the rows need (`_long_flow.py`).
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters

from ._long_flow import long_path
from ._stride import LARGEST, ON_THE_WAY, stride

PIVOT = 40.0
"""The spread of the log-weights beyond which columns are pivoted, at several times the cost."""
LOST = 1e-12
"""The effect of rounding on the logits, relative to the largest, beyond which digits are added."""
LIGHTEST = -1200.0
"""The log-weight relative to the heaviest row below which a row has no influence."""


def independent_rows(x: np.ndarray) -> bool:
    """Whether the rows of a matrix are linearly independent."""
    if x.shape[0] > x.shape[1]:
        return False
    s = np.linalg.svd(x, compute_uv=False)
    return bool(s[-1] > max(x.shape) * np.finfo(s.dtype).eps * s[0])


def independent_columns(x: np.ndarray) -> np.ndarray:
    """As many columns of a matrix as its rank, in their order, that span all of them."""
    order = scipy.linalg.qr(x, mode="r", pivoting=True, check_finite=False)[-1]
    s = np.linalg.svd(x, compute_uv=False)
    return np.sort(order[: int(np.sum(s > max(x.shape) * np.finfo(s.dtype).eps * s[0]))])


def units_of_columns(x: np.ndarray) -> np.ndarray:
    """The units in which all columns of a matrix have one size, where these are independent.

    They are 1 where the columns depend on each other: then the units decide what the least norm is.
    """
    # Powers of two, so that dividing by them does not round.
    units = np.ldexp(1.0, np.frexp(np.max(np.abs(x), axis=0))[1])
    return units if len(independent_columns(x / units)) == x.shape[1] else np.ones(x.shape[1])


def logits_in_closed_form(u: np.ndarray, t: float) -> np.ndarray:
    r"""The margins \(u(t)\) of the flow if the rows are independent.

    \(u(t) = \log(e^{t + c} - 1)\) with \(c = \log(1 + e^{u(0)})\).
    """
    level = t - scipy.special.log_expit(-u)
    # log(e^v - 1) = v + log(-expm1(-v)). For u very negative and t = 0, v underflows; there the
    # margin is u itself.
    return np.where(level > 0, level + np.log(-np.expm1(-np.where(level > 0, level, 1))), u)


def newton_flow(beta: np.ndarray, x: np.ndarray, t: float, tolerance: float) -> np.ndarray:
    """The flow at time t, from the start and the signed inputs."""
    start = x @ beta
    if independent_rows(x):
        return beta + np.linalg.lstsq(x, logits_in_closed_form(start, t) - start, rcond=None)[0]
    units = units_of_columns(x)
    beta, x = beta * units, x / units
    columns = independent_columns(x)
    few = x[:, columns]
    moved, now = _path(start, few, t, tolerance)
    if now < t:
        moved = long_path(beta, x, columns, moved, now, t, tolerance)
    if len(columns) == x.shape[1]:
        return (beta + moved) / units
    # The flow moves in the row space.
    return beta + np.linalg.lstsq(x, few @ moved, rcond=None)[0]


def _path(start: np.ndarray, x: np.ndarray, t: float, tolerance: float) -> tuple[np.ndarray, float]:
    """The displacement at time t by Euler steps of the flow, each corrected by Newton's method.

    The time is earlier if rounding hides what comes after it.
    """
    now = 0.0
    moved = np.zeros(x.shape[1])
    while now < t:
        step = _newton_step(start + x @ moved, x, None)
        ahead = stride(now, t, float(np.max(np.abs(x @ step))))
        later = t if ahead == t - now else now + ahead
        # Before the last step it is enough to stay near the path.
        accuracy = tolerance if later == t else max(tolerance, ON_THE_WAY)
        found = _corrected(moved + ahead * step, start, x, later, accuracy)
        if found is None:
            break
        moved, now = found, later
    return moved, now


class _Triangle(NamedTuple):
    """R with RᵀR = XᵀWX/e^heaviest, up to the order of the columns."""

    heaviest: float
    r: np.ndarray
    columns: Any

    def solve(self, covector: np.ndarray) -> np.ndarray:
        """The solution of RᵀRδ = covector; not finite where R is singular."""
        step = np.full(self.r.shape[1], np.inf)
        if np.all(np.diagonal(self.r) != 0):
            with np.errstate(over="ignore", invalid="ignore"):
                solve = partial(scipy.linalg.solve_triangular, self.r, check_finite=False)
                step[self.columns] = solve(solve(covector[self.columns], trans=1))
        return step


def _triangle(u: np.ndarray, x: np.ndarray) -> _Triangle:
    """The triangle at some margins."""
    log_weights = scipy.special.log_expit(u) + scipy.special.log_expit(-u)
    heaviest = float(np.max(log_weights))
    order = np.argsort(-log_weights)
    half = np.maximum(log_weights[order] - heaviest, LIGHTEST) / 2
    scaled = x[order] * np.exp(half)[:, None]
    if half[0] - half[-1] > PIVOT / 2:
        found = scipy.linalg.qr(
            scaled, mode="r", pivoting=True, overwrite_a=True, check_finite=False
        )
        return _Triangle(heaviest, found[0][: x.shape[1]], found[-1])
    r: Any = np.linalg.qr(scaled, mode="r")
    return _Triangle(heaviest, r, slice(None))


def _newton_step(u: np.ndarray, x: np.ndarray, log_target: np.ndarray | None) -> np.ndarray:
    """The solution δ of XᵀWXδ = Xᵀ(φ(-u) - exp(log target)).

    Without a target it is minus the natural gradient. Both sides are divided by the largest weight.
    """
    triangle = _triangle(u, x)
    defect = np.exp(scipy.special.log_expit(-u) - triangle.heaviest)
    if log_target is not None:
        defect = defect - np.exp(log_target - triangle.heaviest)
    return triangle.solve(x.T @ defect)


def _lost(u: np.ndarray, x: np.ndarray, log_target: np.ndarray) -> float:
    """The change of the logits by the rounding of the residual, relative to the largest logit."""
    triangle = _triangle(u, x)
    terms = np.exp(scipy.special.log_expit(-u) - triangle.heaviest)
    # The rounding of a logit is one of its row; that of the sums is one of every coordinate.
    in_rows = np.finfo(float).eps * np.abs(u) * terms
    terms = terms + np.exp(log_target - triangle.heaviest)
    in_sums = np.finfo(float).eps * (np.abs(x).T @ terms)
    found = []
    for seed in range(4):
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], sum(x.shape))
        noise = x.T @ (in_rows * signs[: len(u)]) + in_sums * signs[len(u) :]
        found.append(np.max(np.abs(x @ triangle.solve(noise))))
    return float(np.max(found)) / max(1.0, float(np.max(np.abs(u))))


def _corrected(
    moved: np.ndarray, start: np.ndarray, x: np.ndarray, t: float, tolerance: float, most: int = 200
) -> np.ndarray | None:
    """The solution of ∇L(β) = e⁻ᵗ∇L(β₀), by Newton steps of at most `LARGEST` in the logits.

    It is None where rounding hides the solution.
    """
    change = float("inf")
    target = scipy.special.log_expit(-start) - t
    for _ in range(most):
        u = start + x @ moved
        step = _newton_step(u, x, target)
        longest = float(np.max(np.abs(x @ step)))
        before = change
        change = longest / max(1.0, float(np.max(np.abs(u))))
        if not np.isfinite(change):
            return None
        moved = moved + min(1.0, LARGEST / max(longest, 1e-300)) * step
        # The second test: at the level of rounding the steps no longer shrink.
        if change < tolerance or (change < 1e-6 and change > before / 2):
            return moved if _lost(start + x @ moved, x, target) < LOST else None
    return None
