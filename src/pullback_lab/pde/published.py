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
METHODS = {
    "engd-full": ("ENGD", KFAC),
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

    def at(self, step: int) -> Mark | None:
        """The last mark up to a step, if there is one beyond half of it."""
        found = [mark for mark in self.marks if step / 2 < mark.step <= step]
        return found[-1] if found and self.marks[-1].step >= step else None


def curves(problem: str) -> list[Curve]:
    """The published curves of a problem, the best first; none if nothing is published."""
    text = (
        importlib.resources.files("pullback_lab.pde").joinpath("published.csv").read_text("utf-8")
    )
    found: dict[str, list[Mark]] = {}
    for row in csv.DictReader(text.splitlines()):
        if row["problem"] == problem:
            mark = Mark(int(row["step"]), float(row["seconds"]), float(row["error"]))
            found.setdefault(row["method"], []).append(mark)
    return [Curve(*METHODS[method], tuple(marks)) for method, marks in found.items()]


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
