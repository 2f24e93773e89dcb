"""The picture of a run: four axes, each with what the optimiser recorded."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns: TypeAlias = Mapping[str, np.ndarray]


def draw(columns: Columns, losses: np.ndarray | None) -> "Figure":
    """Return a figure of loss, lengths of the steps, damping and rate, and rank."""
    # Imported here: `fit` works without matplotlib.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    loss, norms, scale, rank = figure.subplots(2, 2, sharex=True).ravel()
    loss.set(title="loss")
    norms.set(title="length of the steps")
    scale.set(title="damping and rate", xlabel="step")
    rank.set(title="rank of A", xlabel="step")
    if losses is not None:
        taken = columns["accepted"].astype(bool) if "accepted" in columns else slice(None)
        _loss(loss, columns, losses)
        _norms(norms, columns, taken)
        _lines(scale, columns, taken, {"damping": "damping", "rate": "rate"})
        _rank(rank, columns)
    for axes in (loss, norms, scale, rank):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    return figure


def _loss(axes: "Axes", columns: Columns, losses: np.ndarray) -> None:
    axes.plot(columns["step"], losses, color="black", lw=1.2)
    if "accepted" in columns:
        rejected = ~columns["accepted"].astype(bool)
        if rejected.any():
            label = f"{rejected.sum()} steps not taken"
            steps = columns["step"][rejected]
            axes.plot(steps, columns["loss"][rejected], "x", color="tab:red", ms=4, label=label)
    _logarithmic(axes, losses)


def _norms(axes: "Axes", columns: Columns, taken: np.ndarray | slice) -> None:
    _lines(axes, columns, taken, {"norm": "Euclidean", "metric_norm": "in the metric"})
    if "divergence" in columns:
        true = np.sqrt(2 * columns["divergence"][taken])
        if np.isfinite(true).any():
            axes.plot(columns["step"][taken], true, lw=1, ls=":", label="√(2 × true divergence)")


def _lines(
    axes: "Axes", columns: Columns, taken: np.ndarray | slice, labels: dict[str, str]
) -> None:
    """Plot columns over the steps that were taken, as far as they are recorded and finite."""
    for name, label in labels.items():
        if name in columns and np.isfinite(columns[name][taken]).any():
            axes.plot(columns["step"][taken], columns[name][taken], lw=1, label=label)
            _logarithmic(axes, columns[name][taken])


def _rank(axes: "Axes", columns: Columns) -> None:
    if "rank" not in columns:
        return
    axes.plot(columns["step"], columns["rank"], color="black", lw=1)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if not (columns["rank"] >= 0).any():
        axes.set(title="rank of A (not computed by this solver)")


def _logarithmic(axes: "Axes", values: np.ndarray) -> None:
    if (values[np.isfinite(values)] > 0).any():
        axes.set_yscale("log")
