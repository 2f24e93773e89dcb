r"""`Composite`: the problem \(J(\theta) = L(f(\theta))\).

A model, a loss, a geometry of the outputs and a measure on the samples.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._base.tree import split
from .._base.types import OutputCovector, Outputs, Params, Scalar
from ..metric._base import AbstractLikelihood, AbstractMetric
from ..metric._euclidean import Euclidean
from .batch import Batch, as_batch, replace_absent, sample_count
from .measure import AbstractMeasure, Mean


class Composite(eqx.Module):
    """A composite optimisation problem: `Composite(model, loss, metric)`.

    Samples are independent given the parameters: `outputs[i]` depends on `inputs[i]` only. Declare
    a model that mixes samples with `coupled=True`.
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
            or a scalar. Defaults to the negative log-likelihood of the metric, which stays exact
            when the model saturates.
        - `metric`: the geometry of the outputs; defaults to `Euclidean()`.
        - `measure`: how samples are averaged; defaults to `Mean()`.
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
                "metric must be one of pullback.metric, e.g. metric=pullback.metric.Euclidean(), "
                f"got {metric!r}."
            )
        if not isinstance(measure, AbstractMeasure):
            raise ValueError(f"measure must be Mean(), Sum() or Weights(w), got {measure!r}.")
        if loss is None and not isinstance(metric, AbstractLikelihood):
            name = type(metric).__name__
            raise ValueError(
                f"{name} is not a likelihood, so the loss cannot be left out: "
                f"Composite(model, loss=lambda z, y: ..., metric={name}(...))."
            )
        if loss is not None and not callable(loss):
            raise ValueError(
                f"loss must be callable, loss(outputs, targets), got {type(loss).__name__}."
            )
        self.model = model
        self.loss = loss
        self.metric = metric
        self.measure = measure
        self.coupled = coupled

    def __repr__(self) -> str:
        parts = [_name(self.model), "likelihood" if self.loss is None else _name(self.loss)]
        coupled = ", coupled=True" if self.coupled else ""
        return f"Composite({', '.join(parts)}, {self.metric!r}, {self.measure!r}{coupled})"

    def outputs(self, params: Params, inputs: PyTree) -> Outputs:
        """Return the outputs of the model.

        **Arguments:**

        - `params`: the parameters.
        - `inputs`: the inputs of the batch, `None` for a model without data.
        """
        return self.model(params) if inputs is None else self.model(params, inputs)

    def one(self, params: Params, inputs: PyTree) -> Outputs:
        """Return the outputs of one sample.

        **Arguments:**

        - `params`: the parameters.
        - `inputs`: the inputs of one sample, without sample axis.
        """
        batch = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, inputs)
        first = lambda x: x[0] if eqx.is_array(x) else x
        return jax.tree.map(first, self.model(params, batch))

    def value(self, outputs: Outputs, batch: Batch) -> Scalar:
        """Return L at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """
        if self.loss is None:
            assert isinstance(self.metric, AbstractLikelihood)
            if batch.inputs is None:
                raise ValueError(
                    "loss was left out, but a model without data has no targets: "
                    "Composite(model, loss=lambda z: ...)."
                )
            if batch.targets is None:
                raise ValueError(
                    "loss was left out, so the batch must have targets: batch=(inputs, targets)."
                )
            losses = jax.vmap(self.metric.negative_log_likelihood)(outputs, batch.targets)
            return self.measure.total(losses)
        values = self.loss(outputs) if batch.targets is None else self.loss(outputs, batch.targets)
        values = jnp.asarray(values)
        if values.ndim == 0:
            return values
        count = sample_count(batch)
        if values.shape != (count,):
            per_sample = f"a scalar or one number per sample, shape ({count},)"
            raise ValueError(
                f"loss must return {'a scalar' if count is None else per_sample}, got shape "
                f"{values.shape}. Sum over the other axes inside the loss."
            )
        return self.measure.total(values)

    def value_and_differential(
        self, outputs: Outputs, batch: Batch
    ) -> tuple[Scalar, OutputCovector]:
        """Return L and c = ∂L/∂z at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """
        moving, carried = split(outputs)
        return jax.value_and_grad(lambda z: self.value(eqx.combine(z, carried), batch))(moving)

    def at(self, batch: Any) -> "Objective":
        """Return the problem on one batch, with absent samples replaced.

        **Arguments:**

        - `batch`: `(inputs, targets)`, `(inputs,)`, or `None` for a model without data.
        """
        batch = as_batch(batch)
        count = sample_count(batch)
        if count is not None and not self.coupled and not self.measure.positive:
            batch = replace_absent(batch, self.measure.weights(count, jnp.result_type(float)))
        return Objective(self, batch)


class Objective(eqx.Module):
    r"""A problem on one batch: \(\theta \mapsto f(\theta)\), \(L(f(\theta))\), and distances."""

    problem: Composite
    batch: Batch

    @property
    def count(self) -> int:
        """N, the number of samples; 1 for a model without data."""
        return sample_count(self.batch) or 1

    @property
    def has_data(self) -> bool:
        """Whether the model has inputs."""
        return self.batch.inputs is not None

    @property
    def by_sample(self) -> bool:
        """Whether the outputs of a sample depend on that sample only."""
        return self.has_data and not self.problem.coupled

    def outputs(self, params: Params) -> Outputs:
        """Return the outputs of the model on the batch."""
        return self.problem.outputs(params, self.batch.inputs)

    def value(self, params: Params) -> Scalar:
        """Return the loss on the batch."""
        return self.problem.value(self.outputs(params), self.batch)

    def differential(self, params: Params) -> tuple[Scalar, PyTree]:
        """Return the loss and its gradient with respect to the differentiable leaves."""
        moving, carried = split(params)
        return jax.value_and_grad(lambda p: self.value(eqx.combine(p, carried)))(moving)

    @property
    def has_divergence(self) -> bool:
        """Whether `divergence` is defined: the metric has one, sample by sample."""
        metric = self.problem.metric
        return metric.has_divergence and not metric.couples_samples

    def divergence(self, moved: Outputs, outputs: Outputs) -> Scalar:
        """Return the divergence of outputs from others, averaged as the metric is."""
        metric = self.problem.metric
        if not self.has_data:
            return jnp.asarray(metric.observe(None, jnp.asarray(0)).divergence(moved, outputs))
        arrays, rest = eqx.partition((moved, outputs, self.batch.targets), eqx.is_array)

        def one(sample, index):
            u, z, y = eqx.combine(sample, rest)
            return jnp.asarray(metric.observe(y, index).divergence(u, z))

        return self.problem.measure.total(jax.vmap(one)(arrays, jnp.arange(self.count)))


def _name(function: Any) -> str:
    """Return what to call a function in a `repr`."""
    name = getattr(function, "__name__", type(function).__name__)
    return "..." if name == "<lambda>" else name
