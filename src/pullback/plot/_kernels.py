"""Tangent kernels: the matrix and its spectrum, or maps of the response to one of the outputs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike, Float

from .._base import checks
from .._base.checks import integer
from ._curves import spectrum
from ._figure import mapping, numbers, open_figure

if TYPE_CHECKING:
    from ._figure import Axes, Figure

DECADE = 10
"""How far apart singular values must be for a logarithmic scale."""


def kernels(
    maps: Mapping[str, Float[ArrayLike, "m n"]], *, columns: int | None = None
) -> "tuple[Figure, np.ndarray]":
    """Draw matrices side by side, each on its own symmetric scale.

    **Arguments:**

    - `maps`: name -> matrix.
    - `columns`: the number of matrices per row; defaults to all.
    """
    mapping("kernels", "maps", maps, 'kernels({"K": matrix})')
    if columns is not None:
        integer("kernels", "columns", columns, least=1, example="kernels(maps, columns=2)")
    columns = len(maps) if columns is None else min(columns, len(maps))
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


def kernel(
    matrix: Float[ArrayLike, "m n"], *, axes: "Sequence[Axes] | None" = None
) -> "tuple[Figure, Sequence[Axes]]":
    """Draw a matrix on a symmetric scale and, beside it, its singular values.

    **Arguments:**

    - `matrix`: the matrix, e.g. `TangentKernel.matrix()`.
    - `axes`: two axes to draw on; defaults to new ones.
    """
    matrix = numbers("kernel", "matrix", matrix, 2)
    if not np.isfinite(matrix).all():
        raise checks.error("kernel", "matrix", matrix, "finite")
    figure, (left, right) = open_figure(axes, columns=2, size=(4.6, 3.8))
    scale = max(np.abs(matrix).max(), 1e-300)
    image = left.imshow(matrix, cmap="RdBu_r", vmin=-scale, vmax=scale)
    figure.colorbar(image, ax=left, shrink=0.8)
    left.set(title="matrix", xlabel="output that is pushed", ylabel="output that moves")
    for axis in (left.xaxis, left.yaxis):
        axis.get_major_locator().set_params(integer=True)
    values = np.linalg.svd(matrix, compute_uv=False)
    spectrum({"values": values}, axes=right)
    right.get_legend().remove()
    right.set(title="singular values", ylabel="")
    if values.min() * DECADE > values.max():
        right.set(yscale="linear", ylim=(0, 1.1 * values.max()))
    return figure, (left, right)
