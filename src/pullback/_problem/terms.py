r"""`Terms`: several problems that share parameters.

\[ L(\theta) = \sum_k \omega_k L_k(f_k(\theta)), \qquad M = \bigoplus_k \omega_k M_k , \]

so that the rows stack, \(A = [\sqrt{\omega_1} A_1; \sqrt{\omega_2} A_2; \dots]\), and so does the
lifted covector. Each term has a model, a loss, a metric, a measure and a number of samples of its
own. The weights are data. A term of weight zero is absent: nothing depends on its outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._base import checks
from .._base.stateful import Stateful
from .._base.tree import common_dtype
from .._base.types import OutputCovector, Outputs, Params, Scalar
from .batch import Batches, as_batches
from .composite import Composite, Objective
from .form import Form, about
from .problem import AbstractObjective, AbstractProblem

EXAMPLE = "Terms(inside=Composite(residual, loss), boundary=Composite(values, loss))"


class Terms(AbstractProblem):
    """A sum of problems that share parameters: `Terms(inside=..., boundary=...)`.

    ```python
    problem = pb.Terms(inside=pb.Composite(residual, loss), boundary=pb.Composite(values, loss))
    ng = pb.natural_gradient(problem, params, {"inside": (x,), "boundary": (xb, yb)})
    ```

    Batches, outputs and weights are dictionaries with the names of the terms, or tuples for terms
    without names. A `Terms` takes the place of a `Composite` everywhere.
    """

    terms: tuple[Composite, ...]
    scales: tuple[Scalar, ...]
    form: Form = eqx.field(static=True)

    def __init__(
        self,
        terms: Sequence[Composite] | Mapping[str, Composite] | None = None,
        weights: Any = None,
        **named: Composite,
    ):
        """Put several problems together.

        **Arguments:**

        - `terms`: a tuple of `Composite`s, or a dictionary of them by name.
        - `weights`: one weight for each term, finite and not negative, in a tuple, or in a
            dictionary for terms with names; defaults to 1 each. They multiply loss and metric of a
            term. They are data: other weights compile nothing (`with_weights`).
        - `**named`: the `Composite`s by name, in place of `terms`.
        """
        if terms is not None and named:
            raise ValueError(
                f"Terms(...): give the terms in a tuple or dictionary, or by name, e.g. {EXAMPLE}."
            )
        given = named if terms is None else terms
        if isinstance(given, Mapping):
            if not all(isinstance(name, str) for name in given):
                wanted = "a dictionary with texts as keys"
                raise checks.error("Terms", "terms", list(given), wanted, EXAMPLE)
            names = tuple(sorted(given))
            found = [given[name] for name in names]
        elif isinstance(given, tuple | list):
            names, found = None, list(given)
        else:
            wanted = "a tuple of composites, or a dictionary of them by name"
            raise checks.error("Terms", "terms", given, wanted, EXAMPLE)
        if not found:
            raise ValueError(f"Terms(): there must be at least one term, e.g. {EXAMPLE}.")
        self.form = Form(names, len(found))
        for label, term in zip(self.form.labels, found, strict=True):
            _check_term(label, term)
        self.terms = tuple(found)
        self.scales = self._scales(weights)

    def __repr__(self) -> str:
        if self.form.names is None:
            return f"Terms({self.terms!r})"
        parts = zip(self.form.names, self.terms, strict=True)
        return f"Terms({', '.join(f'{name}={term!r}' for name, term in parts)})"

    @property
    def stateful(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a model has a state: never."""
        return False

    @property
    def weights(self) -> Any:
        """The weight of each term, by name or by place."""
        return self.form.pack(self.scales)

    @property
    def reported_weights(self) -> Any:
        return self.weights

    def with_weights(self, weights: Any) -> "Terms":
        """Return the same terms with other weights; nothing is compiled anew.

        **Arguments:**

        - `weights`: as for `Terms`.
        """
        return eqx.tree_at(lambda t: t.scales, self, self._scales(weights))

    def reweighed(self, scales: tuple[Scalar, ...]) -> "Terms":
        """Return the same terms with weights that are arrays already, in the order of the terms.

        **Arguments:**

        - `scales`: one scalar array for each term.
        """
        return eqx.tree_at(lambda t: t.scales, self, scales)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.form.labels

    @property
    def unweighted(self) -> "Terms":
        ones = tuple((scale > 0).astype(scale.dtype) for scale in self.scales)
        return eqx.tree_at(lambda t: t.scales, self, ones)

    def _scales(self, weights: Any) -> tuple[Scalar, ...]:
        """Return one array for each weight; raise a `ValueError` if one is no weight."""
        if weights is None:
            weights = self.form.pack([1.0] * self.form.count)
        if eqx.is_array(weights) and weights.ndim == 1 and self.form.names is None:
            weights = tuple(weights)
        found = self.form.unpack(weights, "Terms(weights=...)", "1.0")
        for label, weight in zip(self.form.labels, found, strict=True):
            example = f"Terms(..., weights={self.form.example('1.0')})"
            checks.positive("Terms", f"weights[{label}]", weight, zero=True, example=example)
        return tuple(jnp.asarray(weight, jnp.result_type(float)) for weight in found)

    def as_batch(self, batch: Any) -> Batches:
        """Return the batches of the terms.

        **Arguments:**

        - `batch`: a dictionary of batches by name, or a tuple of batches for terms without names;
            each as for a `Composite`.
        """
        return as_batches(self.form, batch)

    def at(self, batch: Any) -> "TermsObjective":
        batch = self.as_batch(batch)
        terms = []
        for label, term, part in zip(self.form.labels, self.terms, batch.parts, strict=True):
            with about(label):
                terms.append(term.at(part))
        # Of a padded batch the measure is another one.
        return TermsObjective(self, tuple(terms)).with_terms(tuple(terms))

    def outputs_and_state(self, params: Params, inputs: PyTree) -> tuple[Outputs, PyTree]:
        if isinstance(params, Stateful):
            raise ValueError("params is a Stateful, but Terms have no state.")
        given = self.form.unpack(inputs, "the inputs of Terms", "x")
        made = []
        for label, term, data in zip(self.form.labels, self.terms, given, strict=True):
            with about(label):
                made.append(term.outputs(params, data))
        return self.form.pack(made), None

    def value(self, outputs: Outputs, batch: Any) -> Scalar:
        return _sum(self.scales, self._losses(outputs, batch))

    def losses(self, outputs: Outputs, batch: Any) -> Any:
        return self.form.pack(self._losses(outputs, batch))

    def _losses(self, outputs: Outputs, batch: Any) -> list[Scalar]:
        """Return the loss of each term."""
        found = []
        for label, term, z, part in self._each(outputs, batch):
            with about(label):
                found.append(term.value(z, part))
        return found

    def value_and_differential(self, outputs: Outputs, batch: Any) -> tuple[Scalar, OutputCovector]:
        values, slopes = [], []
        for (label, term, z, part), scale in zip(
            self._each(outputs, batch), self.scales, strict=True
        ):
            with about(label):
                value, c = term.value_and_differential(z, part)
            values.append(value)
            slopes.append(scaled(scale, c))
        return _sum(self.scales, values), self.form.pack(slopes)

    def _each(self, outputs: Outputs, batch: Any) -> Iterator[tuple[str, Composite, Any, Any]]:
        parts = self.form.unpack(outputs, "the outputs of Terms", "z")
        return zip(self.form.labels, self.terms, parts, self.as_batch(batch).parts, strict=True)

    def check_loss(self) -> None:
        for label, term in zip(self.form.labels, self.terms, strict=True):
            with about(label):
                term.check_loss()

    def mapped(self, *functions: Callable[[Composite], Composite]) -> "Terms":
        each = functions * self.form.count if len(functions) == 1 else functions
        terms = tuple(f(term) for f, term in zip(each, self.terms, strict=True))
        return eqx.tree_at(lambda t: t.terms, self, terms)


class TermsObjective(AbstractObjective):
    """Several terms on their batches."""

    problem: Terms
    terms: tuple[Objective, ...]

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{label}: {term.count if term.has_data else 'no'} samples"
            for label, term in zip(self.labels, self.terms, strict=True)
        )
        return f"TermsObjective({counts})"

    @property
    def batch(self) -> Batches:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The batches, with absent samples replaced."""
        return Batches(tuple(term.batch for term in self.terms), self.problem.form)

    @property
    def weights(self) -> tuple[Scalar, ...]:
        return self.problem.scales

    @property
    def labels(self) -> tuple[str, ...]:
        return self.problem.form.labels

    def parts(self, outputs: PyTree) -> tuple[Any, ...]:
        return self.problem.form.unpack(outputs, "the outputs of Terms", "z")

    def pack(self, parts: tuple[Any, ...]) -> Any:
        return self.problem.form.pack(parts)

    def with_terms(self, terms: tuple[Objective, ...]) -> "TermsObjective":
        problems = tuple(term.problem for term in terms)
        return TermsObjective(eqx.tree_at(lambda t: t.terms, self.problem, problems), terms)

    def divergence(self, moved: Outputs, outputs: Outputs) -> Scalar:
        pairs = zip(self.terms, self.parts(moved), self.parts(outputs), strict=True)
        return _sum(self.weights, [term.divergence(u, z) for term, u, z in pairs])


def scaled(weight: Scalar, tree: PyTree) -> PyTree:
    """Return ω times a tree of arrays; zero where the term is absent, whatever is there."""

    def one(x):
        w = weight.astype(x.dtype)
        return jnp.where(w == 0, 0.0, w * jnp.where(w == 0, 0.0, x))

    return jax.tree.map(one, tree)


def _sum(weights: Sequence[Scalar], values: Sequence[Scalar]) -> Scalar:
    """Return Σ ω_k x_k over the terms that are present."""
    dtype = common_dtype(*(value.dtype for value in values))
    total = jnp.zeros((), dtype)
    for weight, value in zip(weights, values, strict=True):
        total = total + scaled(weight, value.astype(dtype))
    return total


def _check_term(label: str, term: Any) -> None:
    """Raise a `ValueError` if a term is none."""
    if isinstance(term, Terms):
        raise ValueError(
            f"Terms({label}=Terms(...)): terms are not nested; list the composites of both, and "
            "multiply the weights."
        )
    if not isinstance(term, Composite):
        wanted = "a pullback.Composite(model, loss)"
        raise checks.error("Terms", str(label), term, wanted, EXAMPLE)
    if term.stateful:
        raise ValueError(
            f"Terms({label}=Composite(..., stateful=True)): whose new state would be kept is not "
            "defined, so terms have no state. Use one Composite, or keep the state fixed: "
            "model=lambda params, x: model(params, state, x)[0]."
        )
