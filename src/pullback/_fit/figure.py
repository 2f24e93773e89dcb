"""The picture of a run: an overview of what the optimiser recorded, or columns that are named."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._descent.record import Record
from ..plot._figure import COLOURS, open_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns: TypeAlias = Mapping[str, np.ndarray]
Panel: TypeAlias = tuple[str, "Callable[[Axes, Columns], None]"]
HELD_OUT = "validation"
"""The column of the held-out loss, which is drawn beside the loss."""
RECORDED = frozenset(Record.__dataclass_fields__) | {HELD_OUT, "failed", "residual"}
"""Columns that the overview draws or leaves out; others are the user's, and have a panel each."""
MOST = 6
"""How many panels of the user's columns an overview has at most."""


def draw(
    columns: Columns,
    losses: np.ndarray | None,
    names: Sequence[str] = (),
    axes: Any = None,
) -> "Figure":
    """Return a figure of some columns, or the overview if none is named."""
    panels = [_named(name, losses) for name in names] if names else _overview(columns, losses)
    across = 1 if len(names) else 2
    down = -(-len(panels) // across)
    size = (9.0 / across, 5.5 / 2) if down > 1 or across > 1 else (6.0, 3.6)
    figure, made = open_figure(axes, across, size, down, sharex=True, count=len(panels))
    places = np.ravel(np.asarray(made, object))
    for place, (title, paint) in zip(places, panels, strict=False):
        place.set(title=title)
        if losses is not None:
            paint(place, columns)
        if place.get_legend_handles_labels()[0]:
            place.legend(frameon=False)
        place.xaxis.get_major_locator().set_params(integer=True)
    for place in places[len(panels) :]:
        place.axis("off")
    for place in places[max(len(panels) - across, 0) : len(panels)]:
        # Also above a place that is left empty.
        place.set(xlabel="step")
        place.tick_params(labelbottom=True)
    return figure


def _overview(columns: Columns, losses: np.ndarray | None) -> list[Panel]:
    unknown = losses is not None and "rank" in columns and not (columns["rank"] >= 0).any()
    rank = "rank of A (not computed by this solver)" if unknown else "rank of A"
    others = [name for name in columns if name not in RECORDED and _is_drawn(columns[name])]
    return [
        ("loss", lambda axes, columns: _loss(axes, columns, losses)),
        ("length of the steps", _norms),
        ("damping and rate", lambda axes, columns: _lines(axes, columns, ("damping", "rate"))),
        (rank, _rank),
        *(_named(name, losses) for name in others[:MOST]),
    ]


def _named(name: str, losses: np.ndarray | None) -> Panel:
    """Return the panel of one column."""
    if name == "rank":
        return name, _rank
    if name == "loss":
        return name, lambda axes, columns: _loss(axes, columns, losses)
    return name.replace("_", " "), lambda axes, columns: _curve(axes, columns, name, COLOURS[0])


def _is_drawn(column: np.ndarray) -> bool:
    return column.dtype.kind in "fiu" and bool(np.isfinite(column).any())


def _loss(axes: "Axes", columns: Columns, losses: np.ndarray | None) -> None:
    assert losses is not None
    label = "training" if HELD_OUT in columns else None
    axes.plot(columns["step"], losses, color="black", lw=1.2, label=label)
    _logarithmic(axes, losses)
    if HELD_OUT in columns:
        _curve(axes, columns, HELD_OUT, COLOURS[1], "held out")
    if "accepted" in columns:
        rejected = ~columns["accepted"].astype(bool)
        if rejected.any():
            label = f"{rejected.sum()} steps not taken"
            steps = columns["step"][rejected]
            axes.plot(steps, columns["loss"][rejected], "x", color="tab:red", ms=4, label=label)


def _taken(columns: Columns) -> np.ndarray:
    if "accepted" in columns:
        return columns["accepted"].astype(bool)
    return np.ones(len(columns["step"]), bool)


def _norms(axes: "Axes", columns: Columns) -> None:
    _lines(axes, columns, ("norm", "metric_norm"), ("Euclidean", "in the metric"))
    if "divergence" in columns:
        taken = _taken(columns)
        true = np.sqrt(2 * columns["divergence"][taken])
        if np.isfinite(true).any():
            axes.plot(columns["step"][taken], true, lw=1, ls=":", label="√(2 × true divergence)")


def _lines(
    axes: "Axes", columns: Columns, names: Sequence[str], labels: Sequence[str] | None = None
) -> None:
    """Plot columns over the steps that were taken, as far as they are recorded and finite."""
    taken = _taken(columns)
    for name, label in zip(names, labels or names, strict=True):
        if name in columns and np.isfinite(columns[name][taken]).any():
            axes.plot(columns["step"][taken], columns[name][taken], lw=1, label=label)
            _logarithmic(axes, columns[name][taken])


def _curve(
    axes: "Axes", columns: Columns, name: str, colour: str, label: str | None = None
) -> None:
    """Plot the finite entries of a column, with markers if there are few of them."""
    values = columns[name].astype(float)
    there = np.isfinite(values)
    marker = "o" if there.sum() <= 60 else ""
    style = {"color": colour, "lw": 1, "marker": marker, "ms": 3, "label": label}
    axes.plot(columns["step"][there], values[there], **style)
    spread = values[there & (values > 0)]
    if spread.size and spread.size == there.sum() and spread.max() > 30 * spread.min():
        axes.set_yscale("log")


def _rank(axes: "Axes", columns: Columns) -> None:
    if "rank" in columns:
        known = np.where(columns["rank"] >= 0, columns["rank"], np.nan)
        axes.plot(columns["step"], known, color="black", lw=1)
        axes.yaxis.get_major_locator().set_params(integer=True)


def _logarithmic(axes: "Axes", values: np.ndarray) -> None:
    if (values[np.isfinite(values)] > 0).any():
        axes.set_yscale("log")
