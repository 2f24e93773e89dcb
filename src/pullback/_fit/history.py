"""The records of a run: one row per step, as NumPy columns named like the fields of the record."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from .._base.show import grid
from .figure import draw
from .optimiser import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 5
"""How many rows from the beginning, and how many from the end, a notebook shows."""


@dataclasses.dataclass(frozen=True, repr=False)
class History:
    """The records of a run, one column per field: `history["loss"]` has one number per step.

    ```python
    fit = pb.fit(opt, params, (x, y))
    fit.history["loss"], list(fit.history), len(fit.history)
    ```
    """

    columns: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(
                f"there is no column {name!r}; there are {', '.join(self.columns) or 'none yet'}."
            )
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns["step"]) if self.columns else 0

    @property
    def losses(self) -> np.ndarray:
        """The loss after each step; before it if the optimiser records no `loss_after`."""
        return self.columns["loss_after"] if "loss_after" in self else self["loss"]

    @property
    def summary(self) -> str:
        """The first and the last loss in words; empty if there are no rows."""
        return f"loss {self['loss'][0]:.3g} -> {self.losses[-1]:.3g}" if len(self) else ""

    def __repr__(self) -> str:
        change = f", {self.summary}" if len(self) else ""
        return f"History({len(self)} steps{change})"

    def _repr_html_(self) -> str:
        count = len(self)
        rows = [_cells(self._row(i)) for i in range(min(count, SHOWN))]
        if count > 2 * SHOWN:
            rows.append(["..."] * len(self.columns))
        rows += [_cells(self._row(i)) for i in range(max(count - SHOWN, SHOWN), count)]
        return grid(list(self.columns), rows)

    def rows(self, start: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the rows as dictionaries of Python numbers, ready for JSON.

        Numbers that are not finite are `None`, complex ones are pairs.

        **Arguments:**

        - `start`: the first row.
        """
        for i in range(start, len(self)):
            yield {name: _plain(value) for name, value in self._row(i).items()}

    @staticmethod
    def join(parts: Iterable["History"]) -> "History":
        """Return histories one after the other.

        **Arguments:**

        - `parts`: histories with the same columns.
        """
        parts = [part for part in parts if len(part)]
        if not parts:
            return History({})
        names = parts[0].columns
        return History({name: np.concatenate([part[name] for part in parts]) for name in names})

    def plot(self) -> "Figure":
        """Return a matplotlib figure: loss, step norms, damping and rate, rank, over the steps.

        Nothing is shown; save the figure with `figure.savefig(path)`. A quantity that the optimiser
        does not record is left out.
        """
        return draw(self.columns, self.losses if len(self) else None)

    def _row(self, i: int) -> dict[str, Any]:
        return {name: column[i].item() for name, column in self.columns.items()}


def rows_since(parts: Sequence[History], step: int) -> History:
    """Return the rows from a step on, of a history in parts; the earlier parts are not visited."""
    taken: list[History] = []
    for part in reversed(parts):
        if len(part):
            if part["step"][-1] < step:
                break
            taken.append(part)
    whole = History.join(reversed(taken))
    first = int(np.searchsorted(whole["step"], step)) if len(whole) else 0
    return History({name: column[first:] for name, column in whole.columns.items()})


def columns_of(owner: str, records: Any, rows: range, start: int) -> dict[str, np.ndarray]:
    """Return some rows of stacked records as NumPy columns; results become their codes.

    `start` is the number of the step of row 0.
    """
    steps = start + np.asarray(rows)
    columns: dict[str, np.ndarray] = {"step": steps}
    for name, value in named(jax.device_get(eqx.filter(records, eqx.is_array))).items():
        for leaf in jax.tree.leaves(value):
            column = np.asarray(leaf)[rows.start : rows.stop]
            # Short floats are no NumPy dtypes, and would not survive a checkpoint.
            columns[name] = column.astype(np.float32) if column.dtype.kind == "V" else column
    if not np.array_equal(columns["step"], steps):
        raise ValueError(
            f"{owner}.step: the field 'step' of the record must be the number of the step, from 0, "
            f"got {columns['step'][0]} in step {steps[0]}; give other quantities another name."
        )
    return columns


def _plain(value: Any) -> Any:
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cells(row: dict[str, Any]) -> list[str]:
    return [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
