r"""Metric ellipses \(\{v : v^\top G v = r^2\}\): vectors of one length at points of a plane."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike, Float

from .._base import checks
from ._figure import COLOURS, open_figure

if TYPE_CHECKING:
    from ._figure import Axes, Figure


def ellipses(
    points: Float[ArrayLike, "n 2"],
    matrices: Float[ArrayLike, "n 2 2"],
    *,
    radius: float = 1.0,
    axes: "Axes | None" = None,
    colour: str = COLOURS[0],
    label: str | None = None,
) -> "tuple[Figure, Axes]":
    """Draw the ball of a metric at each of some points of a plane.

    Where the metric is singular the ball is a strip, whose edges are dashed.

    **Arguments:**

    - `points`: (n, 2).
    - `matrices`: G at the points, (n, 2, 2), positive semi-definite.
    - `radius`: r, the length in the metric.
    - `axes`: the axes to draw on; defaults to new ones.
    - `colour`, `label`: the colour of the curves, and their name in the legend.
    """
    points = np.asarray(points, float)
    matrices = np.asarray(matrices, float)
    if points.ndim != 2 or points.shape[1] != 2:
        wanted = f"an array of shape (n, 2), not {points.shape}"
        raise checks.error("ellipses", "points", points, wanted)
    if matrices.shape != (len(points), 2, 2):
        wanted = f"an array of shape ({len(points)}, 2, 2), one matrix per point"
        raise checks.error("ellipses", "matrices", matrices, f"{wanted}, not {matrices.shape}")
    checks.positive("ellipses", "radius", radius)
    figure, ax = open_figure(axes)
    angle = np.linspace(0.0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    extent = 0.5 * max(np.ptp(points, axis=0).max(), 1.0)
    for i, (point, matrix) in enumerate(zip(points, matrices, strict=True)):
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        if values[0] < -1e-10 * max(values[1], 1e-300):
            wanted = f"positive semi-definite, but its eigenvalues are {values}"
            raise checks.error("ellipses", f"matrices[{i}]", matrix, wanted)
        name = label if i == 0 else None
        if values[0] > 1e-12 * values[1]:
            curve = point[:, None] + radius * vectors @ (circle / np.sqrt(values)[:, None])
            ax.plot(*curve, color=colour, lw=1.3, label=name)
        elif values[1] > 0:
            for side in (-1, 1):
                edge = point + side * radius / np.sqrt(values[1]) * vectors[:, 1]
                ends = np.stack([edge - extent * vectors[:, 0], edge + extent * vectors[:, 0]])
                ax.plot(*ends.T, color=colour, lw=1.0, ls="--", label=name if side < 0 else None)
        ax.plot(*point, ".", color=colour, ms=3)
    if label is not None:
        ax.legend(frameon=False)
    return figure, ax
