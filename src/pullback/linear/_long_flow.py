r"""The path of `_newton_flow.py` in as many digits as its rows need.

Where the weights of the rows that decide span \(e^{-\Delta}\), normal equations in \(\Delta/\log
10\) digits and a few more have the light rows' part of every sum. So nothing here is graded: the
matrix \(\tilde X^\top W\tilde X\) is formed and eliminated, symmetric, with the largest diagonal
entry first, and if the last pivot falls within `GUARD` digits of rounding, it is done again with
twice the digits. The data are taken as the floats are: what cancels exactly does so here.
"""

from decimal import Decimal, getcontext

import numpy as np

from ._digits import ONE, ZERO, digits, exact, tail
from ._stride import LARGEST, ON_THE_WAY, stride

GUARD = 30
"""The digits that are left in the lightest pivot."""
MOST = 4000
"""The most digits."""
LATE = 2.0
"""The longest late step relative to the time: each one costs far more here than on floats."""
STEPS = 400
"""The most Newton steps of a solve."""


class _Problem:
    """Rows and start, and what follows from them in the digits around the call."""

    def __init__(self, beta: np.ndarray, x: np.ndarray, columns: np.ndarray):
        self.x = exact(x)
        self.beta = exact(beta)
        self.columns = columns
        self.count = 0
        self.grow(60)

    def grow(self, count: int) -> None:
        """Compute start and slope in so many digits."""
        if count > MOST:
            raise RuntimeError(
                f"Logistic.flow: the weights of the rows that decide span more than {MOST} orders "
                "of magnitude; call limit_direction, or flow(..., t) at an earlier time."
            )
        self.count = count
        with digits(count):
            self.start = self.x @ self.beta
            self.rows = self.x[:, self.columns]
            self.first = self.rows.T @ tail(self.start)

    def step(self, moved: np.ndarray, target: Decimal) -> tuple[np.ndarray, np.ndarray]:
        """The Newton step to ∇L = target · ∇L(β₀), and the margins; adds digits where needed."""
        while True:
            with digits(self.count):
                u = self.start + self.rows @ moved
                a = _visible(u)
                rhs = self.rows.T @ a - target * self.first
                heaviest = max(np.max(a), target)
                scaled = self.rows * (a * (ONE - a))[:, None]
                found = _solved(self.rows.T @ scaled, rhs, heaviest)
            if found is not None:
                return found, u
            self.grow(2 * self.count)


def _visible(u: np.ndarray) -> np.ndarray:
    """φ(-u), zero where it is nothing beside the largest."""
    a = np.full(len(u), ZERO)
    reach = Decimal(3 * getcontext().prec)  # log 10 < 3
    near = u < max(np.min(u), ZERO) + reach
    a[near] = tail(u[near])
    return a


def _solved(h: np.ndarray, rhs: np.ndarray, heaviest: Decimal) -> np.ndarray | None:
    """The solution of a symmetric positive definite system; None if it has too few digits."""
    size = len(rhs)
    both = np.column_stack([h, rhs])
    least = heaviest.scaleb(GUARD - getcontext().prec)
    order: list[int] = []
    left = list(range(size))
    for _ in range(size):
        k = max(left, key=lambda i: both[i, i])
        if both[k, k] <= least:
            return None
        left.remove(k)
        order.append(k)
        both[left] = both[left] - (both[left, k] / both[k, k])[:, None] * both[k]
    solution = np.full(size, ZERO)
    for k in reversed(order):
        solution[k] = (both[k, size] - both[k, :size] @ solution) / both[k, k]
    return solution


def long_path(
    beta: np.ndarray,
    x: np.ndarray,
    columns: np.ndarray,
    moved: np.ndarray,
    now: float,
    t: float,
    tolerance: float,
) -> np.ndarray:
    """The displacement of some coefficients at time t, continued from what it is near `now`."""
    problem = _Problem(beta, x, columns)
    place = exact(moved)
    while now < t:
        step, _ = problem.step(place, ZERO)
        ahead = stride(now, t, float(np.max(np.abs(problem.rows @ step))), LATE)
        now = t if ahead == t - now else now + ahead
        accuracy = tolerance if now == t else max(tolerance, ON_THE_WAY)
        with digits(problem.count):
            place = place + Decimal(ahead) * step
        place = _corrected(problem, place, now, Decimal(accuracy))
    return np.asarray(place, float)


def _corrected(problem: _Problem, place: np.ndarray, t: float, accuracy: Decimal) -> np.ndarray:
    """The solution of ∇L(β) = e⁻ᵗ∇L(β₀), by Newton steps of at most `LARGEST` in the logits."""
    change = ONE
    for _ in range(STEPS):
        with digits(problem.count):
            target = (-Decimal(t)).exp()
        step, u = problem.step(place, target)
        with digits(problem.count):
            longest = np.max(np.abs(problem.rows @ step))
            change = longest / max(ONE, np.max(np.abs(u)))
            place = place + step * min(ONE, Decimal(LARGEST) / max(longest, ONE))
        if change < accuracy:
            return place
    raise RuntimeError(
        f"Logistic.flow found no solution at t = {t}: the last Newton step changes the logits by "
        f"{float(change):.3g}, relative to the largest."
    )
