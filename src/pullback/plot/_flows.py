"""A flow in time: the loss, and some of the outputs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import ArrayLike, Float

from .._base.checks import error
from ._figure import COLOURS, numbers, open_figure

if TYPE_CHECKING:
    from ._figure import Axes, Figure

DECADES = 3
"""Over how many decades losses must reach to be drawn on a logarithmic scale."""
EARLY = 0.01
"""The time is logarithmic if half of the decrease lies in this fraction of it."""


def path(
    times: Float[ArrayLike, " n"],
    values: Float[ArrayLike, " n"],
    outputs: Mapping[str, tuple[Float[ArrayLike, " k"], Float[ArrayLike, " k"]]] | None = None,
    *,
    axes: "Axes | Sequence[Axes] | None" = None,
) -> "tuple[Figure, Axes | Sequence[Axes]]":
    """Draw the loss over time and, beside it, outputs over time.

    **Arguments:**

    - `times`, `values`: times, and the loss there.
    - `outputs`: name -> (times, output); defaults to none.
    - `axes`: the axes to draw on, two with outputs; defaults to new ones.
    """
    t, loss = numbers("path", "times", times), numbers("path", "values", values)
    if t.shape != loss.shape:
        wanted = f"of shape {t.shape}, one for each time, not {loss.shape}"
        raise error("path", "values", loss, wanted)
    figure, places = open_figure(axes, columns=2 if outputs else 1, size=(4.6, 3.4))
    first, second = places if outputs else (places, None)
    first.plot(t, loss, ".-", ms=3, lw=1, color="black")
    first.set(title="loss", xlabel="time")
    if _spread(loss):
        first.set_yscale("log")
    if second is not None:
        for i, (name, (when, output)) in enumerate((outputs or {}).items()):
            style = {"color": COLOURS[i % len(COLOURS)], "ls": "-" if i < len(COLOURS) else "--"}
            second.plot(np.asarray(when), np.asarray(output), lw=1.2, label=name, **style)
        second.set(title="outputs", xlabel="time")
        second.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for place in (first, second):
        if place is not None and is_early(t, loss):
            place.set(xscale="log", xlim=(t[1], t[-1]))
    return figure, places


def is_early(t: np.ndarray, loss: np.ndarray) -> bool:
    """Whether most of a decrease happens so early that the time is best logarithmic."""
    if len(t) < 3 or not t[1] > 0 or not np.isfinite(loss).all():
        return False
    halfway = t[np.argmax(loss <= (loss[0] + loss[-1]) / 2)]
    return bool(max(halfway, t[1]) - t[0] < EARLY * (t[-1] - t[0]))


def sampled(t: np.ndarray, loss: np.ndarray, count: int) -> np.ndarray:
    """Return times between the first and the last, spaced evenly on the axis that is drawn."""
    if is_early(t, loss):
        return np.clip(np.append(t[0], np.geomspace(t[1], t[-1], count - 1)), t[0], t[-1])
    return np.linspace(t[0], t[-1], count)


def _spread(values: np.ndarray) -> bool:
    """Whether numbers are positive and reach over several decades."""
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0 and values.max() > 10**DECADES * values.min())
