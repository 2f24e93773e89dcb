r"""What every problem is, of one term or of several, and what it is on a batch.

\[ \theta \mapsto z = f(\theta) \mapsto L(z) , \]

with a geometry of the outputs. Engines use these two interfaces, and what is true of each term is
read from `terms`.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._base.axis import Axis, total
from .._base.stateful import Stateful
from .._base.tree import split
from .._base.types import OutputCovector, Outputs, Params, Scalar


class AbstractObjective(eqx.Module):
    r"""A problem on one batch: \(\theta \mapsto f(\theta)\), \(L(f(\theta))\), and distances."""

    problem: eqx.AbstractVar["AbstractProblem"]
    batch: eqx.AbstractVar[Any]
    terms: eqx.AbstractVar[tuple[Any, ...]]
    """The terms, each an `Objective`."""

    @property
    @abc.abstractmethod
    def weights(self) -> tuple[Scalar | None, ...]:
        """The weight of each term; `None` for a problem of one term, which has none."""

    @abc.abstractmethod
    def parts(self, outputs: PyTree) -> tuple[Any, ...]:
        """Return the outputs of each term, or whatever has the form of the outputs."""

    @abc.abstractmethod
    def pack(self, parts: tuple[Any, ...]) -> Any:
        """Return what `parts` has taken apart."""

    @abc.abstractmethod
    def with_terms(self, terms: tuple[Any, ...]) -> "AbstractObjective":
        """Return the objective with each term replaced."""

    @property
    @abc.abstractmethod
    def labels(self) -> tuple[str, ...]:
        """What to call each term in messages; empty for a problem of one term."""

    @property
    def axis(self) -> Axis | None:
        """The devices over which the samples are spread; `None` if all are here."""
        return self.problem.axis

    @property
    def count(self) -> int:
        """N, the number of samples of all terms; a model without data counts as one."""
        return sum(term.count for term in self.terms)

    @property
    def has_data(self) -> bool:
        """Whether a model has inputs."""
        return any(term.has_data for term in self.terms)

    @property
    def has_loss(self) -> bool:
        """Whether there is a loss: a function, or a likelihood and targets."""
        return all(term.has_loss for term in self.terms)

    @property
    def by_sample(self) -> bool:
        """Whether the outputs of a sample depend on that sample only."""
        return all(term.by_sample for term in self.terms)

    @property
    def has_divergence(self) -> bool:
        """Whether `divergence` is defined: the metrics have one, sample by sample."""
        return all(term.has_divergence for term in self.terms)

    @property
    def without_divergence(self) -> str:
        """The names of the metrics without a divergence of single samples, for messages."""
        lacking = [term.problem.metric for term in self.terms if not term.has_divergence]
        return ", ".join(dict.fromkeys(type(metric).__name__ for metric in lacking))

    def outputs(self, params: Params) -> Outputs:
        """Return the outputs of the model on the batch."""
        return self.outputs_and_state(params)[0]

    def outputs_and_state(self, params: Params) -> tuple[Outputs, PyTree]:
        """Return the outputs of the model on the batch, and its new state."""
        return self.problem.outputs_and_state(params, self.batch.inputs)

    def value(self, params: Params) -> Scalar:
        """Return the loss on the batch."""
        return self.problem.value(self.outputs(params), self.batch)

    def differential(self, params: Params) -> tuple[Scalar, PyTree]:
        """Return the loss and its gradient with respect to the differentiable leaves."""
        moving, carried = split(params)
        if self.axis is None:
            return jax.value_and_grad(lambda p: self.value(eqx.combine(p, carried)))(moving)
        outputs = lambda p: split(self.outputs(eqx.combine(p, carried)))
        here, pull, rest = jax.vjp(outputs, moving, has_aux=True)
        value, c = self.problem.value_and_differential(eqx.combine(here, rest), self.batch)
        return value, total(pull(c)[0], self.axis)

    @abc.abstractmethod
    def divergence(self, moved: Outputs, outputs: Outputs) -> Scalar:
        """Return the divergence of outputs from others, averaged as the metric is."""


class AbstractProblem(eqx.Module):
    """A `Composite`, or several of them that share parameters, `Terms`."""

    stateful: eqx.AbstractVar[bool]
    terms: eqx.AbstractVar[tuple[Any, ...]]
    """The terms, each a `Composite`."""

    @property
    def axis(self) -> Axis | None:
        """The devices over which the samples are spread; `None` if all are here."""
        return self.terms[0].axis

    @property
    def declared(self) -> Any:
        """The axes over which the samples are spread, as declared; `None` if they are not."""
        return next((term.over for term in self.terms if term.over is not None), None)

    @abc.abstractmethod
    def as_batch(self, batch: Any) -> Any:
        """Return a batch in the form that the problem is evaluated on.

        **Arguments:**

        - `batch`: as for `natural_gradient`.
        """

    @abc.abstractmethod
    def at(self, batch: Any) -> AbstractObjective:
        """Return the problem on one batch, with absent samples replaced.

        **Arguments:**

        - `batch`: as for `natural_gradient`.
        """

    @abc.abstractmethod
    def outputs_and_state(self, params: Params, inputs: PyTree) -> tuple[Outputs, PyTree]:
        """Return the outputs of the model and its new state, `None` for a model without state.

        **Arguments:**

        - `params`: the parameters; with state, a `Stateful`.
        - `inputs`: the inputs of the batch, `None` for a model without data.
        """

    def outputs(self, params: Params, inputs: PyTree) -> Outputs:
        """Return the outputs of the model.

        **Arguments:**

        - `params`: the parameters.
        - `inputs`: the inputs of the batch, `None` for a model without data.
        """
        return self.outputs_and_state(params, inputs)[0]

    @abc.abstractmethod
    def value(self, outputs: Outputs, batch: Any) -> Scalar:
        """Return L at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """

    @abc.abstractmethod
    def value_and_differential(self, outputs: Outputs, batch: Any) -> tuple[Scalar, OutputCovector]:
        """Return L and c = ∂L/∂z at the outputs.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """

    @abc.abstractmethod
    def check_loss(self) -> None:
        """Raise a `ValueError` if a loss was left out and the metric is not a likelihood."""

    @abc.abstractmethod
    def mapped(self, *functions: Callable[[Any], Any]) -> Any:
        """Return the problem with each term replaced.

        **Arguments:**

        - `*functions`: from a `Composite` to a `Composite`; one for all terms, or one for each.
        """

    @property
    def labels(self) -> tuple[str, ...]:
        """What to call each term; empty for a problem of one term."""
        return ()

    @property
    def unweighted(self) -> Any:
        """The problem with the weight 1 for each term that is present."""
        return self

    def losses(self, outputs: Outputs, batch: Any) -> Any:
        """Return the loss of each term, by name or by place; `None` for a problem of one term.

        **Arguments:**

        - `outputs`: the outputs of the batch.
        - `batch`: for its targets.
        """
        return None

    @property
    def reported_weights(self) -> Any:
        """The weight of each term, by name or by place; `None` for a problem of one term."""
        return None


def without_loss(problem: AbstractProblem) -> Any:
    """Return a problem whose loss is zero, for what asks for its geometry alone."""
    zero = lambda p: eqx.tree_at(lambda p: p.loss, p, _zero, is_leaf=lambda x: x is None)
    return problem.mapped(zero)


def _zero(*_: Any) -> Scalar:
    return jnp.zeros(())


def check_stateful(problem: AbstractProblem, params: Params) -> None:
    """Raise a `ValueError` if a model with state is given none, or one without is given some."""
    if problem.stateful and not isinstance(params, Stateful):
        raise ValueError(
            "Composite(stateful=True): params must be parameters and state, e.g. "
            f"pullback.Stateful(params, state), got {type(params).__name__}."
        )
    if not problem.stateful and isinstance(params, Stateful):
        raise ValueError(
            "params is a Stateful, but the problem has no state. Declare it, "
            "Composite(..., stateful=True) with model(params, state, inputs) -> outputs, state; or "
            "pass the parameters alone."
        )
