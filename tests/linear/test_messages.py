"""Bad arguments of the closed forms: the message names the argument and what it must be."""

import numpy as np
import pytest

from pullback import linear

LOGISTIC = linear.Logistic()


X, Y = np.eye(3), np.array([1.0, -1.0, 1.0])
BAD = {
    "shape of x": (
        lambda: LOGISTIC.loss(np.zeros(3), np.ones(3), Y),
        r"Logistic\.loss\(x=.*\): x must be an array with 2 axes, not of shape \(3,\)",
    ),
    "shape of beta": (
        lambda: LOGISTIC.loss(np.zeros(2), X, Y),
        r"beta must be of shape \(3,\), one coefficient per column of x, not \(2,\)",
    ),
    "number of labels": (
        lambda: LOGISTIC.loss(np.zeros(3), X, Y[:2]),
        r"y must be of shape \(3,\), one label per row",
    ),
    "labels 0 and 1": (
        lambda: LOGISTIC.natural_gradient(np.zeros(3), X, np.array([0, 1, 1])),
        r"2 \* y - 1",
    ),
    "nan in x": (
        lambda: LOGISTIC.gradient(np.zeros(3), np.where(X == 1, np.nan, X), Y),
        r"x must be finite, but x\[0, 0\] is not",
    ),
    "no samples": (
        lambda: LOGISTIC.flow(np.zeros(3), np.zeros((0, 3)), np.zeros(0), 1.0),
        "x must be not empty",
    ),
    "complex": (lambda: LOGISTIC.loss(np.zeros(3), 1j * X, Y), "x must be real, not complex"),
    "negative time": (
        lambda: LOGISTIC.flow(np.zeros(3), X, Y, -1.0),
        r"Logistic\.flow\(t=-1\.0\): t must be finite and >= 0, e\.g\. Logistic\(\)\.flow",
    ),
    "infinite time": (lambda: LOGISTIC.flow(np.zeros(3), X, Y, np.inf), "limit_direction"),
    "few inputs": (
        lambda: LOGISTIC.population_natural_gradient(np.zeros(3), X, Y, X[:2]),
        "draw more",
    ),
    "depth 0": (
        lambda: linear.Diagonal(0),
        r"Diagonal\(depth=0\): depth must be an integer of at least 1, e\.g\. Diagonal\(depth=2\)",
    ),
    "depth 1.5": (lambda: linear.Diagonal(1.5), "depth must be an integer"),
    "layers": (lambda: linear.Diagonal(2).product(np.ones((3, 3))), r"\(2, D\)"),
    "flow of depth 3": (lambda: linear.Diagonal(3).flow(np.ones((3, 3)), X, Y, 1.0), "depth 2"),
    "balanced": (
        lambda: linear.Diagonal(2).flow(np.ones((2, 3)), X, Y, 1.0),
        "kappa must be positive",
    ),
    "p": (
        lambda: linear.lp_margin(X, Y, 1.5),
        r"lp_margin\(p=1\.5\): p must be in \(0, 1\].*l2_margin",
    ),
    "starts": (
        lambda: linear.lp_margin(X, Y, 0.5, starts=0),
        r"lp_margin\(starts=0\): starts must be an integer of at least 1",
    ),
    "length of a vector": (
        lambda: linear.Diagonal(2).lift(np.ones((2, 3)), np.ones(2)),
        r"Diagonal\.lift\(vector=.*\(3,\), one entry per column of weights, not \(2,\)",
    ),
    "start of the limit": (
        lambda: LOGISTIC.limit_direction(X, Y, np.zeros(2)),
        "one coefficient per column of x",
    ),
    "target": (
        lambda: linear.l2_interpolant(X, np.zeros(2)),
        r"l2_interpolant\(target=.*one per row of x",
    ),
    "no interpolant": (
        lambda: linear.l1_interpolant(np.ones((2, 3)), np.array([0.0, 1.0])),
        "dependent",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
