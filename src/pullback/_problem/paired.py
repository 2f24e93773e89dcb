r"""A problem with complex outputs as one with real outputs: \(z = a + ib\) is the pair \((a, b)\).

Metrics, roots and rows are real. The model returns an array with a trailing axis of two in the
place of each complex one, and the loss receives the complex outputs and targets that it was written
for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx

from .._base.pairs import Pairs, real_pairs
from .._base.types import Outputs, Scalar
from .batch import Batch, sample_count
from .broadcast import check_broadcast
from .composite import Objective
from .problem import AbstractObjective


class PairedModel(eqx.Module):
    """A model whose complex outputs are pairs."""

    model: Callable
    stateful: bool = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        """Return the outputs; with state, a pair."""
        made = self.model(*args)
        return (real_pairs(made[0]), made[1]) if self.stateful else real_pairs(made)


class PairedLoss(eqx.Module):
    """A loss of complex outputs as a function of pairs."""

    loss: Callable
    outputs: Pairs = eqx.field(static=True)
    targets: Pairs | None = eqx.field(static=True)
    count: int | None = eqx.field(static=True)

    def __call__(self, outputs: Outputs, *targets: Any) -> Scalar:
        """Return the loss."""
        outputs = self.outputs.whole(outputs)
        if self.targets is not None:
            targets = tuple(map(self.targets.whole, targets))
        # The shapes of pairs would not tell.
        check_broadcast(self.loss, outputs, targets[0] if targets else None, self.count)
        return self.loss(outputs, *targets)


def paired(objective: AbstractObjective, pairs: Sequence[Pairs | None]) -> Any:
    """Return the same objective with real outputs, given which ones of each term are complex."""
    if all(own is None for own in pairs):
        return objective
    return objective.with_terms(tuple(map(_paired, objective.terms, pairs)))


def _paired(objective: Objective, pairs: Pairs | None) -> Objective:
    """Return one term with real outputs."""
    if pairs is None:
        return objective
    problem, batch = objective.problem, objective.batch
    model = PairedModel(problem.model, problem.stateful)
    problem = eqx.tree_at(lambda p: p.model, problem, model)
    if problem.loss is not None:
        loss = PairedLoss(problem.loss, pairs, Pairs.of(batch.targets), sample_count(batch))
        problem = eqx.tree_at(lambda p: p.loss, problem, loss)
    return Objective(problem, Batch(batch.inputs, real_pairs(batch.targets)))
