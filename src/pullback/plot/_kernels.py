"""Maps of columns of tangent kernels: the response of a matrix of outputs to one of its entries."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike, Float

from .._base import checks
from ._figure import open_figure

if TYPE_CHECKING:
    from ._figure import Figure


def kernels(
    maps: Mapping[str, Float[ArrayLike, "m n"]], *, columns: int | None = None
) -> "tuple[Figure, np.ndarray]":
    """Draw matrices side by side, each on its own symmetric scale.

    **Arguments:**

    - `maps`: name -> matrix.
    - `columns`: the number of matrices per row; defaults to all.
    """
    columns = len(maps) if columns is None else columns
    rows = -(-len(maps) // columns)
    figure, axes = open_figure(None, columns=columns, rows=rows, size=(2.3, 2.4))
    grid = np.atleast_1d(axes).ravel()
    for ax, (name, matrix) in zip(grid, maps.items(), strict=False):
        matrix = np.asarray(matrix, float)
        if matrix.ndim != 2:
            wanted = f"a matrix, not of shape {matrix.shape}"
            raise checks.error("kernels", f"maps[{name!r}]", matrix, wanted)
        scale = max(np.abs(matrix).max(), 1e-300)
        ax.imshow(matrix, cmap="RdBu_r", vmin=-scale, vmax=scale)
        ax.set_title(name, fontsize=9)
        ax.set(xticks=[], yticks=[])
    for ax in grid[len(maps) :]:
        ax.axis("off")
    return figure, axes
