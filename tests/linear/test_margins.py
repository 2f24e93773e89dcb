"""Margins and interpolants, against optimality conditions and all vertices."""

import numpy as np
import pytest
import scipy.optimize
from linear_data import data, relative, separable

from pullback import linear


def test_l2_margin(rng):
    x, y = separable(rng, 12, 4)
    ours = np.asarray(linear.l2_margin(x, y))
    constraint = {"type": "ineq", "fun": lambda b: y * (x @ b) - 1}
    found = scipy.optimize.minimize(
        lambda b: b @ b / 2,
        2 * ours,
        jac=lambda b: b,
        constraints=constraint,
        method="SLSQP",
        tol=1e-14,
    )
    assert relative(ours, found.x) < 1e-6
    assert np.min(y * (x @ ours)) > 1 - 1e-10


def vertices(x, y):
    """All points where as many of the constraints and coordinate planes as there are coordinates
    meet, that are feasible.
    """
    import itertools

    rows = np.vstack([y[:, None] * x, np.eye(x.shape[1])])
    sides = np.append(np.ones(len(x)), np.zeros(x.shape[1]))
    for chosen in itertools.combinations(range(len(rows)), x.shape[1]):
        a = rows[list(chosen)]
        if abs(np.linalg.det(a)) > 1e-9:
            v = np.linalg.solve(a, sides[list(chosen)])
            if np.min(y * (x @ v)) > 1 - 1e-9:
                yield v


@pytest.mark.parametrize("p", [1.0, 2 / 3, 0.5])
def test_l1_and_lp_margins_against_all_vertices(rng, p):
    x, y = separable(rng, 8, 3)
    norm = lambda b: np.sum(np.abs(b) ** p)
    best = min(norm(v) for v in vertices(x, y))
    ours = np.asarray(linear.l1_margin(x, y) if p == 1 else linear.lp_margin(x, y, p))
    assert np.min(y * (x @ ours)) > 1 - 1e-9
    assert norm(ours) < best * (1 + 1e-6)


@pytest.mark.parametrize(
    "margin", [linear.l2_margin, linear.l1_margin, lambda x, y: linear.lp_margin(x, y, 0.5)]
)
def test_margins_need_separation(rng, margin):
    x, y = data(rng, 40, 2)
    with pytest.raises(ValueError, match="separates"):
        margin(x, y)


@pytest.mark.parametrize("size", [1e-150, 1e-30, 1e-10, 1e-6, 1e12, 1e30, 1e150])
def test_units_do_not_decide(rng, size):
    x, y = separable(rng, 8, 3)
    half = lambda x, y: linear.lp_margin(x, y, 0.5, starts=2)
    for margin in (linear.l2_margin, linear.l1_margin, half, linear.Logistic().limit_direction):
        assert relative(size * np.asarray(margin(size * x, y)), np.asarray(margin(x, y))) < 1e-9
    few, target = x[:2], np.array([1.0, -2.0])
    found = np.asarray(linear.l1_interpolant(few, target))
    assert relative(few @ found, target) < 1e-9
    assert relative(size * np.asarray(linear.l1_interpolant(size * few, target)), found) < 1e-9
    assert relative(np.asarray(linear.l1_interpolant(few, size * target)) / size, found) < 1e-9


def test_rows_of_different_sizes_and_rows_of_zeros(rng):
    x, y = separable(rng, 8, 3)
    sizes = np.array([1e-4, 1e-2, 1.0, 1.0, 1.0, 1.0, 1e2, 1e2])
    rows = sizes[:, None] * x
    for margin in (linear.l2_margin, linear.l1_margin, linear.Logistic().limit_direction):
        assert np.min(y * (rows @ np.asarray(margin(rows, y)))) > 1 - 1e-9
    x[3] = 0.0
    for margin in (linear.l2_margin, linear.l1_margin):
        with pytest.raises(ValueError, match="separates"):
            margin(x, y)
