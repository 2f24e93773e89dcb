"""Several measurements of one method, of which some may fail."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Probes:
    """Runs what is measured, each on its own, and keeps the reasons of what failed."""

    def __init__(self):
        """Begin without failures."""
        self.failures: list[tuple[str, str]] = []

    def run(self, probe: str, function: Callable[[], T], otherwise: T) -> T:
        """Return what a function returns; if it raises, note the reason and return `otherwise`."""
        try:
            return function()
        except Exception as error:  # whatever somebody's method raises
            first = str(error).strip().splitlines() or [type(error).__name__]
            self.failures.append((probe, first[0]))
            return otherwise
