r"""log L from the logarithms of the losses of the samples, where the loss itself underflows.

\[ \log L = \mathrm{logsumexp}_i(\log w_i + \log\ell_i) . \]

A likelihood that has \(\log\ell_i\) in closed form declares it: `has_log_loss`.
"""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array

from .._base.types import Outputs, Scalar
from .._problem.batch import sample_count
from .._problem.problem import AbstractObjective, AbstractProblem
from ..metric import AbstractLikelihood


def closed_form(problem: AbstractProblem) -> Callable[[Outputs, Any], Scalar] | None:
    """Return the logarithm of the loss of one sample, if the metric has it in closed form."""
    if problem.labels:
        return None  # The logarithm of a sum of terms has none.
    (term,) = problem.terms
    if term.loss is not None or not term.metric.has_log_loss:
        return None
    return cast(AbstractLikelihood, term.metric).log_loss


def total_log_loss(
    objective: AbstractObjective, per_sample: Callable[..., Array], outputs: Outputs
) -> Scalar:
    """Return log L at the outputs, from a function that returns the logarithms of the losses."""
    targets = objective.batch.targets
    values = per_sample(outputs) if targets is None else per_sample(outputs, targets)
    values = jnp.asarray(values)
    if values.ndim == 0:
        return values
    if objective.labels:
        raise ValueError(f"log_loss of Terms must return log L, a scalar, got {values.shape}.")
    count = sample_count(objective.batch)
    if values.shape != (count,):
        samples = "" if count is None else f" or one logarithm per sample, shape ({count},)"
        raise ValueError(f"log_loss must return log L{samples}, got shape {values.shape}.")
    (term,) = objective.terms
    weights = term.problem.measure.weights(term.count, values.dtype)
    return logsumexp(jnp.where(weights > 0, values, 0.0), b=weights)
