"""Maps of columns of tangent kernels: how a matrix of outputs moves in answer to one of its
entries.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._figure import open_figure


def kernels(maps: Mapping[str, Any], *, columns: int | None = None) -> Any:
    """Draw matrices side by side, each on its own symmetric scale.

    **Arguments:**

    - `maps`: name -> matrix.
    - `columns`: how many in a row; all if left out.
    """
    columns = len(maps) if columns is None else columns
    rows = -(-len(maps) // columns)
    figure, axes = open_figure(None, columns=columns, rows=rows, size=(2.3, 2.4))
    grid = np.atleast_1d(axes).ravel()
    for ax, (name, matrix) in zip(grid, maps.items(), strict=False):
        matrix = np.asarray(matrix, float)
        if matrix.ndim != 2:
            raise ValueError(f"kernels draws matrices: maps[{name!r}] has shape {matrix.shape}.")
        scale = max(np.abs(matrix).max(), 1e-300)
        ax.imshow(matrix, cmap="RdBu_r", vmin=-scale, vmax=scale)
        ax.set_title(name, fontsize=9)
        ax.set(xticks=[], yticks=[])
    for ax in grid[len(maps) :]:
        ax.axis("off")
    return figure, axes
