r"""The logarithm of a loss, where the loss itself underflows.

With \(\ell = \log(1 + e^{v})\) (a Bernoulli variable: \(v = \mp s\); a categorical one: \(v =
\log\sum_{k \ne y} e^{z_k} - z_y\)),

\[ \log \ell = v + \log\bigl(1 - \tfrac{x}{2} + \tfrac{x^2}{3} - \dots\bigr), \quad x = e^v, \]

has full relative accuracy and full relative accuracy of its gradient for every \(v\); \(\log L =
\mathrm{logsumexp}_i(\log w_i + \log\ell_i)\).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array

from .._base.tree import split
from .._base.types import Outputs, Scalar
from .._problem.composite import Batch, Composite, sample_count
from ..metric import Bernoulli, Categorical


def log_softplus(v: Array) -> Array:
    """log log(1 + e^v)."""
    small = v < -8.0
    x = jnp.exp(jnp.where(small, v, -jnp.inf))
    # The first term left out is x⁶/7 < 3e-22.
    series = jnp.log1p(-x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x * (1 / 5 - x / 6)))))
    return jnp.where(small, v + series, jnp.log(jax.nn.softplus(jnp.where(small, 0.0, v))))


def _bernoulli(z: Outputs, targets: Any) -> Scalar:
    def terms(s, y):
        y = jnp.asarray(y, s.dtype)
        both = jnp.stack([jnp.log1p(-y) + log_softplus(s), jnp.log(y) + log_softplus(-s)])
        return logsumexp(both)

    return logsumexp(jnp.stack(jax.tree.leaves(jax.tree.map(terms, split(z)[0], targets))))


def _categorical(z: Outputs, targets: Any) -> Scalar:
    (z,) = jax.tree.leaves(split(z)[0])
    classes = z.shape[-1]
    y = jnp.asarray(targets)
    y = (
        jax.nn.one_hot(y, classes, dtype=z.dtype)
        if jnp.issubdtype(y.dtype, jnp.integer)
        else y.astype(z.dtype)
    )
    others = jnp.where(
        jnp.eye(classes, dtype=bool),
        -jnp.inf,
        jnp.broadcast_to(z[..., None, :], (*z.shape, classes)),
    )
    return logsumexp(jnp.log(y) + log_softplus(logsumexp(others, axis=-1) - z))


def closed_form(problem: Composite) -> Callable[[Outputs, Any], Scalar] | None:
    """The logarithm of the loss of one sample, for the likelihoods that have it in closed form."""
    if problem.loss is not None:
        return None
    return {Bernoulli: _bernoulli, Categorical: _categorical}.get(type(problem.metric))


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
            f"log_loss must return log L or one logarithm per sample, shape ({count},), got shape {values.shape}."
        )
    weights = problem.measure.weights(values.shape[0], values.dtype)
    return logsumexp(jnp.where(weights > 0, values, 0.0), b=weights)
