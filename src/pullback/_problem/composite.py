r"""`Composite`: the problem \(J(\theta) = L(f(\theta))\), a model, a loss, a geometry of the
outputs and a measure on the samples.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._base.tree import refuse_complex, split
from .._base.types import OutputCovector, Outputs, Params, Scalar
from ..metric._base import AbstractLikelihood, AbstractMetric
from ..metric._euclidean import Euclidean
from .measure import AbstractMeasure, Mean


class Batch(NamedTuple):
    """Inputs and targets; both `None` for a model without data."""

    inputs: Any
    targets: Any


class Composite(eqx.Module):
    """A composite optimisation problem.

    Samples are independent given the parameters, `outputs[i]` depends on `inputs[i]` only; a model
    that mixes samples is declared with `coupled=True`.
    """

    model: Callable
    loss: Callable | None
    metric: AbstractMetric
    measure: AbstractMeasure
    coupled: bool = eqx.field(static=True)

    def __init__(
        self,
        model: Callable,
        loss: Callable | None = None,
        metric: AbstractMetric | None = None,
        measure: AbstractMeasure | None = None,
        coupled: bool = False,
    ):
        """Put a problem together.

        **Arguments:**

        - `model`: `model(params, inputs) -> outputs` with a leading sample axis on every leaf of
            the outputs; without data `model(params) -> outputs`, one point of the output space.
        - `loss`: `loss(outputs, targets)` (without targets `loss(outputs)`), one number per sample
            or a scalar. Left out, it is the negative log-likelihood of the metric, which stays
            exact when the model saturates.
        - `metric`: the geometry of the outputs; `Euclidean()` if left out.
        - `measure`: how samples are averaged; `Mean()` if left out.
        - `coupled`: whether the outputs of one sample depend on the other samples.
        """
        metric = Euclidean() if metric is None else metric
        measure = Mean() if measure is None else measure
        if not callable(model):
            raise ValueError(
                f"model must be callable, model(params, inputs), got {type(model).__name__}."
            )
        if not isinstance(metric, AbstractMetric):
            raise ValueError(
                f"metric must be one of pullback.metric, e.g. metric=pullback.metric.Euclidean(), got {metric!r}."
            )
        if not isinstance(measure, AbstractMeasure):
            raise ValueError(f"measure must be Mean(), Sum() or Weights(w), got {measure!r}.")
        if loss is None and not isinstance(metric, AbstractLikelihood):
            raise ValueError(
                f"{type(metric).__name__} is not a likelihood, so the loss cannot be left out: Composite(model, loss=lambda z, y: ..., "
                f"metric={type(metric).__name__}(...))."
            )
        if loss is not None and not callable(loss):
            raise ValueError(
                f"loss must be callable, loss(outputs, targets), got {type(loss).__name__}."
            )
        self.model, self.loss, self.metric, self.measure, self.coupled = (
            model,
            loss,
            metric,
            measure,
            coupled,
        )

    def outputs(self, params: Params, inputs: PyTree) -> Outputs:
        """The outputs of the model.

        **Arguments:**

        - `params`: the parameters.
        - `inputs`: the inputs of the batch, `None` for a model without data.
        """
        return self.model(params) if inputs is None else self.model(params, inputs)

    def one(self, params: Params, inputs: PyTree) -> Outputs:
        """The outputs of one sample, as a batch of one.

        **Arguments:**

        - `params`: the parameters.
        - `inputs`: the inputs of one sample, without sample axis.
        """
        batch = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, inputs)
        return jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, self.model(params, batch))

    def value_and_differential(
        self, outputs: Outputs, batch: Batch
    ) -> tuple[Scalar, OutputCovector]:
        """L and c = ∂L/∂z at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """
        moving, carried = split(outputs)
        return jax.value_and_grad(lambda z: self.value(eqx.combine(z, carried), batch))(moving)

    def value(self, outputs: Outputs, batch: Batch) -> Scalar:
        """L at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """
        if self.loss is None:
            assert isinstance(self.metric, AbstractLikelihood)
            if batch.inputs is None:
                raise ValueError(
                    "loss was left out, but a model without data has no targets: Composite(model, loss=lambda z: ...)."
                )
            if batch.targets is None:
                raise ValueError(
                    "loss was left out, so the batch must have targets: batch=(inputs, targets)."
                )
            return self.measure.total(
                jax.vmap(self.metric.negative_log_likelihood)(outputs, batch.targets)
            )
        values = self.loss(outputs) if batch.targets is None else self.loss(outputs, batch.targets)
        values = jnp.asarray(values)
        if values.ndim == 0:
            return values
        count = None if batch.inputs is None else sample_count(outputs)
        if values.shape != (count,):
            wanted = (
                "a scalar"
                if count is None
                else f"a scalar or one number per sample, shape ({count},)"
            )
            raise ValueError(
                f"loss must return {wanted}, got shape {values.shape}. Sum over the other axes inside the loss."
            )
        return self.measure.total(values)


def as_batch(batch: Any) -> Batch:
    """A `Batch` from what the user gives: `None`, `(inputs,)` or `(inputs, targets)`."""
    if isinstance(batch, Batch):
        return batch
    if batch is None:
        return Batch(None, None)
    if not isinstance(batch, tuple | list) or len(batch) not in (1, 2):
        raise ValueError(
            f"batch must be (inputs, targets), (inputs,) or None, got {type(batch).__name__}"
            + (f" of length {len(batch)}." if isinstance(batch, tuple | list) else ".")
        )
    return Batch(batch[0], batch[1] if len(batch) == 2 else None)


def check_params(params: Params) -> None:
    """Refuse parameters that cannot be differentiated."""
    refuse_complex(params, "params")
    if not jax.tree.leaves(split(params)[0]):
        kinds = sorted(
            {str(getattr(x, "dtype", type(x).__name__)) for x in jax.tree.leaves(params)}
        )
        raise ValueError(
            f"params has no floating array among its leaves ({', '.join(kinds) or 'none at all'}); integers and Python numbers are "
            "carried as constants. Convert what should move: jnp.asarray(x, float)."
        )


def check_batch(problem: Composite, params: Params, batch: Batch) -> None:
    """Refuse a batch whose shapes do not fit the model, before anything is traced in earnest."""
    refuse_complex(batch.inputs, "batch inputs")
    refuse_complex(batch.targets, "batch targets")
    count = _count(batch)
    outputs = eqx.filter_eval_shape(problem.outputs, params, batch.inputs)
    moving = [x for x in jax.tree.leaves(outputs) if isinstance(x, jax.ShapeDtypeStruct)]
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in moving):
        raise ValueError(
            "the outputs of the model are complex: return real and imaginary parts, e.g. jnp.stack([z.real, z.imag], -1)."
        )
    if not any(jnp.issubdtype(x.dtype, jnp.floating) for x in moving):
        raise ValueError("the model returns no floating array: nothing to differentiate.")
    if count is None:
        return
    bad = [x.shape for x in moving if x.ndim == 0 or x.shape[0] != count]
    if bad:
        raise ValueError(
            f"the leading axis of every output must be the sample axis, {count} samples, got output shapes {bad}. "
            "A model of one sample is batched by jax.vmap: model=lambda params, x: jax.vmap(f, (None, 0))(params, x)."
        )
    problem.measure.weights(count, jnp.result_type(float))


def _count(batch: Batch) -> int | None:
    """The number of samples of a batch, `None` without data."""
    if batch.inputs is None:
        if batch.targets is not None:
            raise ValueError(
                "targets without inputs: batch=(inputs, targets), or close over the targets in the loss."
            )
        return None
    counts = [
        x.shape[0] if x.ndim else None for x in jax.tree.leaves(batch.inputs) if eqx.is_array(x)
    ]
    if not counts or counts[0] is None or any(count != counts[0] for count in counts):
        raise ValueError(
            f"the inputs must be arrays with one common leading sample axis, got leading axes {counts}."
        )
    count = int(counts[0])
    if count == 0:
        raise ValueError("the batch is empty (0 samples).")
    for leaf in jax.tree.leaves(batch.targets):
        if eqx.is_array(leaf) and (leaf.ndim == 0 or leaf.shape[0] != count):
            raise ValueError(
                f"targets have shape {leaf.shape}, but the inputs have {count} samples."
            )
    return count


def sample_count(outputs: Outputs) -> int:
    """The number of samples in outputs with a sample axis."""
    return jax.tree.leaves(split(outputs)[0])[0].shape[0]


def present(batch: Batch, weights: Float[Array, " N"]) -> Batch:
    """The batch with every absent sample replaced by the first present one, so that what it
    contains cannot reach the result.
    """
    index = jnp.where(weights > 0, jnp.arange(weights.shape[0]), jnp.argmax(weights > 0))
    return jax.tree.map(lambda x: jnp.take(x, index, axis=0) if eqx.is_array(x) else x, batch)


def presented(problem: Composite, batch: Batch) -> Batch:
    """The batch as `present` makes it, for the weights of a problem; as it is without data or if
    samples are coupled.
    """
    if batch.inputs is None or problem.coupled or problem.measure.positive:
        return batch
    count = next(x.shape[0] for x in jax.tree.leaves(batch.inputs) if eqx.is_array(x))
    return present(batch, problem.measure.weights(count, jnp.result_type(float)))
