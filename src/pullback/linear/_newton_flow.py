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
triangle of a QR of \(W^{1/2}\tilde X\). Near a solution the D heaviest rows all weigh about
\(e^{-t}\). Rounding in the matrix slows the convergence but does not change the solution, which the
residual determines. This runs on the host, in NumPy: the number of steps is not known beforehand.
"""

import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters

STRIDE = 2.0
"""The longest early step in t between two solves."""
LARGEST = 3.0
"""The largest change of a logit in one Newton step: each unit changes the weights by a factor e."""
ON_THE_WAY = 1e-3
"""The tolerance before the last solve."""
PIVOT = 40.0
"""The spread of the log-weights beyond which columns are pivoted, at several times the cost."""
LIGHTEST = -1200.0
"""The log-weight relative to the heaviest row below which a row has no influence."""


def independent_rows(x: np.ndarray) -> bool:
    """Whether the rows of a matrix are linearly independent."""
    if x.shape[0] > x.shape[1]:
        return False
    s = np.linalg.svd(x, compute_uv=False)
    return bool(s[-1] > max(x.shape) * np.finfo(s.dtype).eps * s[0])


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
    # The flow moves in the row space: coordinates there, of which there may be fewer than columns.
    _, s, vt = np.linalg.svd(x, full_matrices=False)
    rank = int(np.sum(s > max(x.shape) * np.finfo(s.dtype).eps * s[0]))
    basis = np.eye(x.shape[1]) if rank == x.shape[1] else vt[:rank].T
    return beta + basis @ _path(start, x @ basis, t, tolerance)


def _path(start: np.ndarray, x: np.ndarray, t: float, tolerance: float) -> np.ndarray:
    """The displacement at time t, by Euler steps of the flow, each corrected by Newton's method."""
    now = 0.0
    moved = np.zeros(x.shape[1])
    while now < t:
        step = _newton_step(start + x @ moved, x, None)
        largest = float(np.max(np.abs(x @ step)))
        # Late, all logits grow in proportion to t and the flow is a straight line. Both bounds grow
        # with t: on the stride itself, and on the change of the logits along it.
        longest = max(STRIDE, now / 4)
        bounded = max(LARGEST, now / 4) / max(largest, 1e-300)
        stride = min(longest, bounded, t - now)
        now = t if stride == t - now else now + stride
        # Before the last step it is enough to stay near the path.
        accuracy = tolerance if now == t else max(tolerance, ON_THE_WAY)
        moved = _corrected(moved + stride * step, start, x, now, accuracy)
    return moved


def _newton_step(u: np.ndarray, x: np.ndarray, log_target: np.ndarray | None) -> np.ndarray:
    """The solution δ of XᵀWXδ = Xᵀ(φ(-u) - exp(log target)).

    Without a target it is minus the natural gradient. Both sides are divided by the largest weight.
    """
    log_weights = scipy.special.log_expit(u) + scipy.special.log_expit(-u)
    heaviest = np.max(log_weights)
    defect = np.exp(scipy.special.log_expit(-u) - heaviest)
    if log_target is not None:
        defect = defect - np.exp(log_target - heaviest)
    order = np.argsort(-log_weights)
    half = np.maximum(log_weights[order] - heaviest, LIGHTEST) / 2
    scaled = x[order] * np.exp(half)[:, None]
    if half[0] - half[-1] > PIVOT / 2:
        found = scipy.linalg.qr(
            scaled, mode="r", pivoting=True, overwrite_a=True, check_finite=False
        )
        r = found[0]
        columns = found[-1]
    else:
        r = np.linalg.qr(scaled, mode="r")
        columns = slice(None)
    r = r[: x.shape[1]]
    step = np.empty(x.shape[1])
    inner = scipy.linalg.solve_triangular(r, (x.T @ defect)[columns], trans=1, check_finite=False)
    step[columns] = scipy.linalg.solve_triangular(r, inner, check_finite=False)
    return step


def _corrected(
    moved: np.ndarray, start: np.ndarray, x: np.ndarray, t: float, tolerance: float, most: int = 200
) -> np.ndarray:
    """The solution of ∇L(β) = e⁻ᵗ∇L(β₀), by Newton steps of at most `LARGEST` in the logits."""
    change = float("inf")
    target = scipy.special.log_expit(-start) - t
    for _ in range(most):
        u = start + x @ moved
        step = _newton_step(u, x, target)
        longest = float(np.max(np.abs(x @ step)))
        before = change
        change = longest / max(1.0, float(np.max(np.abs(u))))
        if not np.isfinite(change):
            break
        moved = moved + min(1.0, LARGEST / max(longest, 1e-300)) * step
        # The second test: at the level of rounding the steps no longer shrink.
        if change < tolerance or (change < 1e-6 and change > before / 2):
            return moved
    raise RuntimeError(
        f"Logistic.flow found no solution at t = {t}: the last Newton step changes the logits by "
        f"{change:.3g}, relative to the largest."
    )
