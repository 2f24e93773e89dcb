"""New figures for claims that draw their own. They belong to no window."""

from typing import Any

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The colours of Okabe and Ito, which readers without full colour vision can tell apart."""


def open_figure(
    columns: int = 1, rows: int = 1, size: tuple[float, float] = (5.0, 4.0)
) -> tuple[Any, Any]:
    """A new matplotlib figure and its axes; `size` is that of one panel in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    return figure, figure.subplots(rows, columns)


def arrow(
    ax: Any, at: Any, vector: Any, colour: str, label: str = "", width: float = 0.012
) -> None:
    """An arrow in the plane, to the scale of the axes."""
    ax.quiver(
        *at,
        *vector,
        color=colour,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=width,
        label=label or None,
        zorder=3,
    )
