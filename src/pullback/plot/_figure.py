"""A figure to draw on: that of the caller, or a new one that belongs to no window."""

import functools
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from .._base import checks

if TYPE_CHECKING:
    # matplotlib is optional, and is imported when something is drawn.
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure


def open_figure(
    axes: Any = None,
    columns: int = 1,
    size: tuple[float, float] = (5.0, 4.0),
    rows: int = 1,
    sharex: bool = False,
    count: int | None = None,
) -> "tuple[Figure, Any]":
    """The given axes with their figure, or new axes: one, or an array of rows and columns.

    `count` is the number of axes that the caller needs if it leaves some of the new ones empty.
    """
    try:
        from matplotlib.axes import Axes

        picture = picture_class()
    except ImportError as error:
        raise ImportError(
            "pullback.plot needs matplotlib: pip install 'pullback[figures]'."
        ) from error
    if axes is None:
        figure = picture(figsize=(columns * size[0], rows * size[1]), layout="constrained")
        return figure, figure.subplots(rows, columns, sharex=sharex)
    needed = rows * columns if count is None else count
    given = [axes] if isinstance(axes, Axes) else np.ravel(np.asarray(axes, object)).tolist()
    if len(given) != needed or not all(isinstance(ax, Axes) for ax in given):
        what = "one axes" if needed == 1 else f"{needed} axes"
        create = "subplots()" if needed == 1 else f"subplots({needed})"
        wanted = f"{what} of matplotlib, e.g. figure, axes = plt.{create}"
        raise checks.error("plot", "axes", axes, wanted)
    figure: Any = given[0].figure
    return figure, axes


@functools.cache
def picture_class() -> "type[Figure]":
    """A figure that a notebook shows at the end of a cell, whatever backend is active."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that belongs to no window."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return Picture


def mapping(owner: str, name: str, value: Any, example: str) -> None:
    """Raise a `ValueError` unless the value has a name for each thing to draw, and at least one."""
    if not isinstance(value, Mapping) or not value:
        raise checks.error(owner, name, value, "a dictionary that is not empty", example)


def numbers(owner: str, name: str, value: ArrayLike, ndim: int = 1) -> np.ndarray:
    """The value as an array of real numbers; raises unless it has `ndim` axes and an entry."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiubV" or array.ndim != ndim or not array.size:
            raise ValueError
        return array.astype(float)
    except (TypeError, ValueError):
        shape = "a vector" if ndim == 1 else "a matrix"
        raise checks.error(owner, name, value, f"{shape} of real numbers, not empty") from None


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that can be distinguished without full colour vision."""
