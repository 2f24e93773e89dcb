"""A figure to draw on: that of the caller, or a new one that belongs to no window."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # matplotlib is optional, and is imported when something is drawn.
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure


def open_figure(
    axes: Any = None,
    columns: int = 1,
    size: tuple[float, float] = (5.0, 4.0),
    rows: int = 1,
    share: bool = False,
) -> "tuple[Figure, Any]":
    """The given axes with their figure, or new axes: one, or an array of rows and columns."""
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
"""Colours that can be distinguished without full colour vision."""
