r"""Linear algebra in as many digits as a question needs, on arrays of `decimal.Decimal`.

Floats are exact decimals, so data convert without rounding. NumPy's arithmetic on arrays of objects
calls that of their entries, which rounds to the digits of the surrounding `digits(...)`.
"""

import decimal
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any

import numpy as np

# Of any type: the types of NumPy do not know arrays of decimals.
ZERO: Any = Decimal(0)
ONE: Any = Decimal(1)

exp = np.frompyfunc(Decimal.exp, 1, 1)
"""The exponential, entry by entry."""
_exact = np.frompyfunc(lambda a: Decimal(float(a)), 1, 1)


def digits(count: int) -> AbstractContextManager:
    """Return the surroundings in which decimals are rounded to so many digits."""
    context = decimal.Context(prec=count, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
    return decimal.localcontext(context)


def exact(a: np.ndarray) -> np.ndarray:
    """Return the decimals that the floats of an array are."""
    return np.asarray(_exact(np.asarray(a, float)), object)


def tail(u: np.ndarray) -> np.ndarray:
    r"""Return \(\varphi(-u) = 1/(1 + e^{u})\)."""
    return ONE / (ONE + exp(u))


def eliminate(a: np.ndarray, zero: Any) -> tuple[np.ndarray, list[int], list[int]]:
    """Reduce a matrix by Gauss-Jordan elimination with complete pivoting.

    Returns the reduced matrix and the rows and columns of its pivots. A remainder below `zero`
    times the largest entry is zero.
    """
    a = a.copy()
    rows: list[int] = []
    columns: list[int] = []
    bound = zero * np.max(np.abs(a), initial=ZERO)
    free = np.full(a.shape, True)
    for _ in range(min(a.shape)):
        size = np.where(free, np.abs(a), -ONE)
        row, column = (int(k) for k in np.unravel_index(np.argmax(size), a.shape))
        if size[row, column] <= bound:
            break
        rows.append(row)
        columns.append(column)
        free[row], free[:, column] = False, False
        a[row] = a[row] / a[row, column]
        others = np.arange(a.shape[0]) != row
        a[others] = a[others] - a[others, column, None] * a[row]
    return a, rows, columns


def null_space(a: np.ndarray, zero: Any) -> np.ndarray:
    """Return a basis of the kernel of a matrix, as columns."""
    reduced, rows, columns = eliminate(a, zero)
    free = [k for k in range(a.shape[1]) if k not in columns]
    basis = np.full((a.shape[1], len(free)), ZERO)
    basis[columns] = -reduced[np.ix_(rows, free)]
    basis[free, range(len(free))] = ONE
    return basis


def inverse(a: np.ndarray) -> np.ndarray:
    """Return the inverse of a square matrix; raises if it is singular."""
    size = len(a)
    both = np.hstack([a, np.where(np.eye(size, dtype=bool), ONE, ZERO)])
    for k in range(size):
        row = k + int(np.argmax(np.abs(both[k:, k])))
        if not both[row, k]:
            raise ZeroDivisionError("a singular matrix")
        both[[k, row]] = both[[row, k]]
        both[k] = both[k] / both[k, k]
        others = np.arange(size) != k
        both[others] = both[others] - both[others, k, None] * both[k]
    return both[:, size:]
