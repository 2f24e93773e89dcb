"""A figure to draw on: that of the caller, or a new one that belongs to no window."""

from typing import Any


def open_figure(
    axes: Any = None,
    columns: int = 1,
    size: tuple[float, float] = (5.0, 4.0),
    rows: int = 1,
    share: bool = False,
) -> Any:
    """`(figure, axes)`: the axes of the caller with their figure, or new ones."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pullback.plot needs matplotlib: pip install 'pullback[figures]'."
        ) from error
    if axes is not None:
        first = axes if hasattr(axes, "figure") else axes[0]
        return first.figure, axes
    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    return figure, figure.subplots(rows, columns, sharex=share, sharey=share)


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Distinguishable also without full colour vision."""
