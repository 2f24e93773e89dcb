"""Data for the tests of linear models, and a dense reference."""

import numpy as np


def sigmoid(u):
    return 0.5 * (1 + np.tanh(u / 2))


def data(rng, n, d, rank=None):
    x = (
        rng.standard_normal((n, d))
        if rank is None
        else rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    )
    return x, rng.choice([-1.0, 1.0], n)


def separable(rng, n, d):
    x = rng.standard_normal((n, d))
    return x, np.sign(x @ rng.standard_normal(d))


def dense(x, y, beta):
    """(gradient, Fisher matrix), as on paper."""
    u = y * (x @ beta)
    return -(y[:, None] * x).T @ sigmoid(-u), (x.T * (sigmoid(u) * sigmoid(-u))) @ x


def relative(a, b):
    return float(np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b))
