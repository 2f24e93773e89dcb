r"""`Composite`: the problem \(J(\theta) = L(f(\theta))\).

A model, a loss, a geometry of the outputs and a measure on the samples.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.axis import Axis, gathered, place, total
from .._base.checks import takes
from .._base.functions import canonical, name_of
from .._base.pairs import real_outputs, real_pairs
from .._base.tree import split, structure
from .._base.types import OutputCovector, Outputs, Params, Scalar
from .._compat.devices import Layout
from ..metric._base import AbstractLikelihood, AbstractMetric
from ..metric._euclidean import Euclidean
from .batch import Batch, as_batch, sample_count
from .broadcast import check_broadcast
from .measure import AbstractMeasure, Mean
from .problem import AbstractObjective, AbstractProblem, check_stateful
from .spread import back, everywhere, is_joint, present, unpadded, whole

DECLARED = ("coupled", "stateful", "holomorphic")
"""What a user may declare of a model."""


class Composite(AbstractProblem):
    """A composite optimisation problem: `Composite(model, loss, metric)`.

    Samples are independent given the parameters: `outputs[i]` depends on `inputs[i]` only. Declare
    a model that mixes samples with `coupled=True`, and one with state with `stateful=True`.
    """

    model: Callable
    loss: Callable | None
    metric: AbstractMetric
    measure: AbstractMeasure
    coupled: bool = eqx.field(static=True)
    stateful: bool = eqx.field(static=True)
    holomorphic: bool = eqx.field(static=True)
    over: str | tuple[str, ...] | Layout | None = eqx.field(static=True)

    def __init__(
        self,
        model: Callable,
        loss: Callable | None = None,
        metric: AbstractMetric | None = None,
        measure: AbstractMeasure | None = None,
        coupled: bool = False,
        stateful: bool = False,
        holomorphic: bool = False,
        over: str | tuple[str, ...] | Layout | None = None,
    ):
        """Put a problem together.

        **Arguments:**

        - `model`: `model(params, inputs) -> outputs` with a leading sample axis on every leaf of
            the outputs; without data `model(params) -> outputs`, one point of the output space.
        - `loss`: `loss(outputs, targets)` (without targets `loss(outputs)`), one number per sample
            or a scalar. Defaults to the negative log-likelihood of the metric, which stays exact
            when the model saturates; a metric that is not a likelihood has none. Geometry alone
            (`pullback`, `ntk`, `plan`, `examine`) needs no loss.
        - `metric`: the geometry of the outputs; defaults to `Euclidean()`.
        - `measure`: how samples are averaged; defaults to `Mean()`.
        - `coupled`: whether the outputs of one sample depend on the other samples, e.g. through the
            means and variances of batch normalisation.
        - `stateful`: whether the model has a state, `model(params, state, inputs) -> outputs,
            state` (without data `model(params, state)`). Then a `Stateful(params, state)` is passed
            wherever parameters are.
        - `holomorphic`: whether the outputs, all complex, are holomorphic functions of the
            parameters, all complex: rows and kernel then take half the work. A model that is not
            raises.
        - `over`: the axis of a mesh over which the samples are spread, where the arrays do not
            tell: inside of `jax.shard_map`, or of a `jax.jit` with the mesh of `jax.set_mesh`.
            `()` for a problem that each device has for itself.
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
        if loss is not None and not callable(loss):
            raise ValueError(
                f"loss must be callable, loss(outputs, targets), got {type(loss).__name__}."
            )
        # A lambda that is written anew is the one before, and compiles nothing.
        self.model = canonical(model)
        self.loss = canonical(loss)
        self.metric = metric
        self.measure = measure
        self.coupled = coupled
        self.stateful = stateful
        self.holomorphic = holomorphic
        self.over = (over,) if isinstance(over, str) else over

    def __repr__(self) -> str:
        own = "likelihood" if isinstance(self.metric, AbstractLikelihood) else "no loss"
        parts = [name_of(self.model), own if self.loss is None else name_of(self.loss)]
        declared = [f", {name}=True" for name in DECLARED if getattr(self, name)]
        rest = f"{self.metric!r}, {self.measure!r}{''.join(declared)}"
        return f"Composite({', '.join(parts)}, {rest})"

    @property
    def terms(self) -> "tuple[Composite, ...]":
        """The terms: this one."""
        return (self,)

    @property
    def axis(self) -> Axis | None:
        return self.measure.axis

    def as_batch(self, batch: Any) -> Batch:
        """Return a batch of inputs and targets.

        **Arguments:**

        - `batch`: `(inputs, targets)`, `(inputs,)`; for a model without data `(None, targets)` or
            `None`.
        """
        batch = as_batch(batch)
        if not isinstance(batch, Batch):
            raise ValueError("the batches of several terms were given to a problem of one term.")
        return batch

    def outputs_and_state(self, params: Params, inputs: PyTree) -> tuple[Outputs, PyTree]:
        """Return the outputs of the model and its new state, `None` for a model without state.

        **Arguments:**

        - `params`: the parameters; with state, a `Stateful`.
        - `inputs`: the inputs of the batch, `None` for a model without data.
        """
        check_stateful(self, params)
        data = () if inputs is None else (inputs,)
        self._check_model(params, *data)
        if not self.stateful:
            return self.model(params, *data), None
        # A copy of the state: Equinox marks a `State` as old once it has been used.
        made = self.model(params.params, jax.tree.map(lambda x: x, params.state), *data)
        if not isinstance(made, tuple) or len(made) != 2:
            raise ValueError(
                "Composite(stateful=True): the model must return a pair, its outputs and its new "
                "state, e.g. return outputs, state, got "
                + ("one array" if eqx.is_array(made) else type(made).__name__)
                + (f" of length {len(made)}." if isinstance(made, tuple) else ".")
            )
        return made

    def _check_model(self, params: Params, *data: Any) -> None:
        """Raise a `ValueError` if the model does not take the arguments that a batch gives it."""
        given = (params.params, params.state) if self.stateful else (params,)
        if takes(self.model, *given, *data):
            return
        names = "params, state" if self.stateful else "params"
        call, other = (f"model({names}, inputs)", f"model({names})")
        raise ValueError(
            f"the model must take {call}, because the batch has inputs. Without inputs, "
            f"batch=(None, targets) or None, it is called as {other}."
            if data
            else f"the model must take {other}, because the batch has no inputs. With "
            f"batch=(inputs, targets) or (inputs,) it is called as {call}."
        )

    def one(self, params: Params, inputs: PyTree) -> Outputs:
        """Return the outputs of one sample.

        **Arguments:**

        - `params`: the parameters.
        - `inputs`: the inputs of one sample, without sample axis.
        """
        batch = jax.tree.map(lambda x: x[None] if eqx.is_array(x) else x, inputs)
        first = lambda x: x[0] if eqx.is_array(x) else x
        return jax.tree.map(first, self.outputs(params, batch))

    def value(self, outputs: Outputs, batch: Batch) -> Scalar:
        """Return L at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """
        if is_joint(self, outputs, batch):
            return whole(self).value(*everywhere(self, outputs, batch))
        return total(self._share(outputs, batch), self.axis)

    def _share(self, outputs: Outputs, batch: Batch) -> Scalar:
        """Return L; of samples that are spread over devices, the part that is due to this one."""
        if self.loss is None:
            return self._likelihood(outputs, batch)
        given = (outputs,) if batch.targets is None else (outputs, batch.targets)
        if not takes(self.loss, *given):
            raise ValueError(
                "the loss must take loss(outputs), because the batch has no targets. With "
                "batch=(inputs, targets) it is called as loss(outputs, targets)."
                if batch.targets is None
                else "the loss must take loss(outputs, targets), because the batch has targets. "
                "Without targets, batch=(inputs,), it is called as loss(outputs)."
            )
        count = sample_count(batch)
        check_broadcast(self.loss, outputs, batch.targets, count)
        values = jnp.asarray(self.loss(*given))
        if jnp.issubdtype(values.dtype, jnp.complexfloating):
            raise ValueError(
                f"loss must return real numbers, got {values.dtype}: e.g. jnp.abs(z - y) ** 2, or "
                "the real part, values.real."
            )
        if values.ndim == 0:
            return values
        if values.shape != (count,):
            per_sample = f"a scalar or one number per sample, shape ({count},)"
            raise ValueError(
                f"loss must return {'a scalar' if count is None else per_sample}, got shape "
                f"{values.shape}. Sum over the other axes inside the loss."
            )
        return self._integral(values)

    @property
    def _integral(self) -> Callable[[Array], Scalar]:
        """The integral of one number per sample, over the samples that are here."""
        return self.measure.total if self.axis is None else self.measure.share

    def _likelihood(self, outputs: Outputs, batch: Batch) -> Scalar:
        """Return the negative log-likelihood of the metric, averaged."""
        metric = self.likelihood
        if batch.targets is None:
            wanted, without = "batch=(inputs, targets)", ""
            if batch.inputs is None:
                wanted = "batch=(None, targets), or Composite(model, loss=lambda z: ...)"
                without = " of a model without data"
            raise ValueError(
                f"loss was left out, so the batch{without} must have targets: {wanted}."
            )
        outputs, targets = real_outputs(outputs, batch.targets)
        if batch.inputs is None:
            return metric.negative_log_likelihood(outputs, targets)
        losses = jax.vmap(metric.negative_log_likelihood)(outputs, targets)
        return self._integral(losses)

    @property
    def likelihood(self) -> AbstractLikelihood:
        """The metric as the likelihood whose negative logarithm is the loss.

        Raises a `ValueError` if the loss was left out and the metric is not a likelihood.
        """
        if not isinstance(self.metric, AbstractLikelihood):
            name = type(self.metric).__name__
            raise ValueError(
                f"{name} is not a likelihood, so the loss cannot be left out here: "
                f"Composite(model, loss=lambda z, y: ..., metric={name}(...))."
            )
        return self.metric

    def value_and_differential(
        self, outputs: Outputs, batch: Batch
    ) -> tuple[Scalar, OutputCovector]:
        """Return L and c = ∂L/∂z at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """
        if is_joint(self, outputs, batch):
            value, c = whole(self).value_and_differential(*everywhere(self, outputs, batch))
            return value, back(self, c, batch)
        moving, carried = split(outputs)
        share = lambda z: self._share(eqx.combine(z, carried), batch)
        value, c = jax.value_and_grad(share)(moving)
        return total(value, self.axis), c

    def at(self, batch: Any) -> "Objective":
        """Return the problem on one batch, with absent samples replaced.

        **Arguments:**

        - `batch`: `(inputs, targets)`, `(inputs,)`; for a model without data `(None, targets)` or
            `None`.
        """
        problem, batch = unpadded(self, self.as_batch(batch))
        count = sample_count(batch)
        if count is not None and not self.coupled and not problem.measure.positive:
            batch = present(problem.measure, batch, count)
        return Objective(problem, batch)

    def check_loss(self) -> None:
        if self.loss is None:
            _ = self.likelihood  # raises where there is none

    def mapped(self, *functions: Callable[["Composite"], "Composite"]) -> "Composite":
        (function,) = functions
        return function(self)


class Objective(AbstractObjective):
    r"""A problem on one batch: \(\theta \mapsto f(\theta)\), \(L(f(\theta))\), and distances."""

    problem: Composite
    batch: Batch

    def __repr__(self) -> str:
        samples = f"{self.count} samples" if self.has_data else "no data"
        return f"Objective({self.problem!r}, {samples})"

    @property
    def terms(self) -> "tuple[Objective, ...]":
        """The terms: this one."""
        return (self,)

    @property
    def weights(self) -> tuple[None]:
        return (None,)

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    def parts(self, outputs: PyTree) -> tuple[Any, ...]:
        return (outputs,)

    def pack(self, parts: tuple[Any, ...]) -> Any:
        return parts[0]

    def with_terms(self, terms: tuple[Any, ...]) -> "Objective":
        return terms[0]

    @property
    def count(self) -> int:
        """N, the number of samples; 1 for a model without data."""
        return sample_count(self.batch) or 1

    @property
    def indices(self) -> Array:
        """The positions of the samples in the batch, which may be spread over devices."""
        here = jnp.arange(self.count)
        return here if self.axis is None else here + place(self.axis) * self.count

    @property
    def has_data(self) -> bool:
        """Whether the model has inputs."""
        return self.batch.inputs is not None

    @property
    def has_loss(self) -> bool:
        """Whether there is a loss: a function, or a likelihood and targets."""
        problem = self.problem
        own = isinstance(problem.metric, AbstractLikelihood) and self.batch.targets is not None
        return problem.loss is not None or own

    @property
    def by_sample(self) -> bool:
        """Whether the outputs of a sample depend on that sample only."""
        return self.has_data and not self.problem.coupled

    @property
    def observed(self) -> AbstractMetric:
        """The metric of a model without data, which may have targets."""
        return self.problem.metric.observe(self.batch.targets, jnp.asarray(0))

    @property
    def has_divergence(self) -> bool:
        """Whether `divergence` is defined: the metric has one."""
        return self.problem.metric.has_divergence

    def divergence(self, moved: Outputs, outputs: Outputs) -> Scalar:
        """Return the divergence of outputs from others, averaged as the metric is."""
        metric = self.problem.metric
        moved = real_pairs(moved)
        outputs, targets = real_outputs(outputs, self.batch.targets)
        if not self.has_data:
            return jnp.asarray(metric.observe(targets, jnp.asarray(0)).divergence(moved, outputs))
        if metric.couples_samples:
            weights = self.problem.measure.weights(self.count, structure(outputs).dtype)
            weights, moved, outputs = gathered((weights, moved, outputs), self.axis)
            return jnp.asarray(metric.weigh(weights).divergence(moved, outputs))
        arrays, rest = eqx.partition((moved, outputs, targets), eqx.is_array)

        def one(sample, index):
            u, z, y = eqx.combine(sample, rest)
            return jnp.asarray(metric.observe(y, index).divergence(u, z))

        return self.problem.measure.total(jax.vmap(one)(arrays, self.indices))
