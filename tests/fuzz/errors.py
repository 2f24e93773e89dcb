"""The errors that rounding makes unavoidable, sample by sample: measured where that is possible."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

from . import formulas
from .geometry import METRICS
from .problem import EPS, LARGEST, Problem, Structure, Values
from .reference import Reference, Sample, pseudo_inverse

SAFETY = 4
CONSTANT_METRICS = ("euclidean", "gaussian", "wasserstein", "scores")


@dataclass
class Errors:
    """Norms of unavoidable errors, and of what they act on."""

    a: Any
    """ΔA."""
    noise: Any
    """What is certain to be in A without any safety: more than that is a direction."""
    unit: Any
    """ΔÂ, of the rows without their grading."""
    r: Any
    unit_r: Any
    g: Any
    outside: Any
    """‖g_x‖."""
    gram: Any
    """ΔG."""
    finite: bool
    matrix: bool = False
    """Whether rounding may be a direction of an M that is formed as a matrix."""


def norm(x: Any) -> Any:
    """Return the 2-norm (Frobenius) of mpmath numbers."""
    return mp.sqrt(sum((v * v for v in np.ravel(x)), mpf(0)))


def _measured(
    structure: Structure, values: Values, reference: Reference, samples: list[Sample]
) -> list[tuple[Any, Any, bool]]:
    """Return, per present sample, the measured error of z and of J, and whether they are finite."""
    short = structure.dtype in ("float16", "bfloat16")
    dtype = "float32" if short else structure.dtype
    factor = EPS[structure.dtype] / EPS[dtype]
    lib = formulas.floats(structure, dtype)
    params = formulas.moving(structure, values, lib)
    present = range(max(structure.samples, 1))
    if structure.measure == "weights" and values.w is not None:
        present = [i for i in present if values.w[i] != 0]
    found = []
    with np.errstate(all="ignore"):
        for i in present:
            x = None if values.x is None else lib.array(values.x[i])
            z, jacobian = formulas.outputs(structure, params, x, lib)
            found.append((z, jacobian))
        for x in () if values.others is None else values.others:
            found.append(formulas.outputs(structure, params, lib.array(x), lib))
        if structure.metric == "scores" and found:
            parts = zip(*found, strict=True)
            found = [tuple(np.concatenate(part) for part in parts)]
    errors = []
    for (z, jacobian), s in zip(found, samples, strict=True):
        fine = bool(np.all(np.isfinite(z)) and np.all(np.isfinite(jacobian)))
        if not fine:
            errors.append((mpf(0), mpf(0), False))
            continue
        exact = s.jacobian * reference.root_gauge[None, :]
        gap = formulas.MP.array(jacobian) - exact
        dz = max(abs(formulas.MP.array(z) - s.z)) * factor
        errors.append((dz, norm(gap / reference.root_gauge[None, :]) * factor, True))
    return errors


def errors_of(problem: Problem, reference: Reference, largest: Any, n: int) -> Errors:
    """Return the errors that rounding makes unavoidable."""
    eps, sums, finite, vague = mpf(EPS[problem.structure.dtype]), _Sums(), True, False
    for number, (structure, values, weight) in enumerate(problem.parts):
        samples = [s for s in reference.samples if s.part == number]
        if weight == 0 or not samples:
            continue
        measured = _measured(structure, values, reference, samples)
        for s, (dz, dj, fine) in zip(samples, measured, strict=True):
            finite = finite and fine
            vague = _add(sums, structure, s, dz, dj) or vague
    a = mp.sqrt(sums.a2) + (sums.root_error + SAFETY * mp.sqrt(n) * eps) * largest
    gram = sums.gram + 2 * largest * a
    return Errors(
        a, mp.sqrt(sums.noise2), mp.sqrt(sums.unit2), mp.sqrt(sums.r2), mp.sqrt(sums.unit_r2),
        sums.g, sums.outside, gram, finite, vague,
    )  # fmt: skip


@dataclass
class _Sums:
    """What the errors of all samples add up to."""

    a2: Any = 0
    noise2: Any = 0
    unit2: Any = 0
    r2: Any = 0
    unit_r2: Any = 0
    g: Any = 0
    outside: Any = 0
    gram: Any = 0
    root_error: Any = 0


def _add(sums: _Sums, structure: Structure, s: Sample, dz: Any, dj: Any) -> bool:
    """Add the errors of a sample; return whether rounding may be a direction of its metric."""
    metric, eps = METRICS[structure.metric], mpf(EPS[structure.dtype])
    order = int(any(name in structure.metric for name in ("softmax", "logistic", "categorical")))
    zero, tiny = mpf(0), mpf(10) ** -LARGEST[structure.dtype]
    # A likelihood of the metric is lifted in closed form, where nothing underflows.
    lost = zero if structure.loss is None else tiny
    size_j, size_m, vague = norm(s.jacobian), norm(s.matrix), False
    sums.noise2 += s.weight * size_m * dj**2
    dz = SAFETY * (dz + eps * max(abs(s.z)) + tiny)
    dj = SAFETY * (dj + eps * size_j + tiny)
    constant = structure.metric in CONSTANT_METRICS
    turned = zero if constant else 2 * dz * (1 + max(abs(s.z)) * structure.metric.count("riem"))
    if structure.metric == "graph":
        # M = L⁺ by way of the singular values of a root of L(p).
        spread = norm(s.matrix) * norm(pseudo_inverse(s.matrix))
        # A probability that may be zero: whether an edge is there is not decided.
        vague = min(s.z) <= dz
        turned = dz / max(min(s.z), dz) + SAFETY * eps * mp.sqrt(spread)
    turned = turned + SAFETY * eps
    sums.root_error = max(sums.root_error, turned)
    sums.a2 += s.weight * size_m * dj**2
    sums.gram += (
        s.weight
        * size_j**2
        * (
            turned * size_m
            + (2 * SAFETY * eps * (size_m + 1) if metric.dense and size_m > 0 else 0)
        )
    )
    vague = vague or (metric.dense and _vague(s, float(eps), order))
    dc = SAFETY * eps * s.terms + s.slope * dz + lost
    sums.g += s.weight * (size_j * norm(dc) + dj * norm(s.c))
    sums.outside += s.weight * size_j * norm(s.outside)
    if metric.grading is None and not metric.dense:
        inverse = abs(pseudo_inverse(s.matrix))
        sums.r2 += s.weight * (abs(dc @ (inverse @ dc)))
    if s.grading is not None:
        sums.unit2 += (dj + turned * size_j) ** 2 * len(s.grading.rows)
        hat = s.grading.rows @ s.lifted
        parts = [hat[j] * turned for j in range(len(hat))]
        sums.unit_r2 += norm(parts) ** 2 + _unlikely(s, dc) ** 2
        sums.r2 += s.weight * sum(
            w * x * x for w, x in zip(s.grading.weights, _lift_errors(s, dc), strict=True)
        )
    return vague


def _vague(s, eps: float, order: int) -> bool:
    """Return whether rounding hides an eigenvalue of a dense M, or is one itself (item 14).

    The Hessians of softmax and logistic functions are differences of numbers of order one.
    """
    size = norm(s.matrix)
    if size == 0:
        return False
    values = np.linalg.eigvalsh((s.matrix / size).astype(float))
    count, one = len(values), float(order / size)
    hidden = (values > 1e-25) & (values < 64 * count * eps * (1 + one))
    return bool(np.any(hidden) or (np.any(values <= 1e-25) and one > 2 * count))


def _lift_errors(s, dc) -> list[Any]:
    """Return the errors of r̂, row by row of the graded root."""
    places = [np.flatnonzero(row != 0) for row in s.grading.rows]
    if all(len(place) == 1 for place in places):
        pairs = zip(places, s.grading.weights, strict=True)
        return [dc[place[0]] / w for place, w in pairs]
    # Categorical rows leave out the likeliest class.
    total = sum(dc)
    found, place = [], 0
    k = max(range(len(s.c)), key=lambda i: s.z[i])
    for j in range(len(s.c)):
        if j != k and place < len(s.grading.weights):
            found.append(dc[j] / s.grading.weights[place] + total)
            place += 1
    while len(found) < len(s.grading.weights):
        found.append(total / s.grading.weights[len(found)])
    return found


def _unlikely(s, dc) -> Any:
    return norm(_lift_errors(s, dc))
