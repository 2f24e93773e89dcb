r"""How far from the reference a natural gradient may be: what condition number and dtype give.

Everything is in orthonormal coordinates η of the gauge. Errors that no solver can avoid:

- `ΔJ`, `Δz`: the model in its own dtype, *measured* by evaluating it with NumPy, times 4, and at
  least 4 eps relative;
- `Δc = 4 eps |terms| + |∂c/∂z| Δz`, where c is a sum of `terms` that may cancel;
- `ΔA = ‖S‖ ΔJ + ‖ΔS‖ ‖J‖ + 4 √n eps ‖A‖`, n = max(m, P): the backward error of a solver, too.

Their effect, to first order, with the residual ρ = r - Aη:

    pseudo-inverse     (2 ‖η‖/s + ‖ρ‖/s²) ΔA + Δr/s + Δg/s²             s the smallest one kept
    damped             ‖ρ‖ ΔA/(λ + s²) + μ (ΔA ‖η‖ + Δr) + Δg/(λ + s²)  μ = max s/(s² + λ)
    M as a matrix      (Δg + ΔG ‖η‖)/(λ + s²)
    graded rows        as for the pseudo-inverse, with Â, r̂ where the weights of rows cancel
    truncation         + (‖η‖ + ‖r‖/s) times the angle by which the kept directions may turn

`Scores` takes the mean off its rows: ΔJ is of the size of J with its mean, so that ΔA has the
rounding of the mean, eps ‖mean‖, which no way of centring brings back.

g stands for what enters as a parameter covector: the part of c outside the range of M. The bound is
twice this. `Krylov` promises a relative residual of √eps of the normal equations, hence also
√eps ‖g‖/(λ + s²).
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

from .errors import SAFETY, Errors, errors_of, norm
from .geometry import METRICS
from .problem import EPS, LARGEST, Problem
from .reference import Reference, log10, singular_values, truncated


@dataclass
class Bound:
    """The expected answer, how far from it is right, and whether the problem decides it."""

    eta: np.ndarray
    allowed: Any
    ambiguous: str = ""
    """Why another answer may be right as well; empty if there is one answer."""
    well_posed: bool = False
    overflows: bool = False
    condition: float = math.inf


def bound_of(problem: Problem, reference: Reference) -> Bound:
    """Return what is right for a problem and how far from it."""
    with mp.workdps(min(reference.digits, 60)):
        return _bound(problem, reference)


def _rows_of(problem: Problem, reference: Reference) -> int:
    """Return m, the number of rows of A."""
    total = 0
    for number, (structure, *_) in enumerate(problem.parts):
        count = structure.others or max(structure.samples, 1)
        samples = [s for s in reference.samples if s.part == number]
        if structure.metric in ("graph", "empirical"):
            each = 4 if structure.metric == "graph" else 1
        elif structure.metric == "scores" or not samples:
            each = structure.outputs
        else:
            last = samples[-1]
            each = len(last.grading.rows if last.grading else last.c)
        total += count * each
    return total


def _bound(problem: Problem, reference: Reference) -> Bound:
    structure, values = problem.structure, problem.values
    eps = EPS[structure.dtype]
    m = _rows_of(problem, reference)
    n = max(m, structure.size)
    largest, fractions = singular_values(reference)
    errors = errors_of(problem, reference, largest, n)
    square = sum((s.weight * (s.c @ s.lifted) for s in reference.samples), mpf(0))
    lifted = mp.sqrt(abs(square))
    case = _Case(problem, reference, m, n, largest, fractions, errors, lifted)
    if structure.inverse == "tikhonov":
        eta, allowed, ambiguous, condition = case.damped(mpf(values.damping))
    elif structure.inverse == "pseudo" and case.grades and not structure.others:
        eta, allowed, ambiguous, condition = case.graded()
    else:
        eta, allowed, ambiguous, condition = case.cut()
    size = norm(eta)
    if structure.solver == "Krylov" and reference.rank:
        damping = values.damping if structure.inverse == "tikhonov" else 0
        full = reference.rank == structure.size or not damping
        smallest = damping + ((largest * mpf(float(fractions[-1]))) ** 2 if full else 0)
        allowed = max(allowed, mp.sqrt(eps) * norm(reference.covector) / smallest)
    tiny = mpf(10) ** (-LARGEST[structure.dtype] + 1)
    allowed = 2 * (allowed + eps * size) + tiny
    delta = eta / reference.root_gauge
    top = max((abs(x) for x in delta), default=mpf(0))
    overflows = not errors.finite or log10(top) > LARGEST[structure.dtype]
    if allowed > size / 2 and size > 0 and not ambiguous:
        ambiguous = "ill conditioned"
    # A solution is certified up to √eps: what cannot be had that well may be refused.
    precise = allowed < min(10 * math.sqrt(eps), 0.01) * size
    well_posed = not ambiguous and precise and _safe(problem, reference, delta)
    if case.squares and structure.inverse == "tikhonov":
        # The condition number of what is factorised.
        well_posed = well_posed and condition < 0.01 / eps
    return Bound(eta, allowed, ambiguous, well_posed, overflows, condition)


class _Case:
    """The bounds of one problem."""

    def __init__(self, problem, reference, m, n, largest, fractions, errors, lifted):
        self.structure, self.values = problem.structure, problem.values
        self.reference, self.m, self.n = reference, m, n
        self.largest, self.fractions, self.errors, self.lifted = largest, fractions, errors, lifted
        self.eps = EPS[self.structure.dtype]
        # Half precision is the model's only: the linear algebra is that of float32.
        self.algebra = min(self.eps, EPS["float32"])
        self.squares = self.structure.solver in ("Dual", "Primal")
        names = [part.structure.metric for part in problem.present]
        metrics = [METRICS[name] for name in names]
        self.dense = any(metric.dense for metric in metrics)
        self.lifts = any(not metric.dense for metric in metrics)
        self.grades = all(metric.grading is not None for metric in metrics)
        self.mixed = not self.grades and any(metric.grading is not None for metric in metrics)
        self.centres = "scores" in names

    def residual(self, eta) -> Any:
        """Return a bound of ‖r - Aη‖."""
        image = eta @ (self.reference.gram @ eta)
        if self.errors.outside > 0:
            return self.lifted + mp.sqrt(abs(image))
        return mp.sqrt(abs(self.lifted**2 - image))

    def lifted_bound(self, eta, s) -> Any:
        """Return the bound of a pseudo-inverse whose smallest singular value is s."""
        e = self.errors
        if self.structure.others:
            # G⁺g for any g: what is outside the range turns into it with A.
            outside = self.reference.covector - self.reference.gram @ eta
            gram = e.gram + 2 * self.largest * e.a
            return (e.g + gram * norm(eta)) / s**2 + e.a * norm(outside) / s**3
        bound = mpf(0)
        if self.dense:
            # r = S⁺c is large on rows of little weight: the solver's rounding, up to its promise.
            stable = 4 * math.sqrt(self.n) * self.eps * self.largest * self.residual(eta) / s**2
            promised = math.sqrt(self.eps) * norm(eta)
            bound = (e.g + e.gram * norm(eta)) / s**2 + min(stable, promised)
        if self.lifts:
            bound = bound + (2 * norm(eta) / s + self.residual(eta) / s**2) * e.a + e.r / s
            if e.outside > 0 or self.centres:
                bound = bound + (e.g + SAFETY * math.sqrt(self.n) * self.eps * e.outside) / s**2
        return bound

    def damped(self, damping):
        """Return the case of a damped inverse."""
        e, eta = self.errors, self.reference.eta
        s = [self.largest * mpf(float(f)) for f in self.fractions]
        full = self.reference.rank == self.structure.size
        least = damping + (s[-1] ** 2 if s and full else 0)
        allowed = (e.g + e.gram * norm(eta)) / least if self.dense else mpf(0)
        if self.lifts:
            response = max([x / (x * x + damping) for x in s], default=mpf(0))
            allowed = allowed + self.residual(eta) * e.a / least
            allowed = allowed + response * (e.a * norm(eta) + e.r)
            if e.outside > 0 or self.centres:
                allowed = (
                    allowed + (e.g + SAFETY * math.sqrt(self.n) * self.eps * e.outside) / least
                )
        if self.structure.others and self.structure.solver != "SVD":
            # Along the kernel, the rounding of Gη over λ.
            allowed = allowed + SAFETY * self.n * self.eps * self.largest**2 * norm(eta) / least
        condition = float((self.largest**2 + damping) / least)
        return eta, allowed, "", condition

    def cut(self):
        """Return the case of a pseudo-inverse with a cut-off on the singular values of A."""
        structure, f = self.structure, self.fractions
        if not len(f):
            return self.reference.eta, mpf(0), self._noise(0.0), 1.0
        resolution = math.sqrt(self.n * self.algebra) if self.squares else 0.0
        zero = self.n * self.algebra if structure.inverse != "rtol" else self.values.rtol
        cutoff = max(zero, resolution)
        noise = float(self.errors.a / self.largest)
        ambiguous = ""
        near = (f > cutoff / 10) & (f < 10 * max(cutoff, 0.0))
        if structure.inverse == "rtol" and cutoff > 100 * noise:
            width = 20 * noise
            near = np.abs(f**2 - cutoff**2) < width if self.squares else np.abs(f - cutoff) < width
        if self.dense:
            # Eigenvalues of G are known up to ΔG.
            near = near | (f**2 < 10 * float(self.errors.gram / self.largest**2))
        if self.eps > self.algebra:
            near = near | ((f > cutoff) & (f < 20 * self.eps))
        if self.structure.others and self.grades and np.any(f < 10 * max(cutoff, 20 * self.eps)):
            ambiguous = "light rows"
        if self.mixed and np.any(f < 100 * max(cutoff, math.sqrt(self.n * self.algebra))):
            # The rows of one term are graded, those of another are not.
            ambiguous = "light rows"
        if self.errors.matrix:
            ambiguous = "rounding of the metric may be a direction (item 14)"
        if np.any(near):
            ambiguous = "a singular value is at the cut-off"
        if structure.solver == "Krylov" and np.any(f < 100 * math.sqrt(self.n * self.eps)):
            ambiguous = "beyond what an iteration resolves"
        kept = int(np.sum(f > cutoff))
        if structure.inverse == "rank":
            kept = min(kept, structure.rank)
        ambiguous = ambiguous or self._noise(cutoff)
        if kept == len(f):
            eta = self.reference.eta
        else:
            if self.reference.digits > 400:
                return self.reference.eta, mpf(0), "too graded to truncate", math.inf
            eta = truncated(self.reference, kept)
        if kept == 0:
            return eta, mpf(0), ambiguous, 1.0
        s = self.largest * mpf(float(f[kept - 1]))
        allowed = self.lifted_bound(eta, s) + self._turned(eta, s, kept)
        return eta, allowed, ambiguous, float(1 / f[kept - 1])

    def _noise(self, cutoff: float) -> str:
        """Return why rounding may count as a direction."""
        rank, most = self.reference.rank, min(self.m, self.structure.size)
        if rank == most or (self.structure.inverse == "rank" and self.structure.rank <= rank):
            return ""
        if rank == 0:
            return ""
        noise = 3 * self.errors.noise / self.largest + self.eps
        return "rounding of the model may be a direction (item 14)" if noise > cutoff else ""

    def _turned(self, eta, s, kept) -> Any:
        """Return how far the kept directions may turn towards the dropped ones."""
        f, e = self.fractions, self.errors
        if kept == len(f) and self.structure.inverse == "pseudo":
            return mpf(0)
        following = self.largest * mpf(float(f[kept])) if kept < len(f) else mpf(0)
        if self.squares or self.dense:
            gap = s * s - following * following
            angle = (e.a * self.largest + (e.gram if self.dense else 0)) / max(gap, s * s / 10**30)
        else:
            angle = e.a / max(s - following, s / 10**30)
        given = norm(self.reference.covector) / s**2 if self.structure.others else 0
        return angle * (norm(eta) + self.lifted / s + given)

    def graded(self):
        """Return the case of an undamped pseudo-inverse of rows whose weights differ."""
        reference, e, eta = self.reference, self.errors, self.reference.eta
        if not reference.rank:
            return eta, mpf(0), "", 1.0
        rows = np.concatenate([s.grading.rows @ s.jacobian for s in reference.samples])
        hat = np.concatenate([s.grading.rows @ s.lifted for s in reference.samples])
        scale = max(abs(rows).ravel())
        values = np.linalg.svd((rows / scale).astype(float), compute_uv=False)
        rank = reference.rank
        f = values[:rank] / values[0]
        top, s = scale * mpf(float(values[0])), scale * mpf(float(values[rank - 1]))
        cutoff = math.sqrt(self.n * self.algebra) if self.squares else self.n * self.algebra
        ambiguous = ""
        if f[-1] < max(10 * cutoff, 20 * (self.eps - self.algebra)) or s == 0:
            return eta, mpf(0), "a singular value is at the cut-off", math.inf
        full = rank == len(rows)
        if not full and 3 * norm_noise(e) / top + self.eps > cutoff and rank < self.structure.size:
            ambiguous = "rounding of the model may be a direction (item 14)"
        weights = SAFETY * math.sqrt(self.n) * self.eps * top
        unit = e.unit + weights
        if full:
            allowed = 2 * unit * norm(eta) / s + e.unit_r / s
        else:
            rest = norm(hat - rows @ eta)
            chi = 10 / s
            allowed = chi * (unit * norm(eta) + e.unit_r + unit / top * norm(hat))
            allowed = allowed + chi**2 * unit * rest
        if self.structure.solver in ("Primal", "Krylov", "Dual"):
            small = self.fractions[-1]
            # These work on the weighted rows; with light ones among them they may refuse.
            limit = 10 * math.sqrt(self.n * self.eps)
            if small < limit and not (full and self.structure.solver == "Dual"):
                ambiguous = ambiguous or "light rows"
            else:
                s = self.largest * mpf(float(small))
                if not (full and self.structure.solver == "Dual"):
                    allowed = max(allowed, self.lifted_bound(eta, s))
        return eta, allowed, ambiguous, float(1 / f[-1])


def norm_noise(errors: Errors) -> Any:
    """Return the measured rounding of the rows without their grading."""
    return errors.unit / SAFETY


def _safe(problem: Problem, reference: Reference, delta) -> bool:
    """Return whether no fourth power is near overflow, and of what matters none near underflow.

    A row of A that underflows does not matter where the inverse is damped.
    """
    most = 0.24 * LARGEST[problem.structure.dtype]
    numbers: list[Any] = [*delta, *reference.covector]
    for s in reference.samples:
        numbers += [*s.z, *s.jacobian.ravel(), *s.c]
        numbers += [s.matrix[i, i] * s.weight for i in range(len(s.matrix))]
    given = [np.abs(p) for p in problem.values.params.values()]
    for part in problem.present:
        given += [part.values.y, part.values.x]
    numbers += [mpf(float(v)) for a in given if a is not None for v in a.ravel() if np.isfinite(v)]
    matter = [norm(delta), norm(reference.covector)]
    if problem.structure.inverse != "tikhonov":
        matter += [mp.sqrt(d) for d in reference.pivots]
        matter += [w for s in reference.samples if s.grading for w in s.grading.weights]
    return all(x == 0 or log10(x) < most for x in numbers) and all(
        x == 0 or log10(x) > -most for x in matter
    )
