"""What a run was: one row a step, as NumPy columns named like the fields of `Record`; and its
picture.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._descent.descent import Record

COLUMNS = tuple(Record.__dataclass_fields__)


def columns_of(records: Record, count: int) -> dict[str, np.ndarray]:
    """The first rows of stacked records as NumPy columns; results become their codes."""
    host = jax.device_get(eqx.filter(records, eqx.is_array))
    return {name: np.asarray(jax.tree.leaves(getattr(host, name))[0])[:count] for name in COLUMNS}


@dataclasses.dataclass(frozen=True)
class History:
    """The records of a run, a column for each field: `history["loss"]` has one number a step."""

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

    def rows(self, start: int = 0) -> Iterator[dict[str, Any]]:
        """The rows as dictionaries of Python numbers, ready for JSON: numbers that are not finite
        are `None`.

        **Arguments:**

        - `start`: the first row.
        """
        for i in range(start, len(self)):
            yield {name: _plain(column[i].item()) for name, column in self.columns.items()}

    @staticmethod
    def join(parts: Iterable["History"]) -> "History":
        """Histories one after the other.

        **Arguments:**

        - `parts`: histories.
        """
        parts = [part for part in parts if len(part)]
        if not parts:
            return History({})
        return History(
            {
                name: np.concatenate([part.columns[name] for part in parts])
                for name in parts[0].columns
            }
        )

    def plot(self) -> Any:
        """A matplotlib figure: loss, step norms, damping and rate, rank, over the steps. Nothing is
        shown; save it with `figure.savefig(path)`.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 5.5), layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        if not len(self):
            return figure
        step, taken = self["step"], self["accepted"].astype(bool)
        loss, norms, scale, rank = axes.ravel()
        loss.plot(step, self["loss_after"], color="black", lw=1.2)
        refused = step[~taken]
        if refused.size:
            loss.plot(
                refused,
                self["loss"][~taken],
                "x",
                color="tab:red",
                ms=4,
                label=f"{refused.size} steps not taken",
            )
            loss.legend(frameon=False)
        _logarithmic(loss, self["loss_after"])
        loss.set(title="loss")
        for name, label in (("norm", "Euclidean"), ("metric_norm", "in the metric")):
            norms.plot(step[taken], self[name][taken], lw=1, label=label)
        true = np.sqrt(2 * self["divergence"][taken])
        if np.isfinite(true).any():
            norms.plot(step[taken], true, lw=1, ls=":", label="√(2 × true divergence)")
        _logarithmic(norms, self["norm"][taken])
        norms.legend(frameon=False)
        norms.set(title="length of the steps")
        for name in ("damping", "rate"):
            if np.isfinite(self[name][taken]).any():
                scale.plot(step[taken], self[name][taken], lw=1, label=name)
        _logarithmic(scale, self["rate"][taken])
        scale.legend(frameon=False)
        scale.set(title="damping and rate", xlabel="step")
        rank.plot(step, self["rank"], color="black", lw=1)
        rank.yaxis.get_major_locator().set_params(integer=True)
        rank.set(
            title="rank of A"
            if (self["rank"] >= 0).any()
            else "rank of A (not computed by this solver)",
            xlabel="step",
        )
        return figure


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _logarithmic(axes: Any, values: np.ndarray) -> None:
    finite = values[np.isfinite(values)]
    if finite.size and (finite > 0).any():
        axes.set_yscale("log")


def write_lines(path: Any, history: History, start: int) -> None:
    """Append rows to a JSONL file."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in history.rows(start))


def keep_lines(path: Any, count: int) -> None:
    """Cut a JSONL file to its first rows: those of the steps that a resumed run does not make
    again.
    """
    kept: list[str] = []
    if count and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] >= count:
                    break
            except (ValueError, KeyError, TypeError):
                break
            kept.append(line + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(kept), encoding="utf-8")
