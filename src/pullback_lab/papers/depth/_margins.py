r"""Where the natural flow goes on a separable set with more samples than columns: the library's
limit, and its linear program written again, with the weights given:

\[ \min_v\ \textstyle\sum_i q_i\,\tilde x_i\cdot v \quad\text{subject to}\quad \tilde x_i\cdot v \ge
1, \qquad \tilde x_i = y_i x_i,\ q_i = \varphi(-u_i(0)). \]
"""

import jax.numpy as jnp
import numpy as np
from scipy.optimize import linprog

from pullback.linear import Logistic


def limit(x: np.ndarray, y: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """The library's limit of the natural flow from a start, zero if there is none."""
    beta = None if start is None else jnp.asarray(start)
    return np.asarray(Logistic().limit_direction(jnp.asarray(x), jnp.asarray(y), beta))


def natural_margin(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The vector with margins of at least 1 whose weighted sum of margins is least."""
    signed = y[:, None] * x
    cost = np.mean(signed, axis=0) if weights is None else weights @ signed / np.sum(weights)
    found = linprog(cost, A_ub=-signed, b_ub=-np.ones(len(x)), bounds=(None, None))
    if found.status != 0:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    return np.asarray(found.x)
