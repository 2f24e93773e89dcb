r"""log L from the logarithms of the losses of the samples, where the loss itself underflows.

\(\log L = \mathrm{logsumexp}_i(\log w_i + \log\ell_i)\). A likelihood that has \(\log\ell_i\) in
closed form declares it: `has_log_loss`.
"""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array

from .._base.types import Outputs, Scalar
from .._problem.composite import Batch, Composite, sample_count
from ..metric import AbstractLikelihood
from ..metric._log_loss import log_softplus as log_softplus


def closed_form(problem: Composite) -> Callable[[Outputs, Any], Scalar] | None:
    """The logarithm of the loss of one sample, if the metric has it in closed form."""
    if problem.loss is not None or not problem.metric.has_log_loss:
        return None
    return cast(AbstractLikelihood, problem.metric).log_loss


def total_log_loss(
    problem: Composite, per_sample: Callable[[Outputs, Any], Array], outputs: Outputs, batch: Batch
) -> Scalar:
    """log L from the logarithms of the losses of the samples."""
    values = jnp.asarray(
        per_sample(outputs) if batch.targets is None else per_sample(outputs, batch.targets)
    )
    if values.ndim == 0:
        return values
    count = None if batch.inputs is None else sample_count(outputs)
    if values.shape != (count,):
        raise ValueError(
            f"log_loss must return log L or one logarithm per sample, of shape ({count},); "
            f"got the shape {values.shape}."
        )
    weights = problem.measure.weights(values.shape[0], values.dtype)
    return logsumexp(jnp.where(weights > 0, values, 0.0), b=weights)
