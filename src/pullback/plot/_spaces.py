"""Paths in the plane of two parameters beside the same paths in the plane of two outputs, over the
contours of the loss.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._figure import COLOURS, open_figure


def spaces(
    problem: Any,
    paths: Mapping[str, Any],
    *,
    markers: bool = False,
    axes: Any = None,
    window: Any = None,
) -> Any:
    """Draw paths in both spaces of a problem with two parameters and two outputs, without data.

    **Arguments:**

    - `problem`: a `Composite` whose model maps arrays of shape (2,) to arrays of shape (2,).
    - `paths`: name -> parameters along the path, (n, 2).
    - `markers`: whether to mark the points (steps of a method) rather than to draw a curve (a
        flow).
    - `axes`: two axes to draw on; new ones if left out.
    - `window`: `((left, right), (bottom, top))` of the parameters shown; what the paths need if
        left out.
    """
    paths = {name: np.asarray(path, float) for name, path in paths.items()}
    for name, path in paths.items():
        if path.ndim != 2 or path.shape[1] != 2:
            raise ValueError(
                f"spaces draws planes: paths[{name!r}] must have shape (n, 2), got {path.shape}."
            )
    model = jax.jit(jax.vmap(problem.model))
    images = {name: np.asarray(model(jnp.asarray(path))) for name, path in paths.items()}
    if any(image.shape[1:] != (2,) for image in images.values()):
        raise ValueError("spaces draws planes: the model must have two outputs.")
    figure, axes = open_figure(axes, columns=2)
    loss = jax.jit(jax.vmap(problem.loss))
    left = (
        _window(np.concatenate(list(paths.values())))
        if window is None
        else np.asarray(window, float)
    )
    if window is None:
        shown = np.concatenate(list(images.values()))
    else:
        inside = [np.all((p >= left[:, 0]) & (p <= left[:, 1]), axis=1) for p in paths.values()]
        shown = np.concatenate([z[keep] for z, keep in zip(images.values(), inside, strict=True)])
    right = _window(shown)
    for ax, box, height in ((axes[0], left, lambda x: loss(model(x))), (axes[1], right, loss)):
        grid = [np.linspace(*side, 160) for side in box]
        mesh = np.stack(np.meshgrid(*grid), axis=-1)
        values = np.asarray(height(jnp.asarray(mesh.reshape(-1, 2)))).reshape(mesh.shape[:2])
        ax.contour(
            *grid,
            np.log10(np.maximum(values, 1e-12)),
            levels=14,
            cmap="Greys",
            linewidths=0.7,
            alpha=0.6,
        )
        ax.set(xlim=box[0], ylim=box[1])
    for i, name in enumerate(paths):
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "lw": 1.4,
            "marker": "o" if markers else None,
            "ms": 3,
        }
        axes[0].plot(*paths[name].T, label=name, **style)
        axes[1].plot(*images[name].T, label=name, **style)
    first = next(iter(paths))
    axes[0].plot(*paths[first][0], "k*", ms=9)
    axes[1].plot(*images[first][0], "k*", ms=9)
    axes[0].set(xlabel="$\\theta_1$", ylabel="$\\theta_2$", title="parameters")
    axes[1].set(xlabel="$z_1$", ylabel="$z_2$", title="outputs")
    axes[0].legend(frameon=False, fontsize=8)
    return figure, axes


def _window(points: np.ndarray) -> np.ndarray:
    """The box of some points, with a margin."""
    points = points[np.all(np.isfinite(points), axis=1)]
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.12 * np.maximum(high - low, 1e-3)
    return np.stack([low - margin, high + margin], axis=1)
