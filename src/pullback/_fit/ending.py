"""Whether an event ends the run (`until=`), and after which of its steps."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.checks import error
from ..until import AbstractEvent, Stuck
from .history import History

IDLE = 50
"""A run on one batch ends by itself after so many steps in a row that were not taken."""


class Ending:
    """The events of a run, and what they remember of its rows."""

    def __init__(self, until: Any, same: bool, history: History):
        """Start from a history; `same` tells whether all steps have the same batch."""
        self.default = until is None
        # Other batches may have steps to take; on the same one a rule gives up for good.
        usual = (Stuck(IDLE),) if same else ()
        self.events = usual if until is None else _events(until)
        self.memories = [event.begin() for event in self.events]
        self.now: str | None = None
        """The events that hold of the last row, in words."""
        for place in range(len(self.events)) if len(history) else ():
            # A number that is computed from now on is unknown for the steps of the history.
            with contextlib.suppress(ValueError, KeyError):
                self._note(place, history)

    def first(self, rows: History) -> int | None:
        """Return the first of some rows after which the run is to end."""
        held = [np.flatnonzero(self._look(place, rows)[1]) for place in range(len(self.events))]
        return min((int(found[0]) for found in held if found.size), default=None)

    def note(self, rows: History) -> None:
        """Remember rows, and which events hold of the last one."""
        self.now = None
        for place in range(len(self.events)):
            self._note(place, rows)

    def _note(self, place: int, rows: History) -> None:
        """Let one event remember rows."""
        self.memories[place], holds = self._look(place, rows)
        if holds[-1]:
            words = self.events[place].description
            self.now = words if self.now is None else f"{self.now} and {words}"

    def _look(self, place: int, rows: History) -> tuple[Any, np.ndarray]:
        """Return the memory of one event after the rows, and of which of them it holds."""
        event, memory = self.events[place], self.memories[place]
        if self.default and "accepted" not in rows:
            return memory, np.zeros(len(rows), bool)
        memory, holds = event.holds(memory, rows.columns)
        if np.shape(holds) != (len(rows),):
            raise ValueError(
                f"{type(event).__name__}.holds must return its memory and one boolean per row, "
                f"got an array of shape {np.shape(holds)} for {len(rows)} rows."
            )
        return memory, np.asarray(holds, bool)


def _events(until: Any) -> tuple[AbstractEvent, ...]:
    """Return the events that a user means."""
    given = until if isinstance(until, Sequence) and not isinstance(until, str) else (until,)
    for event in given:
        if not isinstance(event, AbstractEvent):
            wanted = "one of pullback.until, or a list of them"
            raise error("fit", "until", event, wanted, "fit(until=pullback.until.LossBelow(1e-6))")
    return tuple(given)
