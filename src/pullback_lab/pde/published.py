"""Published training curves, thinned to marks: error against steps and seconds.

Read from the best runs of two repositories, each the best of a tuned sweep, one seed, float64, on a
GPU (RTX 6000): `f-dangel/kfac-pinns-experiments` at 83ed050 (arXiv 2405.15603) and
`andresguzco/rla-pinns` at 354483b (arXiv 2505.12149, MIT licence). The error is the absolute root
mean square at 10 N fixed random points. Seconds are counted from the first logged step.
"""

import csv
import importlib.resources
from typing import NamedTuple

KFAC, RLA = "arXiv 2405.15603", "arXiv 2505.12149"
MARKS = (10, 30, 100, 200, 400, 800, 1600, 3200, 6400, 10_000)
"""Steps at which errors are measured, tabulated and compared."""
NORMALISED = ("F", "F'", "G")
"""Problems whose solution is divided by its root mean square: our relative errors compare."""
METHODS = {
    "engd-full": ("ENGD", KFAC),
    "engd-per_layer": ("ENGD, per layer", KFAC),
    "hessianfree": ("Hessian-free", KFAC),
    "kfacstar": ("KFAC*", KFAC),
    "lbfgs": ("L-BFGS", KFAC),
    "spring-fixedlr": ("SPRING, fixed rate", RLA),
    "spring-linesearch": ("SPRING, line search", RLA),
    "engd-w-fixedlr": ("ENGD-W, fixed rate", RLA),
    "engd-w-linesearch": ("ENGD-W, line search", RLA),
}
"""The methods in the files, their names and their sources."""


class Mark(NamedTuple):
    """A point of a published curve."""

    step: int
    """Steps made."""
    seconds: float
    error: float


class Curve(NamedTuple):
    """A published curve."""

    method: str
    source: str
    marks: tuple[Mark, ...]

    def at(self, step: int) -> Mark:
        """The last mark up to a step: a run that ended before keeps its last error."""
        return [mark for mark in self.marks if mark.step <= step][-1]


def curves(problem: str) -> list[Curve]:
    """The published curves of a problem, that with the least error at its end first."""
    text = (
        importlib.resources.files("pullback_lab.pde").joinpath("published.csv").read_text("utf-8")
    )
    found: dict[str, list[Mark]] = {}
    for row in csv.DictReader(text.splitlines()):
        if row["problem"] == problem:
            mark = Mark(int(row["step"]), float(row["seconds"]), float(row["error"]))
            found.setdefault(row["method"], []).append(mark)
    return [Curve(*METHODS[method], tuple(marks)) for method, marks in found.items()]


def best(problem: str, step: int) -> tuple[Curve, Mark] | None:
    """The published curve that has the least error after so many steps, and its mark there."""
    found = [(curve, curve.at(step)) for curve in curves(problem)]
    return min(found, key=lambda pair: pair[1].error) if found else None


class Published(NamedTuple):
    """The best published root mean square error, tuned, on a GPU."""

    error: float
    method: str
    limit: str = "up to 3000 s"


PUBLISHED = {
    "A": Published(6.2e-8, "best published", "within 1000 s"),
    "B": Published(2.7e-8, "best published", "within 1000 s"),
    "C": Published(5.6e-8, "best published"),
    "D": Published(2.6e-7, "best published, SPRING", "up to 7000 s"),
    "E": Published(7.4e-7, "best published"),
    "F": Published(1.2e-5, "best published, SPRING", "up to 7000 s"),
    "F'": Published(
        6.1e-5, "best published, with momentum (3.1e-4 without)", "141 337 steps in 7000 s"
    ),
    "G": Published(3.6e-3, "best published, SPRING", "up to 7000 s"),
}
"""The ends of the published curves; compare relative errors for F, F' and G."""
