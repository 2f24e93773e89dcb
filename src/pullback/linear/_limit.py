r"""The limit \(v = \lim_t \beta_t/t\) of natural gradient flow of logistic regression.

The data are separable.

*Independent rows* (N ≤ D): every margin grows as t, \(\tilde X v = 1\), and with the Moore-Penrose
inverse \(v = \tilde X^{+}1 = X^{+}y\), the ordinary least-squares solution of least norm.

*Otherwise*, put \(u_i = t\,m_i\) into \(\min_\beta \sum_i \log(1 + e^{-u_i}) + e^{-t}q_i u_i\)
(`_newton_flow.py`): a term \(e^{-u_i}\) is negligible against \(e^{-t}\) if \(m_i > 1\) and
dominates it if \(m_i < 1\). What is left is a linear program,

\[ v = \arg\min_v\ \sum_i q_i\,\tilde x_i \cdot v \quad\text{subject to}\quad \tilde x_i \cdot v \ge
1, \qquad q_i = \varphi(-u_i(0)), \]

which does not change under \(x \mapsto Ax,\ v \mapsto A^{-\top}v\): affine invariant, unlike any
margin measured in a norm. If its solution is not unique, one of its vertices is returned.
"""

import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters

from ._newton_flow import independent_rows


def limit_direction(x: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The limit of β_t/t, from the signed inputs and the start."""
    if independent_rows(x):
        return np.linalg.lstsq(x, np.ones(x.shape[0]), rcond=None)[0]
    q = scipy.special.expit(-(x @ beta))
    # A common factor of the costs changes nothing, and the solver measures them against 1e-7.
    solution = scipy.optimize.linprog(
        x.T @ (q / q.max()), A_ub=-x, b_ub=-np.ones(x.shape[0]), bounds=(None, None), method="highs"
    )
    if solution.status == 2:
        raise ValueError(
            "Logistic.limit_direction(x, y): no homogeneous linear classifier separates these "
            "data, so there is no limit direction; call flow(..., t)."
        )
    if not solution.success:
        raise RuntimeError(
            f"Logistic.limit_direction: the linear program was not solved: {solution.message}"
        )
    v = np.asarray(solution.x)
    if np.linalg.matrix_rank(x) < x.shape[1]:
        v = np.linalg.pinv(x) @ (x @ v)
    return v
