"""The records of a run: one row per step, as NumPy columns named like the fields of the record."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from .._base.checks import error
from .._base.results import names_of
from .._base.show import grid, paragraph
from .._descent.block_record import BlockRecord
from .._descent.record import SOLVERS, Record
from .figure import draw
from .optimiser import BY_TERM, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 5
"""How many rows from the beginning, and how many from the end, a notebook shows."""
RECORD = frozenset(Record.__dataclass_fields__) - frozenset(BY_TERM)
"""The columns of a natural gradient descent. Where all are there, codes have names."""
BLOCKS = frozenset(BlockRecord.__dataclass_fields__) - frozenset(BY_TERM)
"""The columns of a block descent."""
MINOR = frozenset(
    "metric_norm gradient_norm divergence gain curvature trials cutoff range_share output_share"
    " tangent_share alignment solver leaf".split()
)
"""Columns that a notebook does not show."""


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
        if not count:
            return paragraph(repr(self))
        shown, hidden = self._shown()
        cells = lambda i: [_cell(column[i].item()) for column in shown.values()]
        rows = [cells(i) for i in range(min(count, SHOWN))]
        if count > 2 * SHOWN:
            rows.append(["..."] * len(shown))
        rows += [cells(i) for i in range(max(count - SHOWN, SHOWN), count)]
        more = paragraph(f"Columns not shown: {', '.join(hidden)}.") if hidden else ""
        return grid(list(shown), rows) + more

    def words(self, name: str) -> np.ndarray:
        """Return a column as text: the names behind the codes of `result` and `solver`.

        **Arguments:**

        - `name`: a column.
        """
        column, there = self[name], set(self.columns)
        if name == "result" and (there >= RECORD or there >= BLOCKS):
            return names_of(column)
        if name == "solver" and there >= RECORD:
            # A solver of the user's own has the code -1.
            return np.array([*SOLVERS, "another"])[column]
        return column.astype(str)

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
        """Return histories one after the other, with NaN where one lacks a column.

        **Arguments:**

        - `parts`: histories.
        """
        parts = [part for part in parts if len(part)]
        names = dict.fromkeys(name for part in parts for name in part)
        column = lambda part, name: part[name] if name in part else np.full(len(part), np.nan)
        return History({x: np.concatenate([column(part, x) for part in parts]) for x in names})

    def plot(self, *names: str, axes: "Axes | Sequence[Axes] | None" = None) -> "Figure":
        """Return a matplotlib figure of some columns, one above each other, over the steps.

        Nothing is shown; save the figure with `figure.savefig(path)`.

        **Arguments:**

        - `*names`: the columns, e.g. `"loss", "rank"`. Defaults to an overview: loss, lengths of
            the steps, damping and rate, rank, and the numbers of `fit(evaluate=...)`, as far as
            they are recorded.
        - `axes`: the axes to draw on, one for each name; defaults to new ones.
        """
        for name in names:
            if name not in self.columns:
                there = ", ".join(self.columns) or "none yet"
                raise error("plot", "names", name, f"columns of the history: {there}")
        return draw(self.columns, self.losses if len(self) else None, names, axes)

    def _shown(self) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return the columns for a notebook, codes as names, and the names of the others."""
        ours = set(self.columns) >= RECORD
        shown, hidden = {}, []
        for name, column in self.columns.items():
            if (ours and name in MINOR) or (column.dtype.kind == "f" and np.isnan(column).all()):
                hidden.append(name)
            else:
                shown[name] = self.words(name) if name == "result" else column
        return shown, hidden

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


def columns_of(
    owner: str, records: Any, rows: range, start: int, continued: bool = False
) -> dict[str, np.ndarray]:
    """Return some rows of stacked records as NumPy columns; results become their codes.

    `start` is the number of the step of row 0. A `continued` optimiser has made steps before the
    run, and counts from another number on.
    """
    steps = start + np.asarray(rows)
    columns: dict[str, np.ndarray] = {"step": steps}
    for name, value in named(jax.device_get(eqx.filter(records, eqx.is_array))).items():
        for leaf in jax.tree.leaves(value):
            column = np.asarray(leaf)
            column = column if len(column) == len(rows) else column[rows.start : rows.stop]
            # Short floats are no NumPy dtypes, and would not survive a checkpoint.
            columns[name] = column.astype(np.float32) if column.dtype.kind == "V" else column
    if continued:
        columns["step"] = columns["step"] - (columns["step"][0] - steps[0])
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


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
