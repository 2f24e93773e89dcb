"""The models of a problem alone: Euclidean outputs, no loss, every present sample alike."""

import jax.numpy as jnp

from .._base.tree import Structure
from .._problem.batch import AnyBatch
from .._problem.composite import Composite
from .._problem.measure import Weights
from .._problem.problem import AbstractObjective, AbstractProblem
from ..metric._euclidean import Euclidean


def plain_objective(
    problem: AbstractProblem, batch: AnyBatch, like: Structure
) -> AbstractObjective:
    """Return the model alone, in the Euclidean geometry of its outputs, absent samples absent."""
    objective = problem.at(batch)

    def plain(term):
        def made(problem):
            measure = problem.measure
            if term.has_data:
                weights = measure.weights(term.count, like.dtype)
                measure = Weights((weights > 0).astype(like.dtype))
            declared = problem.coupled, problem.stateful
            loss = lambda z, *_: jnp.zeros(())
            return Composite(problem.model, loss, Euclidean(), measure, *declared)

        return made

    return problem.mapped(*map(plain, objective.terms)).unweighted.at(batch)
