"""Paths in the plane of two parameters and in the plane of two outputs, over the loss."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._base import checks
from ._figure import COLOURS, mapping, open_figure

if TYPE_CHECKING:
    from ._figure import Axes, Figure


class Planar(Protocol):
    """A problem with a model and a loss, as in `pullback.Composite`."""

    @property
    def model(self) -> Callable:
        """Two parameters -> two outputs."""
        ...

    @property
    def loss(self) -> Callable | None:
        """Two outputs -> the loss."""
        ...


def spaces(
    problem: Planar,
    paths: Mapping[str, Float[ArrayLike, "n 2"]],
    *,
    markers: bool = False,
    axes: "Sequence[Axes] | None" = None,
    window: Float[ArrayLike, "2 2"] | Sequence[tuple[float, float]] | None = None,
) -> "tuple[Figure, Sequence[Axes]]":
    """Draw paths in both spaces of a problem with two parameters and two outputs, without data.

    **Arguments:**

    - `problem`: a `Composite` whose model maps arrays of shape (2,) to arrays of shape (2,).
    - `paths`: name -> parameters along the path, (n, 2).
    - `markers`: whether to mark the points (steps of a method) beside the curve (a flow).
    - `axes`: two axes to draw on; defaults to new ones.
    - `window`: the parameters shown, `((left, right), (bottom, top))`; defaults to a box around the
        paths.
    """
    mapping("spaces", "paths", paths, 'spaces(problem, {"a path": points})')
    paths = {name: np.asarray(path, float) for name, path in paths.items()}
    for name, path in paths.items():
        if path.ndim != 2 or path.shape[1] != 2:
            wanted = f"an array of shape (n, 2), not {path.shape}"
            raise checks.error("spaces", f"paths[{name!r}]", path, wanted)
    given = getattr(problem, "loss", None)
    if given is None:
        wanted = "a problem whose loss is a function of the outputs"
        raise checks.error("spaces", "problem", problem, wanted, "Composite(model, loss)")
    if getattr(problem, "stateful", False):
        raise checks.error("spaces", "problem", problem, "a problem without state")
    model = jax.jit(jax.vmap(problem.model))
    images = {name: np.asarray(model(jnp.asarray(path))) for name, path in paths.items()}
    if any(image.shape[1:] != (2,) for image in images.values()):
        raise ValueError("spaces(problem=...): the model must have outputs of shape (2,).")
    figure, panels = open_figure(axes, columns=2)
    loss = jax.jit(jax.vmap(given))
    left = _window(np.concatenate(list(paths.values())))
    if window is not None:
        left = np.asarray(window, float)
        if left.shape != (2, 2) or not (left[:, 0] < left[:, 1]).all():
            wanted = "((left, right), (bottom, top)) in increasing order"
            raise checks.error("spaces", "window", window, wanted)
    if window is None:
        shown = np.concatenate(list(images.values()))
    else:
        inside = [np.all((p >= left[:, 0]) & (p <= left[:, 1]), axis=1) for p in paths.values()]
        shown = np.concatenate([z[keep] for z, keep in zip(images.values(), inside, strict=True)])
    right = _window(shown)
    _contours(panels[0], left, lambda x: loss(model(x)))
    _contours(panels[1], right, loss)
    for i, name in enumerate(paths):
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "lw": 1.4,
            "marker": "o" if markers else None,
            "ms": 3,
        }
        panels[0].plot(*paths[name].T, label=name, **style)
        panels[1].plot(*images[name].T, label=name, **style)
    first = next(iter(paths))
    panels[0].plot(*paths[first][0], "k*", ms=9)
    panels[1].plot(*images[first][0], "k*", ms=9)
    panels[0].set(xlabel="$\\theta_1$", ylabel="$\\theta_2$", title="parameters")
    panels[1].set(xlabel="$z_1$", ylabel="$z_2$", title="outputs")
    panels[0].legend(frameon=False, fontsize=8)
    return figure, panels


def _contours(ax: "Axes", box: np.ndarray, loss: Callable[[Array], Array]) -> None:
    """Draw the contours of the logarithm of the loss in a box."""
    grid = [np.linspace(*side, 160) for side in box]
    mesh = np.stack(np.meshgrid(*grid), axis=-1)
    values = np.asarray(loss(jnp.asarray(mesh.reshape(-1, 2)))).reshape(mesh.shape[:2])
    heights = np.log10(np.maximum(values, 1e-12))
    ax.contour(*grid, heights, levels=14, cmap="Greys", linewidths=0.7, alpha=0.6)
    ax.set(xlim=box[0], ylim=box[1])


def _window(points: np.ndarray) -> np.ndarray:
    """The box of some points, with a margin."""
    points = points[np.all(np.isfinite(points), axis=1)]
    low = points.min(axis=0)
    high = points.max(axis=0)
    margin = 0.12 * np.maximum(high - low, 1e-3)
    return np.stack([low - margin, high + margin], axis=1)
