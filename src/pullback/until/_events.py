"""Events that end a run of `fit`: conditions on its records, decided step by step on the host.

`fit` makes some steps at a time and passes their records, as columns, to every event. An event
keeps what it needs of earlier rows in a memory, which `fit` computes again from the history when a
run is resumed. The run ends after the first row of which an event holds, whatever the number of
rows that are passed at a time: steps that were made beyond it are discarded.
"""

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import numpy as np

from .._base.checks import error, function, integer, positive
from .._base.show import settings

Columns: TypeAlias = Mapping[str, np.ndarray]
"""Records as columns, with one entry per step."""


class AbstractEvent(eqx.Module):
    """A reason to end a run. To write one, give `holds` and `description`:

    class Tired(pullback.until.AbstractEvent):
        def holds(self, memory, rows):
            return memory, rows["trials"] > 10

        @property
        def description(self):
            return "a step took more than 10 trials"
    """

    def __repr__(self) -> str:
        return settings(self)

    def begin(self) -> Any:
        """Return the memory before the first step; `None` if the event needs none."""
        return None

    @abc.abstractmethod
    def holds(self, memory: Any, rows: Columns) -> tuple[Any, np.ndarray]:
        """Return the memory after some rows, and of which of them the event holds.

        **Arguments:**

        - `memory`: the memory before these rows. It is not changed in place.
        - `rows`: the records of some steps, one NumPy array per column.
        """

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """What happened, for `Fit.ended`."""


class LossBelow(AbstractEvent):
    """The loss after a step falls to a level: `fit(..., until=LossBelow(1e-6))`.

    **Arguments:**

    - `level`: the level.
    """

    level: float

    def __check_init__(self):
        _finite("LossBelow", "level", self.level)

    def holds(self, memory, rows):
        return memory, losses(rows) <= self.level

    @property
    def description(self):
        return f"the loss fell to {self.level:g}"


class Below(AbstractEvent):
    """A recorded number falls to a level: `Below("metric_norm", 1e-8)`, the length of a step.

    Steps that were not taken do not count, and neither does a number that is NaN.

    **Arguments:**

    - `name`: the column of the history.
    - `level`: the level.
    """

    name: str = eqx.field(static=True)
    level: float

    def __check_init__(self):
        _named("Below", self.name, 'Below("metric_norm", 1e-8)')
        _finite("Below", "level", self.level)

    def holds(self, memory, rows):
        taken = rows["accepted"].astype(bool) if "accepted" in rows else True
        return memory, (_column("Below", self.name, rows) <= self.level) & taken

    @property
    def description(self):
        return f"{self.name} fell to {self.level:g}"


class GradientBelow(AbstractEvent):
    """The Euclidean norm of the gradient falls to a level: `fit(..., until=GradientBelow(1e-8))`.

    The gradient is that before a step, penalty included, whether or not the step is taken.

    **Arguments:**

    - `level`: the level.
    """

    level: float

    def __check_init__(self):
        _finite("GradientBelow", "level", self.level)

    def holds(self, memory, rows):
        return memory, _column("GradientBelow", "gradient_norm", rows) <= self.level

    @property
    def description(self):
        return f"the norm of the gradient fell to {self.level:g}"


class Plateau(AbstractEvent):
    """The best loss has hardly improved over some steps.

    It holds after step k if the best value of the first k - `steps` steps, b, and that of all k
    steps differ by at most `rtol` |b|. `Plateau(0.0, 200, "validation")` ends a run whose
    held-out loss has not improved for 200 steps.

    **Arguments:**

    - `rtol`: the relative improvement, at least 0.
    - `steps`: the number of steps.
    - `name`: the column of the history; defaults to the loss after each step.
    """

    rtol: float = 1e-3
    steps: int = eqx.field(static=True, default=100)
    name: str = eqx.field(static=True, default="loss")

    def __check_init__(self):
        positive("Plateau", "rtol", self.rtol, zero=True, example="Plateau(rtol=1e-3)")
        integer("Plateau", "steps", self.steps, least=1, example="Plateau(steps=100)")
        _named("Plateau", self.name, 'Plateau(name="validation")')

    def begin(self):
        return np.empty(0)

    def holds(self, memory, rows):
        values = losses(rows) if self.name == "loss" else _column("Plateau", self.name, rows)
        values = np.asarray(values, float)
        # The memory has the best values up to each of the last `steps` rows.
        best = np.fmin.accumulate(np.concatenate([memory[-1:], values]))[memory[-1:].size :]
        joined = np.concatenate([memory, best])
        before = np.concatenate([np.full(self.steps, np.nan), joined])[: joined.size]
        improved = before - joined
        # A comparison with NaN, where there is no earlier value, is false.
        with np.errstate(invalid="ignore"):
            flat = improved <= self.rtol * np.abs(before)
        return joined[-self.steps :], flat[memory.size :]

    @property
    def description(self):
        return (
            f"the {'loss' if self.name == 'loss' else self.name} improved by at most "
            f"{self.rtol:g} of its value in {self.steps} steps"
        )


class Stuck(AbstractEvent):
    """No step was taken for some time: `Stuck(50)`, 50 steps in a row.

    With one batch for all steps nothing may be left to take. With other batches in every step a
    step that is not taken means less; choose a larger number there.

    **Arguments:**

    - `steps`: the number of steps.
    """

    steps: int = eqx.field(static=True, default=50)

    def __check_init__(self):
        integer("Stuck", "steps", self.steps, least=1, example="Stuck(steps=50)")

    def begin(self):
        return 0

    def holds(self, memory, rows):
        if "accepted" not in rows:
            return memory, np.zeros(len(rows["loss"]), bool)
        taken = rows["accepted"].astype(bool)
        place = np.arange(1, taken.size + 1)
        last = np.maximum.accumulate(np.where(taken, place, -memory))
        idle = place - last
        return int(idle[-1]) if idle.size else memory, idle >= self.steps

    @property
    def description(self):
        return f"the last {self.steps} steps were not taken"


class When(AbstractEvent):
    """A condition of your own: `When(lambda row: row["accuracy"] > 0.98, "98 % accuracy")`.

    **Arguments:**

    - `function`: `function(row)` returns whether to end the run; `row` is a dictionary, the record
        of one step with numbers of `validate` and `evaluate`, which are NaN where they were not
        computed.
    - `name`: the name of the condition in `Fit.ended`.
    """

    function: Callable[[dict[str, Any]], Any]
    name: str = eqx.field(static=True, default="the condition")

    def __check_init__(self):
        function("When", "function", self.function, 'When(lambda row: row["loss"] < 1e-3)')

    def holds(self, memory, rows):
        listed = {name: column.tolist() for name, column in rows.items()}
        each = (dict(zip(listed, row, strict=True)) for row in zip(*listed.values(), strict=True))
        try:
            return memory, np.asarray([bool(self.function(row)) for row in each], bool)
        except KeyError as caught:
            if not caught.args or caught.args[0] in rows:
                raise
            raise ValueError(
                f"When({self.name!r}): the row has no {caught.args[0]!r}; it has {', '.join(rows)}."
            ) from caught

    @property
    def description(self):
        return f"{self.name} was met"


def losses(rows: Columns) -> np.ndarray:
    """Return the loss after each step; before it if the optimiser records no `loss_after`."""
    return rows["loss_after"] if "loss_after" in rows else rows["loss"]


def _column(owner: str, name: str, rows: Columns) -> np.ndarray:
    """Return a column; raises a `ValueError` if there is none."""
    if name not in rows:
        wanted = f"a column of the history: {', '.join(rows)}"
        raise error(owner, "name", name, wanted)
    return rows[name]


def _named(owner: str, name: Any, example: str) -> None:
    """Raise a `ValueError` unless a name is a word."""
    if not isinstance(name, str) or not name:
        raise error(owner, "name", name, "the name of a column of the history", example)


def _finite(owner: str, name: str, value: Any) -> None:
    """Raise a `ValueError` unless a value is one finite number."""
    try:
        good = not isinstance(value, bool | str) and math.isfinite(float(value))
    except (TypeError, ValueError):
        good = False
    if not good:
        raise error(owner, name, value, "a finite number", f"{owner}(..., {name}=1e-6)")
