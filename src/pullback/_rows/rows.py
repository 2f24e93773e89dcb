r"""\(A = S^\top J\) of one term, as an operator: linearised once, nothing dense until asked for.

The rows are kept in the graded form of the metric's root, \(A = \mathrm{diag}(e^{\ell})\,\hat A\)
with \(\hat A = \hat S^\top J\) of order one. The weights of the measure are part of the grading,
\(\ell_i + \tfrac12 \log w_i\), and an absent sample has \(\ell = -\infty\). The weight of a term
among others, \(\omega\), adds \(\tfrac12\log\omega\).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._base.axis import anywhere, largest, total
from .._base.tree import coarsest_dtype, split, structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params, Scalar
from .._base.vector import norm, probe
from .._problem.composite import Objective
from .._problem.form import about
from .._problem.holomorphic import check_complex
from .._problem.paired import paired
from .._problem.problem import AbstractObjective
from .._problem.validate import check_outputs
from ..metric._base import AbstractRoot
from .base import AbstractRows
from .base import scatter as scatter
from .block_root import BlockRoot, joint_root
from .centred import centre, mean_rows, removed_size
from .cut import Cut, Uncut
from .gauge import AbstractGauge, EuclideanGauge, as_gauge
from .linearise import Linearisation, block, linearise, over_samples, sum_over_samples
from .separated import Separated, separable, separate
from .shared import SharedLinearisation, SharedRows
from .stacked import StackedLinearisation, StackedRows
from .turned import turned_block

MEMORY = 2**30
"""The default bound, in bytes, on the working storage of Jacobian blocks."""


class Analysis:
    """What an analysis of the model found, carried with the rows so that it runs once.

    Compared by identity: it belongs to one trace.
    """

    def __init__(self, found: Any):
        self.found = found


class Rows(AbstractRows):
    """Ã = A R⁻¹ of one term."""

    objective: Objective
    params: Params
    linear: Linearisation
    root: AbstractRoot
    log_scale: Float[Array, " m"]
    gauge: AbstractGauge
    memory: int = eqx.field(static=True)
    """Bound in bytes on the working storage of Jacobian blocks."""
    dense: Float[Array, "m P"] | None = None
    """Ã without its grading, if a solver has formed it: products then skip the model."""
    order: Int[np.ndarray, " P"] | None = None
    """The parameters in the order of the columns of `dense`, if that is not their own."""
    analysis: Analysis | None = eqx.field(static=True, default=None)
    cut: Cut | Uncut | None = None
    """How a model that mixes samples is separated into samples; `None` if it mixes none."""
    weight: Scalar | None = None
    """ω, the weight among other terms; `None` for a problem of one term."""

    @property
    def terms(self) -> "tuple[Rows, ...]":
        return (self,)

    # ---- sizes ----------------------------------------------------------------------------------

    @property
    def graded(self) -> bool:
        return self.objective.problem.metric.graded

    @property
    def centred(self) -> bool:
        return self.objective.problem.metric.centred

    @property
    def removed(self) -> Scalar:
        if not self.centred:
            return jnp.zeros((), self.dtype)
        axis, lowest = self.objective.axis, -jnp.inf
        pull = lambda c: self.gauge.pull(total(self.linear.pull(c), axis).astype(self.dtype))
        # The grading of the root, divided by a common factor since.
        root = largest(jnp.max(self.root.log_scale.astype(self.dtype), initial=lowest), axis)
        top = jnp.max(jnp.where(self.active, self.log_scale, lowest), initial=lowest)
        top = largest(top, axis)
        factor = jnp.where(jnp.isfinite(top) & jnp.isfinite(root), top - root, 0.0)
        present = anywhere(jnp.any(self.active), axis)
        # Of an absent term it may be a NaN, and zero times NaN would be one.
        return jnp.where(present, jnp.exp(factor) * removed_size(pull, self.root), 0.0)

    @property
    def turns(self) -> bool:
        euclidean = isinstance(self.gauge, EuclideanGauge)
        return self.objective.problem.holomorphic and self.root.complex_linear and euclidean

    @property
    def by_sample(self) -> bool:
        return self.objective.by_sample or isinstance(self.cut, Cut)

    @property
    def by_block(self) -> bool:
        """Whether the rows of a sample are formed by themselves."""
        return self.by_sample and self.root.samples is not None

    @property
    def chunk(self) -> int:
        """How many samples are held at once: blocks and intermediates (3 ×) fit `memory`."""
        per_output = 3 * self.shape[1] * jnp.dtype(self.dtype).itemsize
        per_sample = (self.linear.like.size // self.count) * per_output
        return max(1, min(self.count, self.memory // max(per_sample, 1)))

    # ---- other rows of the same problem ---------------------------------------------------------

    def divided_by(self, log_factor: Scalar) -> "Rows":
        return eqx.tree_at(lambda rows: rows.log_scale, self, self.log_scale - log_factor)

    def resolved(self) -> "Rows":
        if not self.centred:
            return self
        size = norm(self.rmv(probe(self.shape[0], self.dtype)))
        log_scale = jnp.where(size > self.noise, self.log_scale, -jnp.inf)
        return eqx.tree_at(lambda rows: rows.log_scale, self, log_scale)

    def in_gauge(self, gauge: Any) -> "Rows":
        gauge = as_gauge(gauge, self.structure, self.dtype)
        return replace(self, gauge=gauge, dense=None, order=None, analysis=None)

    def analysed(self, found: Any) -> "Rows":
        """Return the rows with the result of an analysis of the model."""
        return replace(self, dense=None, order=None, analysis=Analysis(found))

    def formed(self, dense: Array, order: np.ndarray | None = None) -> "Rows":
        return replace(self, dense=dense, order=order)

    def widened(self, dtype: Any) -> "Rows":
        cast = lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x
        wide = replace(self, log_scale=cast(self.log_scale), gauge=jax.tree.map(cast, self.gauge))
        # Factors of layers have the precision of the model.
        return wide.analysed(None)

    def weighed(self, weight: Scalar | None, dtype: Any) -> "Rows":
        """Return √ω A, with linear algebra in another dtype."""
        log_scale = self.log_scale.astype(dtype)
        if weight is not None:
            # Of a weight that is negative or NaN this is NaN, which is reported as a bad metric.
            half = jnp.log(jnp.where(weight == 0, 1.0, weight)).astype(dtype) / 2
            log_scale = jnp.where(weight == 0, -jnp.inf, log_scale + half)
        return replace(self, log_scale=log_scale, weight=weight)

    def with_terms(self, terms: "tuple[Rows, ...]") -> "Rows":
        (rows,) = terms
        return rows

    # ---- products -------------------------------------------------------------------------------

    def unit_output(self, v: OutputVector) -> Float[Array, " m"]:
        return jnp.where(self.active, self.root.unit_transpose(v).astype(self.dtype), 0.0)

    def unit_pull(self, y: Float[Array, " m"]) -> Flat:
        return self.masked(self.linear.pull(self.unit_covector(y)).astype(self.dtype))

    def unit_covector(self, y: Float[Array, " m"]) -> OutputCovector:
        """Return Ŝ y, an output covector."""
        return self.root.unit(jnp.where(self.active, y, 0.0).astype(self.linear.like.dtype))

    def pull_output(self, c: OutputCovector) -> Flat:
        return self.masked(self.linear.pull(c).astype(self.dtype))

    def masked(self, tree: PyTree) -> PyTree:
        """Return a tree of numbers, zero if the term is absent: zero times NaN would be NaN."""
        weight = self.weight
        if weight is None:
            return tree
        zero = lambda x: jnp.where(weight == 0, 0, x) if eqx.is_inexact_array(x) else x
        return jax.tree.map(zero, tree)

    # ---- dense blocks ---------------------------------------------------------------------------

    def unit_rows(self) -> Float[Array, "m P"]:
        if self.dense is not None and self.order is None:
            return self.dense
        return self.gauge.rows(self._plain_rows())

    def sum_blocks(self, function: Callable[[Float[Array, "b P"]], Array]) -> Array:
        formed = self.dense is not None and self.order is None
        if formed or not self.by_block or self.chunk >= self.count:
            return function(self.scale[:, None] * self.unit_rows())

        one = self._scaled_block()

        def blocks(samples):
            rows = jax.vmap(one)(samples).reshape(-1, self.shape[1])
            return function(self.gauge.rows(rows))

        return sum_over_samples(blocks, self._scaled_samples(), self.count, self.chunk)

    def sample_blocks(self, function: Callable[[Float[Array, "q P"]], Array]) -> Array:
        if not self.by_block:
            # A coupled metric may have another number of rows than a multiple of the samples.
            count = self.shape[0] if self.shape[0] % self.count else self.count
            rows = self.scale[:, None] * self.unit_rows()
            return jax.vmap(function)(rows.reshape(count, -1, self.shape[1]))

        block = self._scaled_block()

        def one(sample):
            return function(self.gauge.rows(block(sample)))

        return over_samples(one, self._scaled_samples(), self.count, self.chunk)

    def _plain_rows(self) -> Float[Array, "m P"]:
        """Return Â in the coordinates of the parameters."""
        objective, root = self.objective, self.root
        if not self.by_sample:
            rows = self._block(objective.outputs, root.unit_transpose, root.unit, self.shape[0])
        else:
            rows = over_samples(self._sample_block(), self._samples(), self.count, self.chunk)
            rows = rows.reshape(-1, self.shape[1])
            if root.mean is not None:
                rows = jnp.where(self.active[:, None], rows, 0.0)
                blocks, _ = centre(rows.reshape(self.count, -1, self.shape[1]), root.mean)
                rows = blocks.reshape(rows.shape)
            elif root.samples is None:
                # The metric mixes the samples: rows are those of J, and each column is an output
                # vector of the whole batch.
                whiten = lambda v: root.unit_transpose(self.linear.like.unravel(v))
                rows = jax.vmap(whiten, in_axes=1, out_axes=1)(rows)
        return jnp.where(self.active[:, None], rows.astype(self.dtype), 0.0)

    def _samples(self):
        inputs = eqx.filter(self.objective.batch.inputs, eqx.is_array)
        return inputs, self.root.samples, jnp.arange(self.count)

    def _scaled_samples(self):
        return self._samples(), self.log_scale.reshape(self.count, -1)

    def _scaled_block(self) -> Callable[[PyTree], Float[Array, "q P"]]:
        """Return the function from a sample to its rows of A; zero if the sample is absent."""
        one = self._sample_block()
        taken = None if self.root.mean is None else mean_rows(self.linear, self.root)

        def scaled(sample):
            block, log_scale = one(sample[0]), sample[1][:, None]
            block = (block if taken is None else block - taken).astype(self.dtype)
            return jnp.where(log_scale > -jnp.inf, jnp.exp(log_scale) * block, 0.0)

        return scaled

    def _sample_block(self) -> Callable[[PyTree], Float[Array, "q P"]]:
        """Return the function from a sample to its rows of Â, with what all samples share."""
        like = structure(jax.tree.map(lambda x: x[0], split(self.outputs)[0]))
        static = eqx.filter(self.objective.batch.inputs, eqx.is_array, inverse=True)
        separated = self.separated

        def one(sample):
            inputs, root, index = sample
            ways = (like.ravel, like.unravel, like.size)
            if root is not None:
                ways = (root.unit_transpose, root.unit, root.size)
            if separated is None:
                whole = lambda p: self.objective.problem.one(p, eqx.combine(inputs, static))
                if self.objective.problem.holomorphic and like.size <= self.shape[1]:
                    return turned_block(self._block, whole, like, ways[0])
                return self._block(whole, *ways)
            return separated.block(jax.tree.leaves(inputs), index, like, *ways)

        return one

    @property
    def separated(self) -> Separated | None:
        """The statistics of a model that mixes samples, and the rows of a sample given them."""
        if not isinstance(self.cut, Cut):
            return None
        return separate(self.cut, self.structure, self.objective, self.params)

    def _block(
        self, function: Callable[[Params], Outputs], push: Callable, pull: Callable, size: int
    ) -> Float[Array, "q P"]:
        moving, carried = split(self.params)
        whole = lambda p: function(eqx.combine(p, carried))
        return block(whole, moving, self.structure, push, pull, size)


def term_rows(objective: Objective, params: Params, linear: Linearisation, memory: int) -> Rows:
    """Take the root of the metric at a point where the model is linearised; Euclidean gauge."""
    problem, batch = objective.problem, objective.batch
    like = structure(params)
    if problem.holomorphic:
        check_complex(like, linear.outputs, linear.pairs)
    # The Jacobian has the digits of the shortest type on the way; a cut-off for more would take its
    # rounding for rank.
    dtype = coarsest_dtype(*like.dtypes, *linear.like.dtypes)
    if not objective.has_data:
        root = objective.observed.root(linear.outputs)
        log_scale = root.log_scale.astype(dtype)
        return Rows(objective, params, linear, root, log_scale, EuclideanGauge(), memory)
    weights = problem.measure.weights(objective.count, like.dtype)
    separation = separable(objective, params) if problem.coupled else None
    if problem.metric.couples_samples:
        root = joint_root(problem.metric, weights, linear.outputs, objective.axis)
        log_scale = root.log_scale.astype(dtype)
        return Rows(
            objective, params, linear, root, log_scale, EuclideanGauge(), memory, cut=separation
        )
    outputs, constants = eqx.partition(linear.outputs, eqx.is_array)
    targets, static = eqx.partition(batch.targets, eqx.is_array)

    def one(z, y, index):
        metric = problem.metric.observe(eqx.combine(y, static), index)
        return metric.root(eqx.combine(z, constants))

    root = BlockRoot(jax.vmap(one)(outputs, targets, objective.indices))
    half = jnp.log(weights).astype(dtype)[:, None] / 2
    log_scale = (root.log_scale.astype(dtype).reshape(objective.count, -1) + half).ravel()
    return Rows(
        objective, params, linear, root, log_scale, EuclideanGauge(), memory, cut=separation
    )


def linearise_at(
    objective: AbstractObjective, params: Params
) -> tuple[AbstractObjective, Linearisation | StackedLinearisation | SharedLinearisation]:
    """Linearise the models of all terms at a point; the objective returned has real outputs."""
    objective, parts = _linearised(objective, params)
    here = StackedLinearisation(objective, parts) if objective.labels else parts[0]
    shared = here if objective.axis is None else SharedLinearisation(here, objective.axis)
    return objective, shared


def rows_at(objective: AbstractObjective, params: Params, memory: int = MEMORY) -> AbstractRows:
    """Linearise a problem at a point and take the root of its metric there; Euclidean gauge."""
    here = _rows_here(objective, params, memory)
    return here if objective.axis is None else SharedRows.of(here)


def _rows_here(objective: AbstractObjective, params: Params, memory: int) -> AbstractRows:
    """Return the rows of the samples of this device."""
    objective, parts = _linearised(objective, params)
    both = zip(objective.terms, parts, strict=True)
    terms = tuple(term_rows(term, params, part, memory) for term, part in both)
    if not objective.labels:
        return terms[0]
    dtype = coarsest_dtype(*(term.dtype for term in terms))
    weighed = zip(terms, objective.weights, strict=True)
    return StackedRows(objective, tuple(term.weighed(weight, dtype) for term, weight in weighed))


def _linearised(
    objective: AbstractObjective, params: Params
) -> tuple[AbstractObjective, tuple[Linearisation, ...]]:
    """Linearise the model of each term, check its outputs, and take complex ones as pairs."""
    moving, carried = split(params)
    like, parts = structure(params), []
    for label, term in zip(objective.labels or (None,), objective.terms, strict=True):
        model = lambda p, term=term: term.outputs_and_state(eqx.combine(p, carried))
        with about(label):
            parts.append(linearise(model, moving, like, has_state=True))
    objective = paired(objective, tuple(part.pairs for part in parts))
    # The shapes are checked here, where the model is traced anyway.
    check_outputs(objective, objective.pack(tuple(part.outputs for part in parts)))
    return objective, tuple(parts)
