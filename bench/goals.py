"""The goals: what has to be reached, what was measured, met or missed. Ratios of one run."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .entries import (
    COMPILED,
    FLOOR,
    FUNC,
    GENERIC,
    MINSR,
    NNGEOMETRY,
    OURS,
    PRODUCTS,
    TANGENTS,
    TORCH,
    UNDECLARED,
    VMC_SR,
    Entry,
)
from .problems import DEPTHS

Results = dict[str, Any]


class Goal(NamedTuple):
    """One line of the table."""

    subject: str
    text: str
    measured: Callable[[Results], float]
    """Raises `KeyError` if it was not measured."""
    bound: float
    below: bool
    unit: str = " ×"

    def line(self, results: Results) -> dict[str, str]:
        """The line, as text."""
        goal = f"{'at most' if self.below else 'at least'} {self.bound:g}{self.unit}"
        try:
            value = self.measured(results)
        except KeyError as missing:
            return {
                "subject": self.subject,
                "text": self.text,
                "goal": goal,
                "measured": f"not measured ({missing.args[0]})",
                "verdict": "-",
            }
        met = value <= self.bound if self.below else value >= self.bound
        return {
            "subject": self.subject,
            "text": self.text,
            "goal": goal,
            "measured": f"{value:.3g}{self.unit}",
            "verdict": "met" if met else "**missed**",
        }


def row(results: Results, threads: int, workload: str, label: str) -> dict[str, Any]:
    """One record; `KeyError` with the reason if it has no time."""
    for record in results.get(f"threads{threads}", {}).get(workload, []):
        if record["approach"] == label:
            if "seconds" not in record:
                raise KeyError(f"{label}: {record['status']}")
            return record
    raise KeyError(f"{label} was not run")


def _ratio(
    workload: str, above: Entry, below: Entry, threads: int = 1
) -> Callable[[Results], float]:
    def measured(results):
        return (
            row(results, threads, workload, above.label)["seconds"]
            / row(results, threads, workload, below.label)["seconds"]
        )

    return measured


def _of_minima(workload: str, above: Entry, below: Entry) -> Callable[[Results], float]:
    """A ratio of the shortest times, which other work on the machine disturbs least."""

    def measured(results):
        a, b = (row(results, 1, workload, x.label)["times"] for x in (above, below))
        return min(a) / min(b)

    return measured


def _over_floor(workload: str, bound: float) -> Goal:
    return Goal(workload, "ours / floor", _ratio(workload, OURS, FLOOR), bound, True)


def _faster(workload: str, peer: Entry, bound: float, threads: int = 1) -> Goal:
    subject = workload if threads == 1 else f"{workload}, {threads} threads"
    return Goal(
        subject, f"{peer.label} / ours", _ratio(workload, peer, OURS, threads), bound, False
    )


def _closed(depth: int) -> Goal:
    gradient = f"plain gradient, L = {depth}"
    closed = f"pullback.linear.MatrixProduct, L = {depth}"

    def measured(results):
        return row(results, 1, "W5", closed)["seconds"] / row(results, 1, "W5", gradient)["seconds"]

    return Goal("W5", f"closed form / plain gradient, L = {depth}", measured, 2.0, True)


def _recursion(depth: int) -> Goal:
    closed = f"pullback.linear.MatrixProduct, L = {depth}"
    scipy = f"LU recursion in SciPy, L = {depth}"

    def measured(results):
        return row(results, 1, "W5", closed)["seconds"] / row(results, 1, "W5", scipy)["seconds"]

    return Goal("W5", f"closed form / LU recursion in SciPy, L = {depth}", measured, 1.05, True)


def _peak(workload: str) -> Callable[[Results], float]:
    def measured(results):
        record = (
            results.get("large", {})
            if workload == "W1-4096"
            else row(results, 1, workload, OURS.label)
        )
        if "peak" not in record:
            raise KeyError(record.get("status", "not run"))
        return record["peak"]

    return measured


def _compile(workload: str) -> Callable[[Results], float]:
    def measured(results):
        for threads in (2, 1):
            if str(threads) in results.get("compile", {}).get(workload, {}):
                return results["compile"][workload][str(threads)]
        raise KeyError("not run")

    return measured


def _krylov(results: Results) -> float:
    found = results.get("krylov", {"error": "not run"})
    if "error" in found:
        raise KeyError(found["error"])
    # To the smallest residual.
    return found["plain"][-1] / min(
        counts[-1] for counts in found["preconditioned"].values() if counts[-1] is not None
    )


def _error(threads: int, workload: str, entry: Entry = OURS) -> Callable[[Results], float]:
    return lambda results: row(results, threads, workload, entry.label)["error"]


_GRADIENT, _METRIC, _KERNEL = PRODUCTS
GOALS = (
    _over_floor("W1", 1.3),
    _faster("W1", TANGENTS, 3),
    _faster("W1", MINSR, 100),
    _faster("W1", TORCH, 1.2, threads=2),
    _over_floor("W2", 1.4),
    _faster("W2", NNGEOMETRY, 2),
    _over_floor("W2p", 1.6),
    _over_floor("P5", 1.6),
    _over_floor("P10", 2.0),
    _over_floor("W3", 1.3),
    _faster("W3", FUNC, 15),
    _over_floor("W4", 1.2),
    Goal(
        "W4",
        "one G v / one gradient of the loss",
        _ratio("W4 products", _METRIC, _GRADIENT),
        1.2,
        True,
    ),
    Goal(
        "W4",
        "one K y / one gradient of the loss",
        _ratio("W4 products", _KERNEL, _GRADIENT),
        0.6,
        True,
    ),
    *(_closed(depth) for depth in DEPTHS),
    *(_recursion(depth) for depth in DEPTHS),
    _over_floor("R1", 1.3),
    _faster("R1", GENERIC, 5),
    _over_floor("R2", 1.3),
    _faster("R2", GENERIC, 5),
    *(
        Goal(w, f"{VMC_SR.label} / ours, minima", _of_minima(w, VMC_SR, OURS), bound, False)
        for w, bound in (("V1", 15), ("V2", 2))
    ),
    Goal("V3", "holomorphic / general, minima", _of_minima("V3", OURS, UNDECLARED), 0.6, True),
    Goal(
        "Krylov",
        "products without / with preconditioner, W1 after 50 steps, damping 1e-6, residual 1e-8",
        _krylov,
        3,
        False,
    ),
    Goal("memory", "W4, peak above the model, compilation included", _peak("W4"), 400, True, " MB"),
    Goal(
        "memory",
        "W1 with N = 4096 (m = 36 864), peak above the model, compilation included",
        _peak("W1-4096"),
        3000,
        True,
        " MB",
    ),
    *(
        Goal("compile", f"{w}, trace and compile", _compile(w), bound, True, " s")
        for w, bound in zip(COMPILED, (3, 3, 4, 4, 4), strict=True)
    ),
    *(
        Goal("agreement", f"{w}, relative error of ours", _error(1, w), 1e-5, True, "")
        for w in ("W1", "W3", "W4", "R1", "R2")
    ),
    *(
        Goal("agreement", f"{w}, relative error of ours", _error(1, w), 1e-10, True, "")
        for w in ("W2", "W2p", "P5", "P10", "V3")
    ),
    *(
        Goal("agreement", f"{w}, relative error of {e.label}", _error(1, w, e), 1e-8, True, "")
        for w in ("V1", "V2")
        for e in (OURS, VMC_SR)
    ),
)
