r"""Natural gradient descent in products of matrices, by finite steps, and what becomes of it.

The Fisher matrix is that of all entries, the identity, and \(G = \text{mask}\odot(\beta -
\beta_\star)\) the gradient in \(\beta\). Two changes of the factors move \(\beta\) by \(-G\) to
first order: the shortest one, \(J^+G\), and the split formula of the source, \(\frac1L
A_l^+GB_l^+\). In the limit of small steps both follow the same line, on which observed entries tend
to the truth and the others stay. A finite step adds terms of higher order in the *change of the
factors*, which is large where the factors are small or nearly singular.
"""

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pullback.linear import MatrixProduct

from ._figure_factors import Completed, Completion, error, product

FORMULAS: dict[str, Callable[[MatrixProduct], Callable[..., Any]]] = {
    "minimum norm": lambda model: functools.partial(model.natural_gradient, throw=False),
    "split": lambda model: model.split,
}
"""Changes of the factors that move β by G, to first order and where J is onto."""
GOAL = 0.02
"""Descent stops at this error on the observed entries, relative."""
LATE = 6.0
"""And at this time, step times number of steps; the flow is at the goal at 3.9."""
LOST = 1e3
"""And at this error."""


class Phase(enum.IntEnum):
    """What becomes of a run."""

    TRIVIAL = 0
    """It fits the observed entries, and the others stay where they were."""
    WRONG = 1
    """The others move, and not towards the truth."""
    DIVERGENT = 2
    """The observed entries are further from the truth than zero is."""
    COMPLETES = 3
    """The error on the others is below that of zero."""


def descend(
    formula: str, task: Completion, factors: Sequence[np.ndarray], step: float
) -> Completed:
    """Natural gradient descent with a fixed step; a key of `FORMULAS` says by which change."""
    count, end, fit = _descend(
        formula,
        tuple(jnp.asarray(w) for w in factors),
        jnp.asarray(task.truth),
        jnp.asarray(task.mask),
        step,
        round(LATE / step),
    )
    return Completed(product([np.asarray(w) for w in end]), float(fit), int(count))


@functools.partial(jax.jit, static_argnums=0)
def _descend(formula: str, factors: tuple, truth: Array, mask: Array, step: Any, most: Any) -> Any:
    """The number of steps, the factors, and the error on the observed entries."""
    model = MatrixProduct(len(factors))
    change = FORMULAS[formula](model)
    seen = jnp.linalg.norm(jnp.where(mask, truth, 0))
    fit = lambda w: jnp.linalg.norm(jnp.where(mask, model.product(w) - truth, 0)) / seen

    def go_on(state):
        count, _, now = state
        return (count < most) & (now > GOAL) & (now < LOST)

    def move(state):
        count, w, _ = state
        w = tuple(a - step * d for a, d in zip(w, change(w, truth, mask), strict=True))
        return count + 1, w, fit(w)

    return jax.lax.while_loop(go_on, move, (0, factors, fit(factors)))


def motion_elsewhere(end: np.ndarray, start: np.ndarray, task: Completion) -> float:
    """How far the entries moved that are not observed, relative to their truth."""
    hidden = ~task.mask
    return float(np.linalg.norm((end - start)[hidden]) / np.linalg.norm(task.truth[hidden]))


def phase(end: Completed, start: np.ndarray, task: Completion) -> Phase:
    """What became of a run that began at the product `start`."""
    if not end.fit <= 1:  # also if it is not a number
        return Phase.DIVERGENT
    if error(end.beta, task) <= 0.9:
        return Phase.COMPLETES
    stays = motion_elsewhere(end.beta, start, task) <= 0.1
    return Phase.TRIVIAL if stays and end.fit <= 0.05 else Phase.WRONG


def singular_crossings(start: np.ndarray, task: Completion, points: int = 1000) -> int:
    """How often the determinant changes its sign on the line from a start to the trivial optimum.

    At such a point some factor is singular, whatever the factors are, and the split formula has a
    pole.
    """
    left = np.linspace(1.0, GOAL, points)
    line = [np.where(task.mask, task.truth + (start - task.truth) * s, start) for s in left]
    return int(np.count_nonzero(np.diff(np.linalg.slogdet(np.stack(line))[0])))
