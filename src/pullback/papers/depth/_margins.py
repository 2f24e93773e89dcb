r"""Directions in which separators of a separable set go, from convex programs; \(\tilde x_i = y_i x_i\).

- `l2_margin`: \(\min \lVert v\rVert_2\) subject to \(\tilde x_i\cdot v \ge 1\), by non-negative least squares (Lawson and Hanson): with \(E = [\tilde X\ \mathbf 1]^\top\)
  and \(\rho = Ew - e_{D+1}\) its least residual for \(w \ge 0\), \(v = -\rho_{1..D}/\rho_{D+1}\).
- `l1_margin`: \(\min \lVert v\rVert_1\), same constraints, a linear program in \(v = p - q\).
- `natural_margin`: \(\min \sum_i q_i\,\tilde x_i\cdot v\), same constraints, \(q_i = \varphi(-u_i(0))\): the limit of the natural flow (`limit_direction`).
- `l1_interpolant`: \(\min \lVert v\rVert_1\) subject to \(Xv = y\).
"""

import numpy as np
from scipy.optimize import linprog, nnls


def l2_margin(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The vector of least Euclidean norm with margins of at least 1.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1, separable.
    """
    signed = y[:, None] * x
    matrix = np.vstack([signed.T, np.ones(len(x))])
    target = np.zeros(x.shape[1] + 1)
    target[-1] = 1.0
    residual = matrix @ nnls(matrix, target, maxiter=100 * len(x))[0] - target
    return -residual[:-1] / residual[-1]


def l1_margin(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The vector of least l1 norm with margins of at least 1.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1, separable.
    """
    signed = y[:, None] * x
    return _split(np.hstack([-signed, signed]), -np.ones(len(x)), None, None)


def l1_interpolant(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The vector of least l1 norm with X v = y.

    **Arguments:**

    - `x`, `y`: inputs and targets.
    """
    return _split(None, None, np.hstack([x, -x]), y)


def natural_margin(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The vector with margins of at least 1 whose weighted sum of margins is least.

    **Arguments:**

    - `x`, `y`: inputs and labels ±1, separable.
    - `weights`: q; all equal if left out, as for a start at zero.
    """
    signed = y[:, None] * x
    cost = np.mean(signed, axis=0) if weights is None else weights @ signed / np.sum(weights)
    return _solved(linprog(cost, A_ub=-signed, b_ub=-np.ones(len(x)), bounds=(None, None)))


def _split(above, level, matrix, right) -> np.ndarray:
    columns = (above if above is not None else matrix).shape[1]
    both = _solved(linprog(np.ones(columns), A_ub=above, b_ub=level, A_eq=matrix, b_eq=right))
    return both[: columns // 2] - both[columns // 2 :]


def _solved(result) -> np.ndarray:
    if result.status != 0:
        raise RuntimeError(f"the linear program was not solved: {result.message}")
    return np.asarray(result.x)
