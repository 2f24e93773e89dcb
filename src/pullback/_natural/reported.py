r"""The model as it is reported, sample by sample: \(z,\ Jv,\ J^\top c\).

No sum depends on a sample of weight zero: everything is computed with the first present sample in
its place (`Composite.at`). What is reported of it is its own. If its inputs are not finite, its
outputs are NaN, and its part of \(Jv\) and of \(J^\top c\) is zero.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params
from .._problem.batch import AnyBatch, Batch
from .._problem.padding import bare
from .._problem.problem import AbstractObjective, AbstractProblem
from .._rows.rows import linearise_at


class Reported(eqx.Module):
    """A linearisation in which samples of weight zero have their own inputs."""

    linear: Any
    objective: AbstractObjective
    known: tuple[Bool[Array, " N"] | None, ...]
    """Of each term, which samples have their own inputs; `None` for all."""

    @property
    def outputs(self) -> Outputs:
        """z; NaN where the inputs are not finite."""
        return self._where_known(self.linear.outputs, jnp.nan)

    def pushforward(self, v: Flat) -> OutputVector:
        """J v."""
        return self._where_known(self.linear.pushforward(v), 0.0)

    def push(self, tangent: PyTree) -> OutputVector:
        """J v of a tree v."""
        return self._where_known(self.linear.push(tangent), 0.0)

    def pull(self, c: OutputCovector) -> Flat:
        """Jᵀ c."""
        return self.linear.pull(self._where_known(c, 0.0))

    def own(self, outputs: Outputs) -> Outputs:
        """Outputs, or a vector there, as the model returns them: complex where it does."""
        return self.linear.own(outputs)

    def real(self, vector: OutputVector) -> OutputVector:
        """The inverse of `own`."""
        return self.linear.real(vector)

    def _where_known(self, tree: PyTree, other: float) -> PyTree:
        """Return a tree like the outputs, with a number in the place of unknown entries."""
        parts = zip(self.known, self.objective.parts(tree), strict=True)
        return self.objective.pack(tuple(_replaced(known, part, other) for known, part in parts))


def reported(problem: AbstractProblem, params: Params, batch: AnyBatch) -> Reported | None:
    """Return the model linearised at the batch as it was given; `None` if no sample is absent."""
    objective = problem.at(batch)
    both = zip(objective.terms, problem.as_batch(batch).parts, strict=True)
    terms, known = zip(*(_with_own_inputs(term, bare(part)) for term, part in both), strict=True)
    if all(mask is None for mask in known):
        return None
    objective = objective.with_terms(terms)
    return Reported(linearise_at(objective, params)[1], objective, known)


def _with_own_inputs(term: Any, given: Batch) -> tuple[Any, Bool[Array, " N"] | None]:
    """Return a term at its own inputs where they are finite, and where they are."""
    measure = term.problem.measure
    # Padding is cut off again, and a model that mixes samples has them all.
    if measure.whole.positive or not term.by_sample:
        return term, None
    known = measure.weights(term.count, jnp.result_type(float)) > 0
    finite = [
        jnp.all(jnp.isfinite(x.reshape(term.count, -1)), axis=1)
        for x in jax.tree.leaves(given.inputs)
        if eqx.is_inexact_array(x)
    ]
    if finite:
        known = known | jnp.all(jnp.stack(finite), axis=0)
    else:
        known = jnp.ones_like(known)
    take = lambda x, y: jnp.where(_like(known, x), x, y) if eqx.is_array(x) else x
    inputs = jax.tree.map(take, given.inputs, term.batch.inputs)
    return eqx.tree_at(lambda t: t.batch, term, Batch(inputs, term.batch.targets)), known


def _replaced(known: Bool[Array, " N"] | None, tree: PyTree, other: float) -> PyTree:
    if known is None:
        return tree
    fill = lambda x: jnp.where(_like(known, x), x, other) if eqx.is_inexact_array(x) else x
    return jax.tree.map(fill, tree)


def _like(known: Bool[Array, " N"], x: Array) -> Array:
    return known.reshape(-1, *(1,) * (x.ndim - 1))
