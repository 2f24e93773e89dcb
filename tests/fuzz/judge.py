"""The outcome of a fuzzed problem: what pullback returned or raised, against the reference.

| outcome | meaning |
|---|---|
| `right` | within the bound that condition number and dtype give (`bound.py`) |
| `refused` | a failure of pullback's own, with a message that names the cause |
| `refused well-posed` | the same, although condition and sizes are harmless |
| `ambiguous` | the dtype does not decide the answer (a singular value at the cut-off, no digits) |
| `silently wrong` | called successful, and beyond the bound, or not finite |
| `zero` | called successful, the zero vector, and the answer is not zero |
| `obscure error` | an exception that is not pullback's own |
| `crash` | the process ended |
| `unjudged` | the fuzzer itself failed |
"""

import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpmath import mp, mpf

from .bound import Bound, bound_of
from .errors import norm
from .geometry import METRICS
from .problem import Problem, Structure, Values
from .reference import TooManyDigits, refer

OUTCOMES = (
    "right", "refused", "refused well-posed", "ambiguous", "silently wrong", "zero",
    "obscure error", "crash", "unjudged",
)  # fmt: skip
BAD = ("silently wrong", "zero", "obscure error", "crash", "unjudged")


@dataclass
class Verdict:
    """An outcome and why."""

    outcome: str
    detail: str = ""
    error: float = 0.0
    """Relative to the reference."""
    allowed: float = 0.0
    condition: float = 0.0


def answer(problem: Problem) -> tuple[np.ndarray | None, str, bool]:
    """Return pullback's vector, or the message of its failure and whether that is its own."""
    from . import build

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = build.compute(problem)
        return build.flat_vector(problem.structure, found.vector), f"{found!r}", True
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = Path(frames[-1].filename)
        ours = "pullback" in last.parts and last.parts[-1].endswith(".py")
        own = type(error) in (ValueError, RuntimeError, TypeError) and ours
        where = f"{last.name}:{frames[-1].lineno}"
        return None, f"{type(error).__name__} ({where}): {str(error)[:300]}", own


def must_refuse(problem: Problem) -> str:
    """Return why a problem has no answer, from its numbers alone; empty if it may have one."""
    weights = problem.values.weights
    if weights is not None and not np.all(np.isfinite(weights) & (weights >= 0)):
        return "a weight of a term is negative or not finite"
    if any(part.values.x is not None and not len(part.values.x) for part in problem.parts):
        return "a batch is empty"
    for part in problem.parts:
        w = part.values.w
        if w is not None and not np.all(np.isfinite(w) & (w >= 0)) and part.weight:
            return "a weight is negative or not finite"
    for name, p in problem.values.params.items():
        if not np.all(np.isfinite(p)):
            return f"the parameter {name} is not finite"
    return next(filter(None, (_bad_data(*part[:2]) for part in problem.present)), "")


def _bad_data(structure: Structure, values: Values) -> str:
    """Return what is wrong with the data of a term."""
    present = slice(None) if values.w is None else values.w > 0
    x, y = values.x, values.y
    if x is not None and not np.all(np.isfinite(x[present])):
        return "an input is not finite"
    if y is None:
        return ""
    y = y[present] if structure.samples else y
    if not np.all(np.isfinite(y)):
        return "a target is not finite"
    kind = METRICS[structure.metric].targets
    if kind == "label" and np.any((y < 0) | (y >= structure.outputs)):
        return "a label is out of range" if structure.loss is None else "a label of the user"
    if structure.metric == "bernoulli" and structure.loss is None and np.any((y < 0) | (y > 1)):
        return "a target is not in [0, 1]"
    return ""


def judge(problem: Problem) -> Verdict:
    """Return the verdict on a problem."""
    vector, message, own = answer(problem)
    if vector is None and not own:
        return Verdict("obscure error", message)
    reason = must_refuse(problem)
    if reason:
        if vector is None:
            return Verdict("refused", message)
        if reason == "a label of the user":
            return Verdict("ambiguous", "a label is out of range, and the loss is the user's")
        return Verdict("silently wrong", f"{reason}, and the answer is {_short(vector)}")
    try:
        bound = bound_of(problem, refer(problem))
    except TooManyDigits:
        return Verdict("refused" if vector is None else "ambiguous", "too many digits")
    if vector is None:
        outcome = "refused well-posed" if bound.well_posed else "refused"
        return Verdict(outcome, message, condition=bound.condition)
    return compare(problem, vector, bound, message)


def compare(problem: Problem, vector: np.ndarray, bound: Bound, message: str) -> Verdict:
    """Return the verdict on a vector that was called successful."""
    if not np.all(np.isfinite(vector)):
        return Verdict("silently wrong", f"not finite: {_short(vector)}")
    with mp.workdps(60):
        root = _root_gauge(problem)
        found = np.array([mpf(float(x)) for x in vector], dtype=object) * root
        error, size = norm(found - bound.eta), norm(bound.eta)
        relative = _float(error / size) if size > 0 else _float(error)
        allowed = _float(bound.allowed / size) if size > 0 else _float(bound.allowed)
        sizes = relative, allowed, bound.condition
        if error <= bound.allowed and (allowed < 0.5 or size == 0):
            return Verdict("right", "", *sizes)
        if bound.ambiguous or error <= bound.allowed:
            fine = relative < 0.1
            return Verdict("right" if fine else "ambiguous", bound.ambiguous, *sizes)
        truth = np.array([_float(x) for x in bound.eta / root])
        detail = f"returned {_short(vector)}, truth {_short(truth)}; {message}"
        zero = not np.any(vector) and size > 0
        return Verdict("zero" if zero else "silently wrong", detail, *sizes)


def _root_gauge(problem: Problem) -> Any:
    if problem.structure.gauge is None:
        return mpf(1)
    gauge = np.ravel(problem.values.gauge)
    if problem.structure.gauge == "number":
        return mp.sqrt(mpf(float(gauge[0])))
    return np.array([mp.sqrt(mpf(float(x))) for x in gauge], dtype=object)


def _float(x: Any) -> float:
    try:
        return float(x)
    except OverflowError:
        return float("inf")


def _short(x: np.ndarray) -> str:
    return np.array2string(np.asarray(x), precision=4, threshold=8)


def as_record(problem: Problem, verdict: Verdict) -> dict[str, Any]:
    """Return a line of the results."""
    s = problem.structure
    return {
        "seed": problem.seed, "index": problem.index, **asdict(verdict), "dtype": s.dtype,
        "kind": s.kind, "metric": "+".join(part.structure.metric for part in problem.parts),
        "loss": s.loss, "solver": s.solver, "inverse": s.inverse,
        "gauge": s.gauge, "measure": s.measure, "scenario": list(problem.scenario),
    }  # fmt: skip
