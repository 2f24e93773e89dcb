"""The picture of a run: four axes, each with what the optimiser recorded."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .history import History


def draw(history: "History") -> "Figure":
    """Return a figure of loss, lengths of the steps, damping and rate, and rank."""
    # Imported here: `fit` works without matplotlib.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    loss, norms, scale, rank = figure.subplots(2, 2, sharex=True).ravel()
    loss.set(title="loss")
    norms.set(title="length of the steps")
    scale.set(title="damping and rate", xlabel="step")
    rank.set(title="rank of A", xlabel="step")
    if len(history):
        taken = history["accepted"].astype(bool) if "accepted" in history else slice(None)
        _loss(loss, history)
        _norms(norms, history, taken)
        _lines(scale, history, taken, {"damping": "damping", "rate": "rate"})
        _rank(rank, history)
    for axes in (loss, norms, scale, rank):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    return figure


def _loss(axes: "Axes", history: "History") -> None:
    axes.plot(history["step"], history.losses, color="black", lw=1.2)
    if "accepted" in history:
        rejected = ~history["accepted"].astype(bool)
        if rejected.any():
            label = f"{rejected.sum()} steps not taken"
            steps = history["step"][rejected]
            axes.plot(steps, history["loss"][rejected], "x", color="tab:red", ms=4, label=label)
    _logarithmic(axes, history.losses)


def _norms(axes: "Axes", history: "History", taken: np.ndarray | slice) -> None:
    _lines(axes, history, taken, {"norm": "Euclidean", "metric_norm": "in the metric"})
    if "divergence" in history:
        true = np.sqrt(2 * history["divergence"][taken])
        if np.isfinite(true).any():
            axes.plot(history["step"][taken], true, lw=1, ls=":", label="√(2 × true divergence)")


def _lines(
    axes: "Axes", history: "History", taken: np.ndarray | slice, labels: dict[str, str]
) -> None:
    """Plot columns over the steps that were taken, as far as they are recorded and finite."""
    for name, label in labels.items():
        if name in history and np.isfinite(history[name][taken]).any():
            axes.plot(history["step"][taken], history[name][taken], lw=1, label=label)
            _logarithmic(axes, history[name][taken])


def _rank(axes: "Axes", history: "History") -> None:
    if "rank" not in history:
        return
    axes.plot(history["step"], history["rank"], color="black", lw=1)
    axes.yaxis.get_major_locator().set_params(integer=True)
    if not (history["rank"] >= 0).any():
        axes.set(title="rank of A (not computed by this solver)")


def _logarithmic(axes: "Axes", values: np.ndarray) -> None:
    if (values[np.isfinite(values)] > 0).any():
        axes.set_yscale("log")
