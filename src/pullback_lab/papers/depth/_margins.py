r"""Where the natural flow goes on a separable set with more samples than columns, written again
beside `pullback.linear` with the weights given:

\[ \min_v\ \textstyle\sum_i q_i\,\tilde x_i\cdot v \quad\text{subject to}\quad \tilde x_i\cdot v \ge
1, \qquad \tilde x_i = y_i x_i,\ q_i = \varphi(-u_i(0)). \]
"""

import numpy as np
from scipy.optimize import linprog


def natural_margin(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The vector with margins of at least 1 whose weighted sum of margins is least."""
    signed = y[:, None] * x
    cost = np.mean(signed, axis=0) if weights is None else weights @ signed / np.sum(weights)
    found = linprog(cost, A_ub=-signed, b_ub=-np.ones(len(x)), bounds=(None, None))
    if found.status != 0:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    return np.asarray(found.x)
