r"""Some of the parameters: columns of \(A\) as rows of a problem of their own.

With the leaves of the parameters in blocks, \(A = [A_1, \dots, A_B]\), and \(A_b\) is the whitened
Jacobian of the same problem with every other leaf held fixed.
"""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import PyTree

from .._base.part import Part
from .._base.stateful import Stateful
from .._base.tree import split
from .._base.types import Outputs, Params
from .base import AbstractRows
from .linearise import Linearisation
from .rows import Rows
from .separated import separable


class PartialModel(eqx.Module):
    """A model as a function of some leaves of its parameters."""

    model: Callable
    rest: Params
    """All other leaves."""

    def __call__(self, params: Params, *inputs: PyTree) -> Outputs:
        """Return the outputs; with state, which is among the other leaves, a pair."""
        if not isinstance(self.rest, Stateful):
            return self.model(eqx.combine(params, self.rest), *inputs)
        # A copy of the state: Equinox marks a `State` as old once it has been used.
        state = jax.tree.map(lambda x: x, self.rest.state)
        return self.model(eqx.combine(params, self.rest.params), state, *inputs[1:])


def columns(rows: AbstractRows, part: Part) -> AbstractRows:
    """Return A_b, the rows of the problem in which only these leaves are parameters."""
    return rows.with_terms(tuple(_columns(term, part) for term in rows.terms)).resolved()


def _columns(rows: Rows, part: Part) -> Rows:
    """Return the columns of one term."""
    moving, carried = split(rows.params)
    rest = eqx.combine(part.others.select(moving), carried)
    params = part.select(moving)
    model = PartialModel(rows.objective.problem.model, rest)
    objective = eqx.tree_at(lambda o: o.problem.model, rows.objective, model)
    whole = rows.linear
    linear = Linearisation(
        whole.outputs, whole.tangent_map, part.structure, whole.like, whole.state, part
    )
    gauge = rows.gauge.part(part.take)
    cut = None if rows.cut is None else separable(objective, params)
    return Rows(
        objective, params, linear, rows.root, rows.log_scale, gauge, rows.memory, cut=cut,
        weight=rows.weight,
    )  # fmt: skip
