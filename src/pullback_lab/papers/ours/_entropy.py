r"""The separable entropy of a diagonal network of any depth, from its initial weights, in NumPy.

Per coordinate let x be the layer of least modulus, times the signs of the others, and \(\mu_k =
w_k^2 - x^2 > 0\) for the others, conserved by every flow \(\dot w_l = c_l\,\dot m\). Then

\[ \beta = x\prod_k\sqrt{x^2 + \mu_k}, \qquad \psi'(\beta) = m = \int_0^{x}\prod_k(\xi^2 +
\mu_k)^{-1/2}\,d\xi, \qquad 1/\psi''(\beta) = \textstyle\sum_l c_l^2 . \]

With \(\xi = \sqrt{\mu_1}\sinh v\), \(\mu_1\) the least, the integrand is analytic for
\(|\mathrm{Im}\,v| < \pi/2\), and the rule of Gauss and Legendre converges geometrically.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NODES, WEIGHTS = np.polynomial.legendre.leggauss(160)
TINY = 1e-300


class Entropy(NamedTuple):
    """ψ of each coordinate."""

    mu: np.ndarray
    """The differences of squares, of shape (depth - 1, D), the least first."""

    def layer(self, beta: np.ndarray) -> np.ndarray:
        """The layer of least modulus, with the sign of β."""
        size = np.maximum(np.abs(beta), TINY)
        shallow = size / np.sqrt(np.prod(self.mu, axis=0))
        x = np.minimum(shallow, size ** (1 / (len(self.mu) + 1)))
        # Both bounds are above the root, and log β is concave in log x: Newton falls to it.
        for _ in range(100):
            squares = x**2 + self.mu
            excess = np.log(np.maximum(x * np.sqrt(np.prod(squares, axis=0)) / size, TINY))
            x = x * np.exp(-excess / (1 + np.sum(x**2 / squares, axis=0)))
            if np.abs(excess).max() < 1e-15:
                break
        return np.copysign(x, beta)

    def gradient(self, beta: np.ndarray) -> np.ndarray:
        """∇ψ(β)."""
        root = np.sqrt(self.mu[0])
        end = np.arcsinh(self.layer(beta) / root)
        xi = root * np.sinh(end / 2 * (NODES[:, None] + 1))
        rest = np.prod(xi**2 + self.mu[1:, None, :], axis=0) ** -0.5
        return end / 2 * (WEIGHTS @ rest)

    def curvature(self, beta: np.ndarray) -> np.ndarray:
        """The diagonal of ∇²ψ(β)."""
        x2 = self.layer(beta) ** 2
        return 1 / (np.prod(x2 + self.mu, axis=0) * (1 + np.sum(x2 / (x2 + self.mu), axis=0)))


def entropy(weights: np.ndarray) -> Entropy:
    """The entropy of a network from its layers, no two of the same modulus in a coordinate."""
    squares = np.sort(weights**2, axis=0)
    return Entropy(squares[1:] - squares[0])


def project(psi: Entropy, x: np.ndarray, logits: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The Bregman projection of β on the coefficients with given logits, by Newton's method.

    It starts from the Euclidean projection and stays on the affine space.
    """
    start = psi.gradient(beta)
    beta = beta + np.linalg.lstsq(x, logits - x @ beta, rcond=None)[0]
    residual = lambda b: psi.gradient(b) - start
    free = np.linalg.svd(x)[2][np.linalg.matrix_rank(x) :]
    size = np.linalg.norm(free @ residual(beta))
    scale = max(np.linalg.norm(start), size)
    for _ in range(500):
        # Beyond depth 2, ψ is nearly linear far out: the floor keeps the step finite.
        curvature = psi.curvature(beta)
        curvature = np.maximum(curvature, 1e-12 * curvature.max())
        slope = free @ (curvature[:, None] * free.T)
        step = -free.T @ np.linalg.solve(slope, free @ residual(beta))
        trial = beta + _length(lambda t, b=beta, s=step: float(residual(b + t * s) @ s)) * step
        left = np.linalg.norm(free @ residual(trial))
        if size <= 1e-9 * scale and left >= size:
            break  # rounding
        beta, size = trial, left
    return beta


def _length(slope: Callable[[float], float]) -> float:
    """How far to go along a line: at most 1, and to where the slope of a convex function has
    fallen by half at least. The norm of a gradient may fall on the way to infinity too; the
    function does not.
    """
    most = abs(slope(0.0)) / 2
    if slope(1.0) <= most:
        return 1.0
    near, far = 0.0, 1.0
    for _ in range(100):
        middle = (near + far) / 2
        here = slope(middle)
        if abs(here) <= most:
            return middle
        near, far = (middle, far) if here < 0 else (near, middle)
    return near
