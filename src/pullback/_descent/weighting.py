"""What a rule for the weights of several terms is given, and the weights that it returns."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.checks import error, function
from .._base.functions import canonical
from .._base.types import Scalar
from .._base.vector import norm
from .._natural.evaluate import Evaluation
from .._problem.problem import AbstractProblem
from .._problem.terms import Terms
from ..weights import AbstractWeighting

EXAMPLE = "NaturalGradientDescent(problem, weighting=pullback.weights.ByGradientNorm())"


def as_weighting(rule: Any, problem: AbstractProblem) -> Any:
    """Return the rule that a user means; raise a `ValueError` if it cannot be used."""
    if rule is None:
        return None
    if not isinstance(problem, Terms):
        wanted = "left out for a problem of one term"
        raise error("NaturalGradientDescent", "weighting", rule, wanted)
    if isinstance(rule, AbstractWeighting):
        return rule
    function("NaturalGradientDescent", "weighting", rule, EXAMPLE)
    return canonical(rule)


def weighed(problem: AbstractProblem, weights: tuple[Scalar, ...] | None) -> Any:
    """Return the problem with the weights of a step, its own where there is no rule."""
    if weights is None or not isinstance(problem, Terms):
        return problem
    return problem.reweighed(weights)


def next_weights(rule: Any, evaluation: Evaluation) -> tuple[Scalar, ...]:
    """Return the weights that a rule gives for the next step."""
    objective, linear = evaluation.objective, evaluation.linear
    problem = objective.problem
    assert isinstance(problem, Terms)
    weights = problem.scales
    slopes = zip(linear.parts, objective.parts(evaluation.differential), weights, strict=True)
    norms = [_unweighted(norm(part.pull(c)), weight) for part, c, weight in slopes]
    squares = lambda rows: jnp.sum(rows * rows)
    terms = zip(evaluation.rows.terms, weights, strict=True)
    summed = evaluation.rows.summed
    traces = [_unweighted(summed(term.sum_blocks(squares)), weight) for term, weight in terms]
    pack = problem.form.pack
    found = rule(evaluation.losses, pack(norms), pack(traces), problem.weights)
    return _checked(problem, found)


def _unweighted(size: Scalar, weight: Scalar) -> Scalar:
    """Return a size without the weight of its term; zero for an absent term."""
    present = weight > 0
    return jnp.where(present, size / jnp.where(present, weight, 1.0).astype(size.dtype), 0.0)


def _checked(problem: Terms, found: PyTree) -> tuple[Array, ...]:
    """Return what a rule returned as weights; raise a `ValueError` if it is none in form.

    A weight that is negative or not finite shows in the next step, as a bad metric.
    """
    values = problem.form.unpack(found, "weighting(...): the weights", "1.0")
    for label, value in zip(problem.form.labels, values, strict=True):
        if jnp.shape(value) != ():
            raise ValueError(
                f"weighting(...): the weight of term {label!r} must be one number, got shape "
                f"{jnp.shape(value)}."
            )
    pairs = zip(values, problem.scales, strict=True)
    return tuple(jnp.asarray(value).astype(scale.dtype) for value, scale in pairs)
