"""Curves: spectra, orders of convergence, distances along a path."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._base.checks import error, positive
from ._figure import COLOURS, mapping, numbers, open_figure

if TYPE_CHECKING:
    from ._figure import Axes, Figure


def spectrum(
    values: Mapping[str, Float[ArrayLike, " n"]],
    *,
    cutoff: float | None = None,
    axes: "Axes | None" = None,
) -> "tuple[Figure, Axes]":
    """Draw singular values, largest first, on a logarithmic scale.

    **Arguments:**

    - `values`: name -> singular values.
    - `cutoff`: the level below which singular values counted as zero.
    - `axes`: the axes to draw on; defaults to new ones.
    """
    mapping("spectrum", "values", values, 'spectrum({"A": s})')
    drawn = {name: numbers("spectrum", f"values[{name!r}]", s) for name, s in values.items()}
    if cutoff is not None:
        positive("spectrum", "cutoff", cutoff, zero=True, example="spectrum(values, cutoff=1e-8)")
    figure, ax = open_figure(axes)
    for i, (name, s) in enumerate(drawn.items()):
        ax.plot(
            np.arange(1, s.size + 1),
            np.where(s > 0, s, np.nan),
            "o-",
            ms=3,
            lw=1,
            color=COLOURS[i % len(COLOURS)],
            label=name,
        )
    if cutoff is not None and cutoff > 0:
        ax.axhline(cutoff, color="0.5", ls=":", label=f"cut-off {cutoff:.1e}")
    ax.set(yscale="log", xlabel="index", ylabel="singular value")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=False, fontsize=8)
    return figure, ax


def orders(
    curves: Mapping[str, tuple[Float[ArrayLike, " n"], Float[ArrayLike, " n"]]],
    *,
    axes: "Axes | None" = None,
) -> "tuple[Figure, Axes]":
    """Draw discrepancies against step sizes, both logarithmic, beside lines of slope 1 and 2.

    **Arguments:**

    - `curves`: name -> (step sizes, discrepancies).
    - `axes`: the axes to draw on; defaults to new ones.
    """
    mapping("orders", "curves", curves, 'orders({"one step": (steps, discrepancies)})')
    drawn = {name: _pair(name, curve) for name, curve in curves.items()}
    figure, ax = open_figure(axes, size=(7.0, 4.0))
    shown = []
    least = 1.0
    for i, (name, (h, d)) in enumerate(drawn.items()):
        # Relative to its own largest step, so that methods with other units of step share the axis.
        h = h / np.max(h)
        shown.extend(d[d > 1e-14])
        least = min(least, h.min())
        # Curves that coincide stay visible: ever smaller markers, every other line dashed.
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "ls": "-" if i % 2 == 0 else "--",
            "ms": max(8 - i, 2),
        }
        ax.plot(h, np.maximum(d, 1e-17), marker="o", lw=1.2, label=name, **style)
    top = max(shown, default=1.0)
    h = np.asarray([1.0, least])
    for order in (1, 2):
        ax.plot(h, 2 * top * h**order, color="0.6", ls=":", lw=1)
        ax.annotate(
            f"slope {order}",
            (h[1], 2 * top * h[1] ** order),
            fontsize=8,
            color="0.4",
            ha="left",
            va="bottom",
        )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="step, relative to the largest",
        ylabel="discrepancy on the model",
    )
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure, ax


def _pair(
    name: str, curve: tuple[Float[ArrayLike, " n"], Float[ArrayLike, " n"]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return step sizes and discrepancies; raises a `ValueError` unless they fit together."""
    if not isinstance(curve, tuple | list) or len(curve) != 2:
        raise error("orders", f"curves[{name!r}]", curve, "a pair (step sizes, discrepancies)")
    h, d = (numbers("orders", f"curves[{name!r}][{i}]", x) for i, x in enumerate(curve))
    if h.shape != d.shape or not (h > 0).all():
        wanted = f"positive, one for each of the {d.size} discrepancies"
        raise error("orders", f"curves[{name!r}][0]", h, wanted)
    return h, d


class Distances(Protocol):
    """The distances of n points, as in `pullback.Distance`."""

    @property
    def function(self) -> Float[Array, " n"]:
        """As functions."""
        ...

    @property
    def quadratic(self) -> Float[Array, " n"]:
        """The quadratic estimate."""
        ...

    @property
    def parameters(self) -> Float[Array, " n"]:
        """Of the parameters."""
        ...


def distances(
    positions: Float[ArrayLike, " n"], curve: Distances, *, axes: "Axes | None" = None
) -> "tuple[Figure, Axes]":
    """Draw the three distances along a line or a run.

    The distance of the parameters is drawn as half its square, to be comparable.

    **Arguments:**

    - `positions`: the positions along the line or the run, (n,).
    - `curve`: a `Distance` of n points.
    - `axes`: the axes to draw on; defaults to new ones.
    """
    x = numbers("distances", "positions", positions)
    parts = (getattr(curve, name, ()) for name in ("function", "quadratic", "parameters"))
    if any(np.shape(part) != x.shape for part in parts):
        wanted = f"a Distance of {x.size} points, one for each position"
        raise error("distances", "curve", curve, wanted)
    figure, ax = open_figure(axes)
    # The start itself is at distance zero, which a logarithmic scale does not show.
    above_zero = lambda values: np.where(np.asarray(values) > 0, values, np.nan)
    ax.plot(x, above_zero(curve.function), color=COLOURS[0], label="as functions, $\\rho$")
    ax.plot(x, above_zero(curve.quadratic), color=COLOURS[1], ls="--", label="quadratic estimate")
    ax.plot(
        x,
        above_zero(curve.parameters**2 / 2),
        color="0.5",
        ls=":",
        label="parameters, $\\frac{1}{2}|\\Delta\\theta|^2$",
    )
    ax.set(yscale="log", xlabel="position", ylabel="distance from the start")
    ax.legend(frameon=False, fontsize=8)
    return figure, ax
