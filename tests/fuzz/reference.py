"""The answer in arbitrary precision, from the description of a problem.

With M_i, c_i of every present sample in closed form (`geometry.py`) and J_i by propagating
tangents, G = Σ w_i J_iᵀ M_i J_i and g = Σ w_i J_iᵀ c_i are formed with so many digits that the rank
of G can be read off its pivots, and δ = G⁺g, or (G + λW)⁻¹g, follows from a pivoted factorisation

    G = L diag(d) Lᵀ,     G⁺ = L (LᵀL)⁻¹ diag(1/d) (LᵀL)⁻¹ Lᵀ,

whose L is well conditioned however graded d is. Imports nothing of pullback, nor JAX.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpmath import mp, mpf

from . import formulas
from .formulas import MP, TooManyDigits
from .geometry import LOSSES, METRICS, Grading
from .problem import Problem, Structure, Values

DIGITS, MOST = 120, 2600


DIFFERENCES = ("categorical", "soft", "product", "independent", "log_sum_exp")
"""Losses whose differential is p - y: handed over, it is right to eps, not to eps c."""


@dataclass
class Sample:
    """One present sample, or the whole batch where the metric couples the samples."""

    weight: Any
    z: np.ndarray
    jacobian: np.ndarray
    matrix: np.ndarray
    c: np.ndarray
    terms: np.ndarray
    slope: np.ndarray
    grading: Grading | None = None
    lifted: np.ndarray | None = None
    """M⁺c."""
    outside: np.ndarray | None = None
    """c - MM⁺c."""
    part: int = 0
    """The number of its term."""


@dataclass
class Reference:
    """G, g and what follows from them, in orthonormal coordinates of the gauge."""

    samples: list[Sample]
    gram: np.ndarray
    covector: np.ndarray
    lower: np.ndarray
    pivots: list[Any]
    root_gauge: np.ndarray
    """√W: η = √W δ."""
    digits: int
    eta: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """The exact solution, nothing dropped."""

    @property
    def rank(self) -> int:
        """The exact rank of G."""
        return len(self.pivots)


def factorise(g: np.ndarray, digits: int) -> tuple[np.ndarray, list[Any]]:
    """Return L (n, k), unit lower trapezoidal up to the order of its rows, and the k pivots."""
    n = len(g)
    rest = g.copy()
    top = max((abs(rest[i, i]) for i in range(n)), default=mpf(0))
    zero = top * mpf(10) ** (20 - digits)
    columns, pivots, free = [], [], list(range(n))
    while free:
        j = max(free, key=lambda i: rest[i, i])
        d = rest[j, j]
        if not d > zero:
            break
        column = MP.zeros(n)
        for i in free:
            column[i] = rest[i, j] / d
        free.remove(j)
        for a, i in enumerate(free):
            for k in free[: a + 1]:
                rest[i, k] = rest[k, i] = rest[i, k] - column[i] * d * column[k]
        columns.append(column)
        pivots.append(d)
    lower = np.array(columns, dtype=object).T if columns else MP.zeros(n, 0)
    return lower, pivots


def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a⁻¹ b for a symmetric positive definite matrix, Cholesky without roots."""
    n, a, b = len(a), a.copy(), b.copy()
    for j in range(n):
        for i in range(j + 1, n):
            if a[i, j] == 0:
                continue
            f = a[i, j] / a[j, j]
            a[i, j:] = a[i, j:] - f * a[j, j:]
            b[i] = b[i] - f * b[j]
    for j in reversed(range(n)):
        total = b[j]
        for i in range(j + 1, n):
            total = total - a[j, i] * b[i]
        b[j] = total / a[j, j]
    return b


def apply_pseudo_inverse(lower: np.ndarray, pivots: list[Any], g: np.ndarray) -> np.ndarray:
    """Return G⁺ g."""
    if not pivots:
        return g * 0
    square = lower.T @ lower
    inside = solve(square, lower.T @ g)
    scaled = np.array([x / d for x, d in zip(inside, pivots, strict=True)], dtype=object)
    return lower @ solve(square, scaled)


def pseudo_inverse(m: np.ndarray) -> np.ndarray:
    """Return M⁺, dense."""
    lower, pivots = factorise(m, mp.dps)
    eye = np.array([[mpf(int(i == j)) for j in range(len(m))] for i in range(len(m))], dtype=object)
    return np.array([apply_pseudo_inverse(lower, pivots, e) for e in eye], dtype=object).T


def samples_of(structure: Structure, values: Values) -> list[Sample]:
    """Return every present sample in the current precision."""
    params = formulas.moving(structure, values, MP)
    constants = {name: MP.array(x) for name, x in values.constants.items()}
    metric, name = METRICS[structure.metric], structure.loss
    loss = LOSSES[name if name is not None else metric.likelihood or ""]
    count = structure.samples
    found, cache = [], {}
    for i in range(max(count, 1)):
        weight = weight_of(structure, values, i)
        if weight == 0:
            continue
        x = None if values.x is None else values.x[i]
        key = None if x is None else x.tobytes()
        if key not in cache:
            inputs = None if x is None else MP.array(x)
            cache[key] = formulas.outputs(structure, params, inputs, MP)
        z, jacobian = cache[key]
        y = target_of(structure, values, i)
        c, terms, slope = loss(z, y, constants)
        # A likelihood of the metric is lifted in closed form, unless the metric is elsewhere.
        if (metric.likelihood if structure.others and name is None else name) in DIFFERENCES:
            terms = terms * 0 + max(1, *terms)
        grading = None if metric.grading is None else metric.grading(z, constants)
        matrix = metric.matrix(z, y, constants)
        found.append(Sample(weight, z, jacobian, matrix, c, terms, slope, grading))
    if structure.others:
        return _apart(structure, values, params, constants, found)
    return _coupled(found) if structure.metric == "scores" else found


def _apart(structure, values, params, constants, found: list[Sample]) -> list[Sample]:
    """Return the samples of the loss without a metric, and those of the metric without a loss."""
    metric = METRICS[structure.metric]
    for s in found:
        s.matrix, s.grading = s.matrix * 0, None
    weight = mpf(1) if structure.measure == "sum" else 1 / mpf(structure.others)
    for x in values.others:
        z, jacobian = formulas.outputs(structure, params, MP.array(x), MP)
        zero = z * 0
        grading = None if metric.grading is None else metric.grading(z, constants)
        matrix = metric.matrix(z, None, constants)
        found.append(Sample(weight, z, jacobian, matrix, zero, zero, zero, grading))
    return found


def _coupled(found: list[Sample]) -> list[Sample]:
    """Return the batch as one sample, with the matrix of the covariance of scores.

    Each of several outputs of a sample is centred by itself.
    """
    if not found:
        return []
    w, q = np.array([s.weight for s in found], dtype=object), len(found[0].z)
    join = lambda name: np.concatenate([getattr(s, name) for s in found])
    one = -w[:, None] * w[None, :] / w.sum()
    for i in range(len(w)):
        one[i, i] = w[i] * sum(w[j] for j in range(len(w)) if j != i) / w.sum()
    matrix = MP.zeros(len(w) * q, len(w) * q)
    for k in range(q):
        matrix[k::q, k::q] = one
    scaled = [np.repeat(w, q) * join(name) for name in ("c", "terms", "slope")]
    return [Sample(mpf(1), join("z"), join("jacobian"), matrix, *scaled)]


def all_samples(problem: Problem) -> list[Sample]:
    """Return every present sample of every term that is present, with the weight of its term."""
    found = []
    for number, (structure, values, weight) in enumerate(problem.parts):
        if weight == 0:
            continue
        for s in samples_of(structure, values):
            s.weight, s.part = s.weight * mpf(weight), number
            found.append(s)
    return found


def weight_of(structure: Structure, values: Values, i: int) -> Any:
    """Return the weight of a sample."""
    if structure.samples == 0 or structure.measure == "sum":
        return mpf(1)
    if structure.measure == "mean":
        return 1 / mpf(structure.samples)
    assert values.w is not None
    return mpf(float(values.w[i]))


def target_of(structure: Structure, values: Values, i: int) -> Any:
    """Return the target of a sample as its loss takes it."""
    if values.y is None:
        return None
    y = values.y[i] if structure.samples else values.y
    if METRICS[structure.metric].targets == "label":
        return int(y)
    return MP.array(y)


def spread(samples: list[Sample], damping: Any) -> int:
    """Return over how many decades the entries of the weighted JᵀMJ, and λ, range."""
    low, high = math.inf, -math.inf
    if damping is not None:
        low = high = log10(damping)
    for s in samples:
        weights = [s.matrix[i, i] for i in range(len(s.matrix))]
        if s.grading is not None:
            weights += list(s.grading.weights)
        rows = [abs(x) for x in s.jacobian.ravel() if x != 0]
        sizes = [abs(x) * s.weight for x in [*weights, *s.c] if x != 0]
        if not rows or not sizes:
            continue
        low = min(low, log10(min(sizes)) + 2 * log10(min(rows)))
        high = max(high, log10(max(sizes)) + 2 * log10(max(rows)))
    if high == -math.inf:
        return 0
    if not high - low < 10 * MOST:
        return 10 * MOST
    return max(0, math.ceil(high - low))


def log10(x: Any) -> float:
    """Return the decimal logarithm of a positive mpmath number of any size."""
    if x == 0:
        return -math.inf
    mantissa, exponent = mp.frexp(x)
    if abs(exponent) > 10**12:
        return math.inf if exponent > 0 else -math.inf
    return math.log10(abs(float(mantissa))) + exponent * math.log10(2)


def refer(problem: Problem) -> Reference:
    """Return the reference of a problem whose numbers are finite."""
    structure, values = problem.structure, problem.values
    digits = DIGITS
    damping = mpf(values.damping) if structure.inverse == "tikhonov" else None
    while True:
        with mp.workdps(digits):
            samples = all_samples(problem)
            needed = spread(samples, damping) + 80
        if needed <= digits:
            break
        if needed > MOST:
            raise TooManyDigits
        digits = needed if needed < 1000 else min(MOST, needed + 100)
    with mp.workdps(digits):
        return _assemble(structure, values, samples, digits)


def _assemble(structure, values, samples, digits) -> Reference:
    size = structure.size
    root_gauge = MP.zeros(size) + 1
    if structure.gauge is not None:
        root_gauge = np.array([mp.sqrt(x) for x in MP.array(values.gauge).ravel()], dtype=object)
        if structure.gauge == "number":
            root_gauge = MP.zeros(size) + root_gauge[0]
    gram, covector = MP.zeros(size, size), MP.zeros(size)
    for s in samples:
        s.jacobian = s.jacobian / root_gauge[None, :]
        gram = gram + s.jacobian.T @ (s.weight * s.matrix @ s.jacobian)
        covector = covector + s.weight * (s.jacobian.T @ s.c)
        lower, pivots = factorise(s.matrix, digits)
        s.lifted = apply_pseudo_inverse(lower, pivots, s.c)
        rest = s.c - s.matrix @ s.lifted
        small = max(abs(s.c)) * mpf(10) ** (-digits // 2)
        s.outside = np.array([x if abs(x) > small else mpf(0) for x in rest], dtype=object)
    lower, pivots = factorise(gram, digits)
    found = Reference(samples, gram, covector, lower, pivots, root_gauge, digits)
    if structure.inverse == "tikhonov":
        damped = gram.copy()
        for i in range(size):
            damped[i, i] = damped[i, i] + mpf(values.damping)
        found.eta = solve(damped, covector) if size else covector
    else:
        found.eta = apply_pseudo_inverse(lower, pivots, covector)
    return found


def truncated(reference: Reference, rank: int) -> np.ndarray:
    """Return the solution on the `rank` largest singular values."""
    with mp.workdps(min(reference.digits, 200)):
        n = len(reference.gram)
        values, vectors = mp.eigsy(mp.matrix(reference.gram.tolist()))
        eta = MP.zeros(n)
        for j in range(n - rank, n):
            v = np.array([vectors[i, j] for i in range(n)], dtype=object)
            eta = eta + v * ((v @ reference.covector) / values[j])
        return eta


def singular_values(reference: Reference) -> tuple[Any, np.ndarray]:
    """Return the largest singular value of A, and all exact non-zero ones as fractions of it.

    The fractions are floats, right to 1e-15 absolutely; the last is a lower bound if it is smaller.
    """
    if not reference.pivots:
        return mpf(0), np.zeros(0)
    with mp.workdps(50):
        roots = [mp.sqrt(d) for d in reference.pivots]
        b = np.array([reference.lower[:, j] * r for j, r in enumerate(roots)], dtype=object)
        scale = max(abs(b).ravel())
        s = np.linalg.svd((b / scale).astype(float), compute_uv=False)
        largest = scale * mpf(float(s[0]))
        fractions = s / s[0]
        if fractions[-1] < 1e-13:
            fractions[fractions < 1e-13] = max(float(_smallest(reference) / largest), 1e-300)
        return largest, fractions


def _smallest(reference: Reference) -> Any:
    """Return a lower bound of the smallest singular value, 1/‖A⁺‖_F."""
    with mp.workdps(reference.digits):
        lower = reference.lower
        inverse = solve(lower.T @ lower, lower.T)
        total = mpf(0)
        for row, d in zip(inverse, reference.pivots, strict=True):
            total = total + (row @ row) / d
        return 1 / mp.sqrt(total)
