"""Flow and limit where the linear program has many optima, against normal equations in mpmath."""

import mpmath
import numpy as np
import pytest
from linear_data import relative

from pullback import linear

LOGISTIC = linear.Logistic()

REFEREE = [(1, 0), (3, 2), (2, -1), (4, -1)]
# In each level two or three rows tie, and hold each other where the levels before leave room.
LEVELS = [(1, 0, 0), (3, 2, 0), (2, -1, 0), (4, -1, 0), (5, 0, 1), (4, 0, -1)]
FIVE = [
    (1, 0, 0, 0, 0),
    (2, 1, 0, 0, 0),
    (2, -1, 0, 0, 0),
    (4, 0, 2, -1, 0),
    (4, 0, -1, 2, 0),
    (4, 0, -1, -1, 0),
    (9, 1, 1, 0, 3),
    (7, -1, -1, 0, -3),
]
MIXING = np.tril(np.array([[1, 2, -1, 1, 0]] * 5), -1) + np.eye(5)
"""Of determinant 1 and with entries that are integers: ties stay exact."""

CASES = {
    # name: (rows with their labels, the limit of β_t/t from β = 0)
    "of the referee": (REFEREE, (1, -1 / 3)),
    "symmetric": ([(1, 0), (3, 1), (3, -1)], (1, 0)),
    "every row twice": (REFEREE * 2, (1, -1 / 3)),
    "three of four tied": ([(1, 0), (2, 1), (2, 1), (3, -1), (1, -1)], (1, -1 / 2)),
    "an active row without a multiplier": ([(1, 0), (1, 1), (1, -1)], (1, 0)),
    "three levels": (LEVELS, (1, -1 / 3, -1 / 2)),
    "three levels, D = 5": (FIVE, (1, 0, 0, 0, -1 / 3)),
    "not of full rank": ([(a, b, a) for a, b in REFEREE], (1 / 2, -1 / 3, 1 / 2)),
}


def exact_flow(rows, beta, t, guess, digits):
    """β_t from ∇L(β_t) = e⁻ᵗ∇L(β₀), by Newton steps from a guess, in so many digits."""
    with mpmath.workdps(digits):
        x = mpmath.matrix(np.asarray(rows, float).tolist())
        start, b = (mpmath.matrix(np.asarray(a, float).tolist()) for a in (beta, guess))
        slope = lambda b: x.T * (x * b).apply(lambda u: 1 / (1 + mpmath.exp(u)))
        target = mpmath.exp(-mpmath.mpf(float(t))) * slope(start)
        for _ in range(400):
            w = (x * b).apply(lambda s: 1 / ((1 + mpmath.exp(s)) * (1 + mpmath.exp(-s))))
            step = mpmath.lu_solve(x.T * (mpmath.diag(w) * x), slope(b) - target)
            longest = max(abs(s) for s in x * step)
            b += step / max(1, longest)
            if longest < 1e-25:
                return np.array([float(s) for s in b])
        raise AssertionError("the reference did not converge")


@pytest.mark.parametrize(("rows", "limit"), CASES.values(), ids=CASES)
def test_the_limit_is_lexicographic(rows, limit):
    x = np.asarray(rows, float)
    v = LOGISTIC.limit_direction(x, np.ones(len(x)))
    np.testing.assert_allclose(v, limit, atol=1e-14)


def flow_error(x, beta, t, digits=200):
    """The error of the flow, for rows of full column rank."""
    x, beta = np.asarray(x, float), np.asarray(beta, float)
    ours = np.asarray(LOGISTIC.flow(beta, x, np.ones(len(x)), t))
    return relative(ours, exact_flow(x, beta, t, ours, digits))


@pytest.mark.parametrize("rows", [rows for rows, _ in CASES.values()], ids=CASES)
def test_the_flow_with_ties(rows):
    x = np.asarray(rows, float)[:, : np.linalg.matrix_rank(rows)]
    columns = x.shape[1]
    assert flow_error(x @ MIXING[:columns, :columns], np.zeros(columns), 30.0) < 1e-12


def test_the_numbers_of_the_referee():
    """At t = 100 light rows weigh e⁻²³⁰ where the heavy one weighs e⁻⁹⁸."""
    assert flow_error(REFEREE, [0, 0], 100.0, digits=260) < 1e-14
    ours = LOGISTIC.flow(np.zeros(2), np.asarray(REFEREE, float), np.ones(4), 100.0)
    np.testing.assert_allclose(ours / 100, (0.98391, -0.32566), atol=5e-6)


@pytest.mark.parametrize("t", [1.0, 70.0])
def test_ties_from_a_start_with_the_symmetry_of_the_data(t):
    x = np.asarray([(1, 0, 0), (3, 1, 0), (3, -1, 0), (2, 0, 1), (2, 0, -1)], float)
    assert flow_error(x, [1.5, 0, 0], t) < 1e-13
    assert relative(LOGISTIC.limit_direction(x, np.ones(5), [1.5, 0, 0]), [1, 0, 0]) < 1e-15


@pytest.mark.parametrize("size", [1e-9, 1e-15])
def test_data_near_a_tie_are_taken_as_they_are(size):
    """The optimum is unique, at a vertex; a solver with a tolerance of 1e-7 does not see it. The
    flow turns there at t = log(1/size)/2.
    """
    x = np.asarray(REFEREE, float)
    x[3, 1] += size
    assert flow_error(x, [0, 0], 60.0) < 1e-13
    v = LOGISTIC.limit_direction(x, np.ones(4))
    np.testing.assert_allclose(v, (1, -1), atol=1e-8)


def test_ties_of_data_that_are_separable_in_part():
    """A row and its opposite hold one direction at the size 1, where another one weighs e⁻ᵗ."""
    x = np.asarray([(1, 1, 0), (-1, -1, 0), (2, 1, 1), (0, 1, 2), (1, 2, 3)], float)
    assert flow_error(x, [0, 0, 0], 60.0) < 1e-12


def test_more_digits_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr("pullback.linear._long_flow.MOST", 100)
    with pytest.raises(RuntimeError, match="orders of magnitude; call limit_direction"):
        LOGISTIC.flow(np.zeros(2), np.asarray(REFEREE, float), np.ones(4), 300.0)
