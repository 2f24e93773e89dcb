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
