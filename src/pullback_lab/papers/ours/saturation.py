r"""The logistic natural gradient at huge logits. \(M = \varphi(z)\varphi(-z)\) and \(c = \varphi(z)
- y\) both underflow, but the ambient gradient

\[ M^{-1}c = \frac{1-y}{\varphi(-z)} - \frac{y}{\varphi(z)} \]

is bounded for a correctly classified sample. With more parameters than samples the weights cancel,
\(\delta = J^+M^{-1}c\); otherwise \(\delta\) solves a least squares problem whose rows are graded
over hundreds of orders of magnitude. Both are compared with 1000-digit arithmetic.

The shift by \(u_{\max}\) of Kerekes et al., eqs. (24) and (25), cures a common offset, not a spread
of the logits; they have that proviso (`depth-stability`).
"""

import decimal
from collections.abc import Iterator
from decimal import Decimal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._numbers import distance

DIGITS = 1000
# name: samples, columns, and the absolute values of the logits
CASES: dict[str, tuple[int, int, np.ndarray]] = {
    "offset 800, 5 samples, 8 parameters": (5, 8, 800 + np.linspace(0, 3, 5)),
    "offset 800, 12 samples, 3 parameters": (12, 3, 800 + np.linspace(0, 3, 12)),
    "spread 100, 12 samples, 3 parameters": (12, 3, np.linspace(1, 101, 12)),
    "spread 400, 12 samples, 3 parameters": (12, 3, np.linspace(1, 401, 12)),
    "spread 400, 5 samples, 8 parameters": (5, 8, np.linspace(1, 401, 5)),
}


def logits(beta: Float[Array, " d"], inputs: tuple[Array, Array]) -> Float[Array, " N"]:
    """A linear model with an offset for each sample."""
    return inputs[0] @ beta + inputs[1]


def data(case: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A design, logits of both signs, and the right labels."""
    samples, columns, size = CASES[case]
    rng = np.random.default_rng(12)
    y = rng.permutation(np.arange(samples) % 2).astype(float)
    return rng.standard_normal((samples, columns)), (2 * y - 1) * size, y


def direction(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The natural gradient of the library, at coefficients zero."""
    batch = (jnp.asarray(x), jnp.asarray(z)), jnp.asarray(y)
    problem = pb.Composite(logits, metric=pb.metric.Bernoulli())
    return np.asarray(pb.natural_gradient(problem, jnp.zeros(x.shape[1]), batch).vector)


def reference(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same from the formulas of a textbook, with enough digits.

    δ = (XᵀMX)⁻¹Xᵀc, or Xᵀ(XXᵀ)⁻¹M⁻¹c if there are more columns than rows.
    """
    with decimal.localcontext(prec=DIGITS):
        rows = [[Decimal(float(entry)) for entry in row] for row in x]
        p = [1 / (1 + (-Decimal(float(s))).exp()) for s in z]
        m = [q * (1 - q) for q in p]
        c = [q - Decimal(float(t)) for q, t in zip(p, y, strict=True)]
        columns = list(map(list, zip(*rows, strict=True)))
        if len(rows) < len(columns):
            inner = _solve(
                [[_dot(a, b) for b in rows] for a in rows],
                [a / b for a, b in zip(c, m, strict=True)],
            )
            return np.array([float(_dot(column, inner)) for column in columns])
        gram = [
            [sum(a * w * b for a, w, b in zip(u, m, v, strict=True)) for v in columns]
            for u in columns
        ]
        return np.array([float(d) for d in _solve(gram, [_dot(column, c) for column in columns])])


def _dot(a: list, b: list) -> Decimal:
    return sum((u * v for u, v in zip(a, b, strict=True)), Decimal(0))


def _solve(matrix: list, right: list) -> list[Decimal]:
    """Gaussian elimination; the matrix is positive definite."""
    rows = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    for i, pivot in enumerate(rows):
        for j, row in enumerate(rows):
            if j != i:
                factor = row[i] / pivot[i]
                rows[j] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def naive(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """F⁺ times the gradient, in float64: what the library must not do."""
    p = np.exp(-np.logaddexp(0, -z))
    return np.linalg.pinv(x.T @ ((p * (1 - p))[:, None] * x)) @ (x.T @ (p - y))


def shifted(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Eqs. (24) and (25) of the source: both scaled by \(e^{u_{\max}}\), \(u = \pm z\) the
    margins.
    """
    sign = 2 * y - 1
    u = sign * z
    signed = sign[:, None] * x
    scale = np.exp(u.max() - u)
    phi = 1 / (1 + np.exp(-u))
    return -np.linalg.pinv(signed.T @ ((scale * phi**2)[:, None] * signed)) @ (
        signed.T @ (scale * phi)
    )


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Every case; the formula J⁺M⁻¹c; and the formulas in float64 for comparison."""
    return Measured(tuple(_rows()))


def _rows() -> Iterator[Row]:
    expected = {case: reference(*data(case)) for case in CASES}
    for case in CASES:
        yield at_most(
            f"{case}: relative error", distance(direction(*data(case)), expected[case]), 1e-11
        )
    common = "offset 800, 5 samples, 8 parameters"
    spread = "spread 400, 5 samples, 8 parameters"
    x, z, y = data(common)
    ambient = (1 - y) * (1 + np.exp(np.minimum(z, 0))) - y * (1 + np.exp(np.minimum(-z, 0)))
    yield at_most(
        f"{common}: it is J⁺M⁻¹c", distance(direction(x, z, y), np.linalg.pinv(x) @ ambient), 1e-12
    )
    for case in (common, spread):
        yield at_least(
            f"{case}: F⁺ times the gradient in float64 is off by",
            distance(naive(*data(case)), expected[case]),
            0.5,
            Role.CONTROL,
        )
    yield at_most(
        "offset 800: eqs. (24), (25) of the source are right too",
        distance(shifted(x, z, y), expected[common]),
        1e-10,
        Role.CONTROL,
    )
    yield at_least(
        "spread 400: eqs. (24), (25) of the source are off by",
        distance(shifted(*data(spread)), expected[spread]),
        0.5,
        Role.CONTROL,
    )


CLAIM = Claim(
    name="saturation",
    source="ours",
    place="Kerekes, Mészáros, Huszár, eqs. (19) to (25), at huge logits",
    statement=(
        "The logistic natural gradient stays exact when logits are huge (an offset of 800) or "
        "far apart (spreads of 100 and 400), where Fisher matrix and gradient underflow and the "
        "formulas of the source fail."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
