"""Every metric and every loss in closed form, in arbitrary precision: M, its root, c.

Imports nothing of pullback, nor JAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpmath import mp, mpf

from .formulas import MP, softmax

EDGES = ((0, 1), (1, 2), (2, 3), (3, 0))


class Differential(NamedTuple):
    """c of one sample, the size of the terms that c is a sum of, and how c depends on z."""

    c: np.ndarray
    terms: np.ndarray
    slope: np.ndarray


class Grading(NamedTuple):
    """M = Ŝ diag(weights) Ŝᵀ; `rows` is Ŝᵀ."""

    weights: np.ndarray
    rows: np.ndarray


class Metric(NamedTuple):
    """A metric: its matrix, its graded root if it has one, what it is a likelihood of."""

    matrix: Callable[[np.ndarray, Any, dict], np.ndarray]
    grading: Callable[[np.ndarray, dict], Grading] | None = None
    likelihood: str | None = None
    targets: str = "real"
    outputs: tuple[int, ...] = (1, 2, 3)
    dense: bool = False
    """Whether pullback forms M as a matrix, whose eigenvalues it resolves to eps only."""
    convex: bool = True


# ---- losses -------------------------------------------------------------------------------------


def _square(z, y, k):
    return Differential(z - y, abs(z) + abs(y), z * 0 + 1)


def _linear(z, y, k):
    return Differential(y + z * 0, abs(y) + z * 0, z * 0)


def _bernoulli(z, y, k):
    up, down = (1 - y) * MP.sigmoid(z), y * MP.sigmoid(-z)
    return Differential(up - down, abs(up) + abs(down), abs(up) + abs(down))


def _categorical(z, y, k):
    p = softmax(z, MP)
    c = p.copy()
    # 1 - p from the other classes, as exact as they are.
    c[y] = -sum(p[j] for j in range(len(p)) if j != y)
    return Differential(c, abs(c), 2 * abs(c))


def _soft(z, y, k):
    p, total = softmax(z, MP), y.sum()
    terms = p * abs(y).sum() + abs(y)
    return Differential(p * total - y, terms, 2 * terms)


def _poisson(z, y, k):
    rate = MP.exp(z)
    return Differential(rate - y, rate + abs(y), rate)


def _mean_scale(z, y, k):
    n = len(z) // 2
    mean, inverse = z[:n], MP.exp(-z[n:])
    t, size = (y - mean) * inverse, (abs(y) + abs(mean)) * inverse
    c = np.concatenate([-t * inverse, 1 - t * t])
    terms = np.concatenate([size * inverse, 1 + 2 * size * abs(t)])
    slope = np.concatenate(
        [inverse * inverse + 2 * abs(t) * inverse, 2 * abs(t) * inverse + 2 * t * t]
    )
    return Differential(c, terms, slope)


def _gaussian(z, y, k):
    m = _precision(z, y, k)
    size = abs(z) + abs(y)
    # L⁻ᵀ L⁻¹ (z - y): what cancels there is bounded with the inverse of the factor.
    return Differential(m @ (z - y), abs(m) @ size, abs(m) @ (z * 0 + 1))


def _cosh(z, y, k):
    e = MP.exp(z - y)
    slope = (e + 1 / e) / 2
    return Differential((e - 1 / e) / 2, slope * (1 + abs(z) + abs(y)), slope)


def _log_sum_exp(z, y, k):
    p = softmax(z, MP)
    return Differential(p - y, p + abs(y), 2 * p)


def _logistic(z, y, k):
    p = MP.sigmoid(z)
    return Differential(p - y, p + abs(y), p)


def _product(z, y, k):
    first = _categorical(z[:3], int(y[0]), k)
    second = _square(z[3:], y[1:], k)
    return Differential(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))


def _independent(z, y, k):
    first, second = _categorical(z[:3], int(y[0]), k), _square(z[3:], y[1:], k)
    pairs = zip(first, second, strict=True)
    return Differential(*(np.concatenate([a, 2 * b]) for a, b in pairs))


LOSSES: dict[str, Callable[..., Differential]] = {
    "square": _square, "linear": _linear, "bernoulli": _bernoulli, "categorical": _categorical,
    "soft": _soft, "poisson": _poisson, "mean_scale": _mean_scale, "gaussian": _gaussian,
    "cosh": _cosh, "log_sum_exp": _log_sum_exp, "logistic": _logistic, "exponential": _poisson,
    "product": _product, "independent": _independent,
}  # fmt: skip


# ---- metrics ------------------------------------------------------------------------------------


def diagonal(entries: np.ndarray) -> np.ndarray:
    """Return a diagonal matrix."""
    m = MP.zeros(len(entries), len(entries))
    for i, x in enumerate(entries):
        m[i, i] = x
    return m


def _eye(n):
    return diagonal(MP.zeros(n) + 1)


def _precision(z, y, k):
    covariance = k["covariance"]
    if covariance.ndim == 0:
        return _eye(len(z)) / covariance[()]
    if covariance.ndim == 1:
        return diagonal(1 / covariance)
    inverse = mp.matrix(covariance.tolist()) ** -1
    n = len(z)
    return np.array([[inverse[i, j] for j in range(n)] for i in range(n)], dtype=object)


def _diagonal_grading(weights):
    return Grading(weights, _eye(len(weights)))


def _variance(z):
    return MP.sigmoid(z) * MP.sigmoid(-z)


def _multinomial(z):
    p = softmax(z, MP)
    m = diagonal(p) - p[:, None] * p[None, :]
    for i in range(len(p)):
        m[i, i] = p[i] * sum(p[j] for j in range(len(p)) if j != i)
    return m


def _multinomial_grading(z):
    p = softmax(z, MP)
    k = max(range(len(p)), key=lambda i: p[i])
    top = mp.sqrt(p[k])
    a = p / (1 + top)
    a[k] = top
    others = [j for j in range(len(p)) if j != k]
    rows = np.array([_eye(len(p))[j] - a for j in others], dtype=object)
    return Grading(p[others], rows)


def _scales(z):
    n = len(z) // 2
    return np.concatenate([MP.exp(-2 * z[n:]), MP.zeros(n) + 2])


def _beside(a, b):
    m = MP.zeros(len(a) + len(b), a.shape[1] + b.shape[1])
    m[: len(a), : a.shape[1]] = a
    m[len(a) :, a.shape[1] :] = b
    return m


def _product_grading(z, k):
    first = _multinomial_grading(z[:3])
    n = len(z) - 3
    weights = np.concatenate([first.weights, MP.zeros(n) + 2])
    return Grading(weights, _beside(first.rows, _eye(n)))


def _sum_grading(z, k):
    first = _multinomial_grading(z)
    weights = np.concatenate([first.weights, MP.zeros(len(z)) + k["scale"][()]])
    return Grading(weights, np.concatenate([first.rows, _eye(len(z))]))


def _kept(z):
    return [j for j in range(len(z)) if j % 2 == 0]


def _masked(z, y, k):
    m = diagonal(_variance(z))
    for j in range(len(z)):
        if j % 2:
            m[j, j] = mpf(0)
    return m


def _graph(z, y, k):
    n = len(z)
    laplacian = MP.zeros(n, n)
    for i, j in EDGES:
        a, b = z[i], z[j]
        if a == b:
            capacity = a
        elif a == 0 or b == 0:
            capacity = mpf(0)
        else:
            capacity = (a - b) / (mp.log(a) - mp.log(b))
        for one, other, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
            laplacian[one, other] = laplacian[one, other] + sign * capacity
    from .reference import pseudo_inverse

    return pseudo_inverse(laplacian)


def _outer(x):
    return x[:, None] * x[None, :]


def _cosh_matrix(z, y, k):
    e = MP.exp(z)
    return diagonal((e + 1 / e) / 2) + 2 * (_eye(len(z)) * 0 + 1)


METRICS: dict[str, Metric] = {
    "euclidean": Metric(lambda z, y, k: _eye(len(z)) * k["scale"][()]),
    "gaussian": Metric(_precision, likelihood="gaussian"),
    "bernoulli": Metric(
        lambda z, y, k: diagonal(_variance(z)),
        lambda z, k: _diagonal_grading(_variance(z)), "bernoulli", "binary",
    ),
    "poisson": Metric(
        lambda z, y, k: diagonal(MP.exp(z)),
        lambda z, k: _diagonal_grading(MP.exp(z)), "poisson", "counts",
    ),
    "categorical": Metric(
        lambda z, y, k: _multinomial(z), lambda z, k: _multinomial_grading(z), "categorical",
        "label", (2, 3, 4),
    ),
    "soft": Metric(
        lambda z, y, k: _multinomial(z), lambda z, k: _multinomial_grading(z), "soft",
        "probabilities", (2, 3, 4),
    ),
    "mean_scale": Metric(
        lambda z, y, k: diagonal(_scales(z)), lambda z, k: _diagonal_grading(_scales(z)),
        "mean_scale", "half", (2, 4),
    ),
    "weighted": Metric(
        lambda z, y, k: diagonal(_variance(z)) * k["scale"][()],
        lambda z, k: _diagonal_grading(_variance(z) * k["scale"][()]), None, "binary",
    ),
    "product": Metric(
        lambda z, y, k: _beside(_multinomial(z[:3]), 2 * _eye(len(z) - 3)), _product_grading,
        None, "product", (4,),
    ),
    "independent": Metric(
        lambda z, y, k: _beside(_multinomial(z[:3]), 2 * _eye(len(z) - 3)), _product_grading,
        "independent", "product", (4, 5),
    ),
    "masked": Metric(
        _masked, lambda z, k: Grading(_variance(z)[_kept(z)], _eye(len(z))[_kept(z)]), None,
        "binary", (2, 3),
    ),
    "sum": Metric(
        lambda z, y, k: _multinomial(z) + _eye(len(z)) * k["scale"][()], _sum_grading, None,
        "label", (2, 3),
    ),
    "family_logistic": Metric(
        lambda z, y, k: diagonal(_variance(z)), None, "logistic", "binary", dense=True
    ),
    "family_softmax": Metric(
        lambda z, y, k: _multinomial(z), None, "log_sum_exp", "probabilities", (2, 3), dense=True
    ),
    "family_exp": Metric(
        lambda z, y, k: diagonal(MP.exp(z)), None, "exponential", "counts", dense=True
    ),
    "bregman_cosh": Metric(_cosh_matrix, dense=True),
    "bregman_softmax": Metric(
        lambda z, y, k: _multinomial(z), None, None, "probabilities", (2, 3), dense=True
    ),
    "divergence": Metric(lambda z, y, k: diagonal(MP.exp(z)), dense=True),
    "hessian_cosh": Metric(lambda z, y, k: diagonal(_cosh(z, y, k).slope), dense=True),
    "hessian_logistic": Metric(
        lambda z, y, k: diagonal(_variance(z)), None, None, "binary", dense=True
    ),
    "hessian_categorical": Metric(
        lambda z, y, k: _multinomial(z), None, None, "label", (2, 3), dense=True
    ),
    "riemannian": Metric(lambda z, y, k: _eye(len(z)) + _outer(z), dense=True),
    "riemannian_rank_one": Metric(lambda z, y, k: _outer(z), dense=True),
    "empirical": Metric(
        lambda z, y, k: _outer(_bernoulli(z, y, k).c), None, None, "binary", dense=True
    ),
    "graph": Metric(_graph, outputs=(4,), dense=True),
    "wasserstein": Metric(lambda z, y, k: _eye(len(z)), outputs=(2, 4)),
    "scores": Metric(lambda z, y, k: _eye(1), outputs=(1,)),
}  # fmt: skip
"""Of one sample; `scores` couples the samples, and `reference.py` has its matrix."""
