r"""Metric ellipses: the vectors of one length, \(\{v : v^\top G v = r^2\}\), at points of a plane."""

from typing import Any

import numpy as np

from ._figure import COLOURS, open_figure


def ellipses(
    points: Any,
    matrices: Any,
    *,
    radius: float = 1.0,
    axes: Any = None,
    colour: str = COLOURS[0],
    label: str | None = None,
) -> Any:
    """Draw the ball of a metric at each of some points of a plane; where the metric is singular,
    the strip it becomes, dashed.

    **Arguments:**

    - `points`: (n, 2).
    - `matrices`: G at the points, (n, 2, 2), positive semi-definite.
    - `radius`: r, the length in the metric.
    - `axes`: axes to draw on; new ones if left out.
    - `colour`, `label`: how to draw, and what to call it in the legend.
    """
    points, matrices = np.asarray(points, float), np.asarray(matrices, float)
    if points.ndim != 2 or points.shape[1] != 2 or matrices.shape != (len(points), 2, 2):
        raise ValueError(
            f"ellipses(points, matrices): shapes (n, 2) and (n, 2, 2), got {points.shape} and {matrices.shape}."
        )
    figure, axes = open_figure(axes)
    angle = np.linspace(0.0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    extent = 0.5 * max(np.ptp(points, axis=0).max(), 1.0)
    for i, (point, matrix) in enumerate(zip(points, matrices, strict=True)):
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        if values[0] < -1e-10 * max(values[1], 1e-300):
            raise ValueError(f"matrices[{i}] is not positive semi-definite: eigenvalues {values}.")
        name = label if i == 0 else None
        if values[0] > 1e-12 * values[1]:
            curve = point[:, None] + radius * vectors @ (circle / np.sqrt(values)[:, None])
            axes.plot(*curve, color=colour, lw=1.3, label=name)
        elif values[1] > 0:
            for side in (-1, 1):
                edge = point + side * radius / np.sqrt(values[1]) * vectors[:, 1]
                ends = np.stack([edge - extent * vectors[:, 0], edge + extent * vectors[:, 0]])
                axes.plot(*ends.T, color=colour, lw=1.0, ls="--", label=name if side < 0 else None)
        axes.plot(*point, ".", color=colour, ms=3)
    if label is not None:
        axes.legend(frameon=False)
    return figure, axes
