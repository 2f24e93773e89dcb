r"""The limit \(v = \lim_t \beta_t/t\) of natural gradient flow of logistic regression.

The data are separable.

*Independent rows* (N ≤ D): every margin grows as t, \(\tilde X v = 1\), and with the Moore-Penrose
inverse \(v = \tilde X^{+}1 = X^{+}y\), the ordinary least-squares solution of least norm.

*Otherwise*, put \(u_i = t\,m_i\) into \(\min_\beta \sum_i \log(1 + e^{-u_i}) + e^{-t}q_i u_i\)
(`_newton_flow.py`): a term \(e^{-u_i}\) is negligible against \(e^{-t}\) if \(m_i > 1\) and
dominates it if \(m_i < 1\). What is left is a linear program,

\[ v \in \arg\min_v\ \sum_i q_i\,\tilde x_i \cdot v \quad\text{subject to}\quad \tilde x_i \cdot v
\ge 1, \qquad q_i = \varphi(-u_i(0)), \]

which does not change under \(x \mapsto Ax,\ v \mapsto A^{-\top}v\): affine invariant, unlike any
margin measured in a norm.

*Several optima.* Rows with a positive multiplier have margin 1 in all of them. Along the optimal
face the cost is constant, and \(\sum e^{-u_i}\) over the other rows is left to minimise. As t grows
its largest term decides: \(v\) maximises the least margin of the other rows. Where several points
do, the rows with a positive multiplier are fixed at that margin, and the least margin of the rest
decides, until one point is left. (Rows whose margin is the same on the whole face decide nothing.)
The flow tends to this *lexicographic* optimum (Cominetti and San Martín, 1994).

Whether an optimum is unique is a question of exact zeros, so each program is solved in many digits
(`_program.py`), for the data as the floats are.
"""

import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters

from ._digits import ONE, ZERO, digits, exact, null_space, tail
from ._newton_flow import independent_columns, independent_rows, units_of_columns
from ._program import DIGITS, HALF, Infeasible, certain, optimum


def limit_direction(x: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The limit of β_t/t, from the signed inputs and the start."""
    if independent_rows(x):
        return np.linalg.lstsq(x, np.ones(x.shape[0]), rcond=None)[0]
    units = units_of_columns(x)
    beta, x = beta * units, x / units
    columns = independent_columns(x)
    try:
        if not len(columns):
            raise Infeasible
        v = _limit(x, beta, x[:, columns])
    except Infeasible:
        raise ValueError(
            "Logistic.limit_direction(x, y): no homogeneous linear classifier separates these "
            "data, so there is no limit direction; call flow(..., t)."
        ) from None
    if len(columns) == x.shape[1]:
        return v / units
    return np.linalg.lstsq(x, x[:, columns] @ v, rcond=None)[0]


def _limit(x: np.ndarray, beta: np.ndarray, few: np.ndarray) -> np.ndarray:
    """The limit for some columns, that span all of them."""
    u = x @ beta
    q = scipy.special.expit(-u)
    q = q / np.max(q)
    # The rounding of a logit is a relative one of q, and so is that of the largest.
    depth = 2 + np.abs(x) @ np.abs(beta)
    noise = max(x.shape) * np.finfo(float).eps * (np.abs(few).T @ (q * (depth + np.max(depth))))
    v = certain(few.T @ q, noise, few, np.ones(len(few)))
    if v is not None:
        return v
    with digits(DIGITS):
        weights = tail(exact(x) @ exact(beta))
        return np.asarray(lexicographic(exact(few), weights / np.max(weights)), float)


def lexicographic(rows: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The limit for rows of full column rank, in the digits around the call."""
    v, multipliers = optimum(q @ rows, rows, np.full(len(rows), ONE))
    # The face: v plus combinations of the columns of `face`. A row that is zero there is decided.
    face = null_space(rows[multipliers > 0], HALF)
    while face.shape[1]:
        along = rows @ face
        size = np.max(np.abs(along), axis=1)
        open_rows = size > HALF * np.max(np.abs(rows), axis=1)
        least = np.hstack([along[open_rows], np.full((int(np.sum(open_rows)), 1), -ONE)])
        cost = np.append(np.full(face.shape[1], ZERO), -ONE)
        found, multipliers = optimum(cost, least, -(rows[open_rows] @ v), feasible=True)
        v = v + face @ found[:-1]
        face = face @ null_space(along[open_rows][multipliers > 0], HALF)
    return np.where(np.abs(v) <= HALF * np.max(np.abs(v)), ZERO, v)
