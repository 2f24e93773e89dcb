"""What `fit` returns, raises, and passes to callbacks."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from .._base.results import RESULTS
from .._base.show import paragraph
from .._base.types import Params
from .history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Report(NamedTuple):
    """The argument of a callback of `fit`: the step, parameters, state and new records."""

    step: int
    """The number of steps made."""
    params: Params
    state: Any
    rows: History
    """The records since the last call."""

    def __repr__(self) -> str:
        return f"Report(step={self.step}, rows={self.rows!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class Fit:
    """The outcome of `fit`: parameters, state, history, and the reason of the end.

    ```python
    fit = pb.fit(opt, params, (x, y), steps=100)
    fit.params, fit.history["loss"], fit.ended
    ```
    """

    params: Params
    state: Any
    history: History
    """One row per step, including those before a resumption."""
    steps: int
    """The number of steps made in all."""
    seconds: float
    """How long this call took."""
    ended: str
    """Why it ended, in words."""
    sampler: Any = None
    """The last state of a `Sampler`, `None` without one."""

    def plot(self, *names: str, axes: "Axes | Sequence[Axes] | None" = None) -> "Figure":
        """Return a matplotlib figure of the history: an overview, or some of its columns.

        **Arguments:**

        - `*names`, `axes`: as for `History.plot`.
        """
        return self.history.plot(*names, axes=axes)

    def __repr__(self) -> str:
        change = f", {self.history.summary}" if len(self.history) else ""
        return f"Fit({self.steps} steps{change}, {self.seconds:.3g} s: {self.ended})"

    def _repr_html_(self) -> str:
        return paragraph(repr(self)) + (self.history._repr_html_() if len(self.history) else "")


class FitError(RuntimeError):
    """Raised by `fit` if a step fails and `throw=True`.

    `fit` holds the outcome up to there: finite parameters, and the history with the failed step.
    """

    fit: Fit


def message(code: int) -> str:
    """Return the words behind a code in the column `result`."""
    item = jax.tree.map(lambda _: np.asarray(code, np.int32), RESULTS.successful)
    return RESULTS[item] or "successful"
