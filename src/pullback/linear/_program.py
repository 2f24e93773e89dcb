r"""Linear programs solved exactly: a vertex whose conditions hold in many digits, not to 1e-7.

\[ \min_z\ f\cdot z \quad\text{subject to}\quad G z \ge h. \]

A solver in floating point takes whatever is below its tolerance for zero: a cost of 1e-9 that
decides between two vertices is lost, and an optimum that is not unique looks like one that is. Its
answer is only the first *basis* here, as many independent rows as unknowns. From there the
criss-cross method (Terlaky, 1985) exchanges rows until \(z = B^{-1}h_B\) is feasible and the
multipliers \(B^{-\top}f\) are not negative. It needs no feasible start, and with the least index
first it ends.

All of it is in `DIGITS` digits, and what vanishes to `HALF` of them is zero. Most programs need
none of it: their active rows are clear in floating point, by a bound on its rounding (`certain`).
"""

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts load when they are used: by name they would change warning filters

from ._digits import ONE, ZERO, inverse

DIGITS = 100
"""The digits of the arithmetic."""
HALF: Any = Decimal(10) ** -60
"""What is zero, relative to the terms that cancel."""
SURE = 4.0
"""How many times the bound on its rounding a number exceeds if its sign is certain."""
EXCHANGES = 10_000
"""The most exchanges of rows."""


class Infeasible(Exception):
    """No point meets the constraints."""


class Optimum(NamedTuple):
    """A vertex of the optimal face, and multipliers that prove it."""

    point: np.ndarray
    multipliers: np.ndarray
    """One per row, not negative. Rows of positive ones are active in every optimum."""


def optimum(
    cost: np.ndarray, rows: np.ndarray, sides: np.ndarray, feasible: bool = False
) -> Optimum:
    """Solve a program that is bounded and whose rows have full column rank.

    Raises `Infeasible` where nothing meets the constraints, which `feasible` rules out. Call it in
    `digits(DIGITS)`.
    """
    basis = _guess(*(np.asarray(a, float) for a in (cost, rows, sides)), feasible)
    for _ in range(EXCHANGES):
        inverted = inverse(rows[basis])
        point = inverted @ sides[basis]
        slack = _product(np.column_stack([rows, -sides]), np.append(point, ONE))
        slack[basis] = ZERO
        weights = _product(inverted.T, cost)
        negative = (basis[k] for k in np.flatnonzero(weights < 0))
        wrong = sorted({*np.flatnonzero(slack < 0), *negative})
        if not wrong:
            multipliers = np.full(len(rows), ZERO)
            multipliers[basis] = weights
            return Optimum(point, multipliers)
        basis = _exchanged(basis, int(wrong[0]), rows, inverted)
    raise RuntimeError(f"the linear program was not solved in {EXCHANGES} exchanges of rows")


def certain(
    cost: np.ndarray, noise: np.ndarray, rows: np.ndarray, sides: np.ndarray
) -> np.ndarray | None:
    """The only optimum, in floats, where rounding cannot change which rows are active; or None.

    `noise` bounds the rounding of the cost. Raises `Infeasible` as `optimum` does.
    """
    basis = _guess(cost, rows, sides, False)
    active = rows[basis]
    inverted = np.linalg.inv(active)
    point = inverted @ sides[basis]
    weights = inverted.T @ cost
    eps = max(rows.shape) * np.finfo(float).eps
    size = np.abs(inverted)
    of_point = size @ (eps * (np.abs(active) @ np.abs(point)))
    of_slack = np.abs(rows) @ (of_point + eps * np.abs(point))
    of_weights = size.T @ (noise + eps * (np.abs(cost) + np.abs(active).T @ np.abs(weights)))
    slack = rows @ point - sides
    slack[basis] = np.inf
    clear = np.all(weights > SURE * of_weights) and np.all(slack > SURE * of_slack)
    accurate = np.max(of_point) < 1e-9 * np.max(np.abs(point))
    return point if clear and accurate else None


def _product(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A matrix times a vector, zero where only rounding is left."""
    found = matrix @ vector
    size = np.sum(np.abs(matrix), axis=1) * np.max(np.abs(vector))
    return np.where(np.abs(found) <= HALF * size, ZERO, found)


def _exchanged(basis: list[int], row: int, rows: np.ndarray, inverted: np.ndarray) -> list[int]:
    """The basis after the exchange that the first row in the wrong asks for."""
    if row in basis:
        # A negative multiplier: follow the edge that leaves this row, until another one is met.
        met = _product(rows, inverted[:, basis.index(row)]) < 0
        met[basis] = False
        if not np.any(met):
            raise RuntimeError("the linear program is not bounded")
        return [int(np.argmax(met)) if k == row else k for k in basis]
    # A negative slack: the row is a combination of the basis; one with a positive coefficient goes.
    giving = _product(inverted.T, rows[row]) > 0
    if not np.any(giving):
        raise Infeasible
    leaves = min(k for k, gives in zip(basis, giving, strict=True) if gives)
    return [row if k == leaves else k for k in basis]


def _guess(cost: np.ndarray, rows: np.ndarray, sides: np.ndarray, feasible: bool) -> list[int]:
    """Independent rows that are active at the optimum in floating point, as far as it has any."""
    # The solver has absolute tolerances, and drops entries below 1e-9.
    sizes = np.max(np.abs(rows), axis=1).clip(1e-300)
    rows, sides = rows / sizes[:, None], sides / sizes
    sides = sides / (np.max(np.abs(sides), initial=0.0) or 1.0)
    found = scipy.optimize.linprog(
        cost / max(np.max(np.abs(cost)), 1e-300),
        A_ub=-rows,
        b_ub=-sides,
        bounds=(None, None),
        method="highs",
    )
    if found.status == 2 and not feasible:
        raise Infeasible
    order = np.arange(len(rows))
    if found.success:
        slack = (rows @ found.x - sides) / np.linalg.norm(rows, axis=1).clip(1e-300)
        order = np.lexsort((slack, found.ineqlin.marginals > -1e-9))
    for least in (1e-6, 1e-14):
        basis = _independent(rows[order], least)
        if len(basis) == rows.shape[1]:
            return [int(order[k]) for k in basis]
    raise RuntimeError(
        "the linear program of Logistic.limit_direction: the rows of x are dependent to rounding, "
        "and yet of full rank; drop a column that depends on others."
    )


def _independent(rows: np.ndarray, least: float) -> list[int]:
    """The first rows that do not depend on those before, but for a fraction of their length."""
    basis: list[int] = []
    span = np.zeros((0, rows.shape[1]))
    for k, row in enumerate(rows):
        rest = row - span.T @ (span @ row)
        rest = rest - span.T @ (span @ rest)
        size = float(np.linalg.norm(rest))
        if size > least * np.linalg.norm(row):
            basis.append(k)
            span = np.vstack([span, rest / size])
        if len(basis) == rows.shape[1]:
            break
    return basis
