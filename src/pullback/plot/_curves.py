"""Curves: spectra, orders of convergence, distances along a way."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._figure import COLOURS, open_figure


def spectrum(values: Mapping[str, Any], *, cutoff: float | None = None, axes: Any = None) -> Any:
    """Draw singular values, largest first, on a logarithmic scale.

    **Arguments:**

    - `values`: name -> singular values.
    - `cutoff`: what counted as zero.
    - `axes`: axes to draw on; new ones if left out.
    """
    figure, axes = open_figure(axes)
    for i, (name, s) in enumerate(values.items()):
        s = np.asarray(s, float)
        axes.plot(
            np.arange(1, s.size + 1),
            np.where(s > 0, s, np.nan),
            "o-",
            ms=3,
            lw=1,
            color=COLOURS[i % len(COLOURS)],
            label=name,
        )
    if cutoff is not None and cutoff > 0:
        axes.axhline(cutoff, color="0.5", ls=":", label=f"cut-off {cutoff:.1e}")
    axes.set(yscale="log", xlabel="index", ylabel="singular value")
    axes.legend(frameon=False, fontsize=8)
    return figure, axes


def orders(curves: Mapping[str, tuple[Any, Any]], *, axes: Any = None) -> Any:
    """Draw discrepancies against step sizes, both logarithmic, with lines of slope 1 and 2 to
    compare with.

    **Arguments:**

    - `curves`: name -> (step sizes, discrepancies).
    - `axes`: axes to draw on; new ones if left out.
    """
    figure, axes = open_figure(axes, size=(7.0, 4.0))
    shown, least = [], 1.0
    for i, (name, (h, d)) in enumerate(curves.items()):
        # Relative to its own largest step, so that methods with other units of step share the axis.
        h, d = np.asarray(h, float) / np.max(h), np.asarray(d, float)
        shown.extend(d[d > 1e-14])
        least = min(least, h.min())
        # Curves that coincide stay visible: ever smaller markers, every other line dashed.
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "ls": "-" if i % 2 == 0 else "--",
            "ms": max(8 - i, 2),
        }
        axes.plot(h, np.maximum(d, 1e-17), marker="o", lw=1.2, label=name, **style)
    top = max(shown, default=1.0)
    h = np.asarray([1.0, least])
    for order in (1, 2):
        axes.plot(h, 2 * top * h**order, color="0.6", ls=":", lw=1)
        axes.annotate(
            f"slope {order}",
            (h[1], 2 * top * h[1] ** order),
            fontsize=8,
            color="0.4",
            ha="left",
            va="bottom",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="step, relative to the largest",
        ylabel="discrepancy on the model",
    )
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure, axes


def distances(positions: Any, curve: Any, *, axes: Any = None) -> Any:
    """Draw the three distances along a line or a run; that of the parameters as half its square, to
    be comparable.

    **Arguments:**

    - `positions`: where along the way, (n,).
    - `curve`: a `Distance` of n points.
    - `axes`: axes to draw on; new ones if left out.
    """
    figure, axes = open_figure(axes)
    x = np.asarray(positions, float)
    # The start itself is at distance zero, which a logarithmic scale does not show.
    positive = lambda values: np.where(np.asarray(values) > 0, values, np.nan)
    axes.plot(x, positive(curve.function), color=COLOURS[0], label="as functions, $\\rho$")
    axes.plot(x, positive(curve.quadratic), color=COLOURS[1], ls="--", label="quadratic estimate")
    axes.plot(
        x,
        positive(curve.parameters**2 / 2),
        color="0.5",
        ls=":",
        label="parameters, $\\frac{1}{2}|\\Delta\\theta|^2$",
    )
    axes.set(yscale="log", xlabel="position", ylabel="distance from the start")
    axes.legend(frameon=False, fontsize=8)
    return figure, axes
