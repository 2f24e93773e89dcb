"""What `fit` returns, raises, and passes to callbacks."""

import dataclasses
import html
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from .._base.results import RESULTS, describe
from .._base.types import Params
from .history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Report(NamedTuple):
    """What a callback receives."""

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
    """The outcome of `fit`."""

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

    def plot(self) -> "Figure":
        """Return a matplotlib figure of the history: loss, step norms, damping and rate, rank."""
        return self.history.plot()

    def __repr__(self) -> str:
        change = f", {self.history.summary}" if len(self.history) else ""
        return f"Fit({self.steps} steps{change}, {self.seconds:.3g} s: {self.ended})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>" + self.history._repr_html_()


class FitError(RuntimeError):
    """A step failed and `throw=True`.

    `fit` holds the outcome up to there: finite parameters, and the history with the failed step.
    """

    fit: Fit


def message(code: int) -> str:
    """Return the words behind a code in the column `result`."""
    item = jax.tree.map(lambda _: jnp.asarray(code, jnp.int32), RESULTS.successful)
    return describe(item)
