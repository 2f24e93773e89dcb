"""`RankChange`: the guard that stops a flow before the rank of its field changes.

An event is a condition on the time and the parameters. A change of rank is not: it compares the
factorisation of the field now with that at the start. So it is an argument of its own,
`flow(..., rank=RankChange(...))`, and not one of `events`.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import positive
from .._base.results import RESULTS, outcome
from .._base.show import applies, facts, settings, several
from .._base.types import Count, Scalar


class Inspection(eqx.Module):
    """What is known of a field at a point."""

    result: RESULTS
    """Whether the field could be computed."""
    rank: Count
    """The rank that the inverse uses; -1 if the field has none that could change."""
    condition: Scalar
    """The inverse condition number of what is kept: smallest/largest singular value."""
    smallest: Scalar
    """The smallest singular value that is kept."""
    log_spread: float | Scalar = 0.0
    """The logarithm of the heaviest over the lightest weight of the rows that decide the field."""

    def __repr__(self) -> str:
        found = facts(rank=self.rank, smallest=self.smallest if applies(self.rank) else None)
        return f"Inspection({several(self.rank)}{', '.join([*found, outcome(self.result)])})"


class RankChange(eqx.Module):
    """Stop where the rank of the field changes, or its smallest singular value collapses.

    A natural (or Newton) field is discontinuous, often unbounded, where the rank changes. A flow
    that runs into such a point reaches it in finite time with ever smaller steps; the guard stops
    it before. Fields without a rank (Euclidean, damped) are not affected.

        sol = pullback.flow(problem, params, batch, t1=1.0, rank=pullback.event.RankChange(1e-3))

    **Arguments:**

    - `collapse`: stop when the ratio of smallest to largest singular value is below `collapse`
        times that at the start; in [0, 1).
    """

    collapse: float | Scalar = 1e-6

    def __repr__(self) -> str:
        return settings(self)

    def __check_init__(self):
        example = "RankChange(collapse=1e-6)"
        positive("RankChange", "collapse", self.collapse, below=1.0, zero=True, example=example)

    def happened(self, start: Inspection, now: Inspection) -> Array:
        """Return whether the rank has changed since the start, or is about to.

        **Arguments:**

        - `start`, `now`: the field at the start and now.
        """
        collapse = jnp.asarray(self.collapse, start.condition.dtype)
        collapsed = now.condition < collapse * start.condition
        return (start.rank >= 0) & ((now.rank != start.rank) | collapsed)

    def approached(self, start: Inspection, now: Inspection, factor: float) -> Array:
        """Return whether the smallest singular value has shrunk below a fraction of the start's.

        This also holds where all singular values vanish together, and `condition` stays constant.

        **Arguments:**

        - `start`, `now`: the field at the start and now.
        - `factor`: the fraction.
        """
        return (start.rank >= 0) & (now.smallest < factor * start.smallest)
