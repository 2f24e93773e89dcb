r"""Natural gradient flow of diagonal networks with independent inputs (N ≤ D), integrated step by
step in NumPy: the reference for the closed forms.

With independent rows the weights of the Fisher matrix cancel: \(d_l = \frac{c_l}{s}\odot(\tilde
X\,\mathrm{diag}(s))^{+}(1 + e^{-u})\), \(s^2 = \sum_k c_k^2\).
"""

import numpy as np
from scipy.integrate import solve_ivp

from ..depth._figure_flows import cofactors


def velocity(weights: np.ndarray, signed: np.ndarray) -> np.ndarray:
    """Minus the natural gradient, Moore-Penrose in the weights."""
    c = cofactors(weights)
    s = np.linalg.norm(c, axis=0)
    e = np.linalg.lstsq(signed * s, 1 + np.exp(-(signed @ np.prod(weights, axis=0))), rcond=None)[0]
    return c / s * e


def flow(
    weights: np.ndarray, x: np.ndarray, y: np.ndarray, t: float, rtol: float = 1e-9
) -> np.ndarray:
    """The weights at time t."""
    signed = y[:, None] * x
    field = lambda _, flat: velocity(flat.reshape(weights.shape), signed).ravel()
    end = solve_ivp(field, (0, t), weights.ravel(), method="DOP853", rtol=rtol, atol=1e-3 * rtol)
    return end.y[:, -1].reshape(weights.shape)
