r"""Appendix A.2. Two parametrisations of the figure eight meet in its crossing with different tangents, and their natural gradients differ
there: the natural parameter gradient is not parametrisation *independent*.

\[ \varphi(\xi) = (\sin 2\xi, \sin\xi), \quad \xi \in (-\tfrac{\pi}{4}, \tfrac{5\pi}{4}), \qquad \varphi(0) = \varphi(\pi) = (0, 0),
\qquad \psi(\theta) = \varphi(\pi - \theta). \]

At \(\theta = 0\) the two have the tangents \((2, 1)\) and \((-2, 1)\). For \(\mathrm{d}L = (1, 0)\) the natural gradients are
\((0.8, 0.4)\) and \((0.8, -0.4)\). In general they differ by \(0.8\,\|\mathrm{d}L\|\): the spans intersect trivially, so that the two can
only agree if both vanish, that is if \(\mathrm{d}L = 0\).

**Corrected.** The paper prints the interval \((-\tfrac{\pi}{8}, \tfrac{5\pi}{8})\), \(\xi_2 = \tfrac{\pi}{2}\) and
\(f(\theta) = \tfrac{\pi}{4} - \theta\); that interval has one preimage of the origin, \(f\) does not map it to itself, and
\(\varphi \circ f\) is not the \(\psi\) printed beside it. The last line of A.2 gives "because the tangents are unequal" as the reason,
which would not be enough: \((2, 1)\) and \((4, 2)\) are unequal and lead to one natural gradient.
"""

import itertools
from collections.abc import Callable, Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pullback as pb

from .._example import Example, Row, at_least, at_most, equals

DOMAIN = (-np.pi / 4, 5 * np.pi / 4)
PRINTED_DOMAIN = (-np.pi / 8, 5 * np.pi / 8)


def phi(xi: Float[Array, " 1"]) -> Float[Array, " 2"]:
    """The figure eight.

    **Arguments:**

    - `xi`: one parameter.
    """
    return jnp.concatenate([jnp.sin(2 * xi), jnp.sin(xi)])


def psi(theta: Float[Array, " 1"]) -> Float[Array, " 2"]:
    """The figure eight run through the other way, φ(π - θ).

    **Arguments:**

    - `theta`: one parameter.
    """
    return phi(jnp.pi - theta)


def preimages(interval: tuple[float, float], points: int = 2001) -> list[float]:
    """The parameters in an open interval that φ sends to the origin: roots of the second coordinate, by bisection, where the first vanishes too.

    **Arguments:**

    - `interval`: its ends.
    - `points`: of the grid on which sign changes are looked for.
    """
    # The grid avoids the roots themselves: its steps are not commensurable with π.
    grid = np.linspace(interval[0] + 1e-6, interval[1] - 2e-6, points)
    roots = []
    for low, high in itertools.pairwise(grid):
        if np.sin(low) * np.sin(high) < 0:
            for _ in range(60):
                middle = (low + high) / 2
                low, high = (low, middle) if np.sin(low) * np.sin(middle) <= 0 else (middle, high)
            if abs(np.sin(low + high)) < 1e-12:
                roots.append(float(low + high) / 2)
    return roots


def pushforward(curve: Callable, at: float, differential: np.ndarray) -> np.ndarray:
    """The natural parameter gradient on the plane, for a linear function on it.

    **Arguments:**

    - `curve`: a parametrisation.
    - `at`: where.
    - `differential`: dL.
    """
    problem = pb.Composite(curve, loss=eqx.Partial(jnp.vdot, jnp.asarray(differential)))
    return np.asarray(pb.natural_gradient(problem, jnp.array([at])).pushforward)


def measure() -> Iterator[Row]:
    """The corrected example, then what is wrong with the printed one."""
    dx = np.array([1.0, 0.0])
    at_xi, at_theta, same = pushforward(phi, 0.0, dx), pushforward(psi, 0.0, dx), pushforward(psi, np.pi, dx)
    yield equals("preimages of the origin in (-π/4, 5π/4)", len(preimages(DOMAIN)), 2)
    yield at_most(
        "φ(0) = φ(π) = ψ(0), largest difference",
        _spread([phi(jnp.array([0.0])), phi(jnp.array([jnp.pi])), psi(jnp.array([0.0]))]),
        1e-14,
    )
    yield at_most("natural gradient at ξ = 0 for dL = (1, 0) is (0.8, 0.4), off by", np.abs(at_xi - [0.8, 0.4]).max(), 1e-14)
    yield at_most("natural gradient at θ = 0 is (0.8, -0.4), off by", np.abs(at_theta - [0.8, -0.4]).max(), 1e-14)
    yield at_most("no contradiction to Theorem 2: at θ = f⁻¹(0) = π it is that at ξ = 0 again", np.abs(same - at_xi).max(), 1e-14)
    yield at_most("for any dL the two differ by 0.8 |dL|, so only dL = 0 makes them equal", _law(), 1e-13)

    grid = np.linspace(*PRINTED_DOMAIN, 1001)
    printed_psi = np.stack([-np.sin(2 * grid), np.sin(grid)])
    images = {name: np.stack([np.sin(2 * f), np.sin(f)]) for name, f in (("right", np.pi - grid), ("printed", np.pi / 4 - grid))}
    yield equals("as printed: preimages of the origin in (-π/8, 5π/8)", len(preimages(PRINTED_DOMAIN)), 1)
    yield at_least("as printed: f = π/4 - θ leaves the interval by", PRINTED_DOMAIN[0] - (np.pi / 4 - PRINTED_DOMAIN[1]), 0.7)
    yield at_least("as printed: φ∘f differs from the ψ beside it by", np.abs(images["printed"] - printed_psi).max(), 1.6)
    yield at_most("corrected: φ(π - θ) is that ψ, largest difference", np.abs(images["right"] - printed_psi).max(), 1e-14)


def _spread(points: list) -> float:
    return float(max(np.abs(np.asarray(p) - np.asarray(points[0])).max() for p in points))


def _law() -> float:
    """The largest deviation of |difference| from 0.8 |dL| over random dL."""
    rng, worst = np.random.default_rng(4), 0.0
    for c in rng.standard_normal((5, 2)):
        gap = np.linalg.norm(pushforward(phi, 0.0, c) - pushforward(psi, 0.0, c))
        worst = max(worst, float(abs(gap - 0.8 * np.linalg.norm(c))))
    return worst


EXAMPLE = Example(
    "figure-eight",
    "van Oostrum, Müller, Ay, Example 2 and Appendix A.2, corrected",
    "In the crossing of a figure eight two parametrisations have different natural gradients, (0.8, 0.4) and (0.8, -0.4) for dL = (1, 0). "
    "The paper's interval and change of parameters are misprinted: (-π/4, 5π/4) and π - θ are meant.",
    measure,
)
