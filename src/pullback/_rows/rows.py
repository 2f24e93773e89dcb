r"""\(A = S^\top J\) at a point, as an operator: linearised once, nothing dense until asked for.

The rows are kept in the graded form of the metric's root, \(A = \mathrm{diag}(e^{\ell})\,\hat A\)
with \(\hat A = \hat S^\top J\) of order one. The weights of the measure are part of the grading,
\(\ell_i + \tfrac12 \log w_i\), and an absent sample has \(\ell = -\infty\). Vectors on the
parameters are flat, in the orthonormal coordinates \(\eta = R\delta\) of the gauge (`gauge.py`).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._base.tree import Structure, coarsest_dtype, split, structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params, Scalar
from .._base.vector import probe
from .._problem.composite import Objective
from .._problem.holomorphic import check_complex
from .._problem.paired import paired
from .._problem.validate import check_outputs
from ..metric._base import AbstractRoot
from .block_root import BlockRoot
from .cut import Cut, Uncut
from .gauge import AbstractGauge, EuclideanGauge, as_gauge
from .linearise import Linearisation, block, linearise, over_samples, sum_over_samples
from .separated import Separated, separable, separate
from .turned import turned_block

MEMORY = 2**30
"""The default bound, in bytes, on the working storage of Jacobian blocks."""


class Analysis:
    """What an analysis of the model found, carried with the rows so that it runs once.

    Compared by identity: it belongs to one trace.
    """

    def __init__(self, found: Any):
        self.found = found


class Rows(eqx.Module):
    """Ã = A R⁻¹, the whitened Jacobian in orthonormal coordinates of the gauge."""

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

    def __repr__(self) -> str:
        return f"Rows({self._text()})"

    def _text(self) -> str:
        """Return the shape and the dtype of A, of one of them if there are several."""
        *batch, m = self.log_scale.shape
        several = f"{' x '.join(map(str, batch))} results: " if batch else ""
        return f"{several}A is {m} x {self.linear.params.size}, {self.dtype}"

    # ---- sizes ----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """(m, P)."""
        return self.log_scale.shape[0], self.linear.params.size

    @property
    def dtype(self) -> Any:
        """The dtype of the linear algebra."""
        return self.log_scale.dtype

    @property
    def structure(self) -> Structure:
        """How the parameters lie in a flat vector."""
        return self.linear.params

    @property
    def count(self) -> int:
        """N, the number of samples."""
        return self.objective.count

    @property
    def outputs(self) -> Outputs:
        """z, the outputs at this point."""
        return self.linear.outputs

    @property
    def active(self) -> Array:
        """Which rows are present; those of a sample of weight zero are not."""
        return self.log_scale > -jnp.inf

    @property
    def scale(self) -> Float[Array, " m"]:
        """The grading e^ℓ of the rows."""
        return jnp.exp(self.log_scale)

    @property
    def graded(self) -> bool:
        """Whether the scales of rows may differ by more than a float resolves."""
        return self.objective.problem.metric.graded

    @property
    def largest_log_scale(self) -> Scalar:
        """The logarithm of the heaviest row weight; zero if every row is absent."""
        top = jnp.max(jnp.where(self.active, self.log_scale, -jnp.inf), initial=-jnp.inf)
        return jnp.where(jnp.isfinite(top), top, 0.0)

    @property
    def noise(self) -> Scalar:
        """The singular value at or below which Ã is rounding of the mean that was taken off."""
        if not self.objective.problem.metric.centred:
            return jnp.zeros((), self.dtype)
        # Σ w_i J_i/√W, the mean row as large as it is in A.
        weights = self.scale * self.scale
        total = jnp.sum(weights)
        c = weights / jnp.sqrt(jnp.where(total > 0, total, 1.0))
        mean = self.linear.pull(self.linear.like.unravel(c.astype(self.linear.like.dtype)))
        size = jnp.linalg.norm(self.gauge.pull(mean.astype(self.dtype)))
        return max(self.shape) * jnp.finfo(self.dtype).eps * size

    @property
    def turns(self) -> bool:
        """Whether consecutive rows of Ã are (a, ia): of a holomorphic model, one gives both."""
        euclidean = isinstance(self.gauge, EuclideanGauge)
        return self.objective.problem.holomorphic and self.root.complex_linear and euclidean

    @property
    def by_sample(self) -> bool:
        """Whether the rows of J are formed sample by sample."""
        return self.objective.by_sample or isinstance(self.cut, Cut)

    @property
    def by_block(self) -> bool:
        """Whether the rows of a sample are formed by themselves."""
        return self.by_sample and not self.objective.problem.metric.couples_samples

    @property
    def chunk(self) -> int:
        """How many samples are held at once: blocks and intermediates (3 ×) fit `memory`."""
        per_output = 3 * self.shape[1] * jnp.dtype(self.dtype).itemsize
        per_sample = (self.linear.like.size // self.count) * per_output
        return max(1, min(self.count, self.memory // max(per_sample, 1)))

    # ---- other rows of the same problem ---------------------------------------------------------

    def divided_by(self, log_factor: Scalar) -> "Rows":
        """Return e^-log_factor A."""
        return eqx.tree_at(lambda rows: rows.log_scale, self, self.log_scale - log_factor)

    def resolved(self) -> "Rows":
        """Return the rows, all of them absent if they are rounding (samples that are all alike)."""
        if not self.objective.problem.metric.centred:
            return self
        size = jnp.linalg.norm(self.rmv(probe(self.shape[0], self.dtype)))
        log_scale = jnp.where(size > self.noise, self.log_scale, -jnp.inf)
        return eqx.tree_at(lambda rows: rows.log_scale, self, log_scale)

    def in_gauge(self, gauge: Any) -> "Rows":
        """Return the rows in the coordinates of what the user gives as a gauge."""
        gauge = as_gauge(gauge, self.structure, self.dtype)
        return Rows(
            self.objective, self.params, self.linear, self.root, self.log_scale, gauge, self.memory,
            cut=self.cut,
        )  # fmt: skip

    def analysed(self, found: Any) -> "Rows":
        """Return the rows with the result of an analysis of the model."""
        return Rows(
            self.objective, self.params, self.linear, self.root, self.log_scale, self.gauge,
            self.memory, analysis=Analysis(found), cut=self.cut,
        )  # fmt: skip

    def formed(self, dense: Array, order: np.ndarray | None = None) -> "Rows":
        """Return the rows with Ã, its grading left out, at hand."""
        return Rows(
            self.objective, self.params, self.linear, self.root, self.log_scale, self.gauge,
            self.memory, dense, order, self.analysis, self.cut,
        )  # fmt: skip

    # ---- coordinates ----------------------------------------------------------------------------

    def to_params(self, eta: Flat) -> Flat:
        """Return δ = R⁻¹ η."""
        return self.gauge.lower(eta)

    def from_params(self, delta: Flat) -> Flat:
        """Return η = R δ."""
        return self.gauge.lift(delta)

    def pull(self, g: Flat) -> Flat:
        """Return R⁻ᵀ g, a parameter covector in orthonormal coordinates."""
        return self.gauge.pull(g)

    # ---- products -------------------------------------------------------------------------------

    def mv(self, eta: Flat) -> Float[Array, " m"]:
        """Return Ã η."""
        return self.scale * self.unit_mv(eta)

    def rmv(self, y: Float[Array, " m"]) -> Flat:
        """Return Ãᵀ y."""
        return self.unit_rmv(self.scale * y)

    def unit_mv(self, eta: Flat) -> Float[Array, " m"]:
        """Return Ã η without the grading."""
        if self.dense is not None:
            return self.dense @ (eta if self.order is None else eta[self.order])
        return self.unit_push(self.gauge.lower(eta))

    def unit_push(self, delta: Flat) -> Float[Array, " m"]:
        """Return Â δ for δ in the coordinates of the parameters."""
        if self.dense is not None and isinstance(self.gauge, EuclideanGauge):
            return self.unit_mv(delta)
        return self.unit_output(self.linear.pushforward(delta.astype(self.structure.dtype)))

    def unit_output(self, v: OutputVector) -> Float[Array, " m"]:
        """Return Ŝᵀ v, an output vector in the whitened space without the grading."""
        return jnp.where(self.active, self.root.unit_transpose(v).astype(self.dtype), 0.0)

    def unit_rmv(self, y: Float[Array, " m"]) -> Flat:
        """Return the transpose of `unit_mv` on y."""
        if self.dense is None:
            y = jnp.where(self.active, y, 0.0).astype(self.linear.like.dtype)
            return self.gauge.pull(self.linear.pull(self.root.unit(y)).astype(self.dtype))
        pulled = self.dense.T @ y
        return pulled if self.order is None else scatter(pulled, self.order)

    def pull_output(self, c: OutputCovector) -> Flat:
        """Return Jᵀ c in the coordinates of the parameters."""
        return self.linear.pull(c).astype(self.dtype)

    # ---- dense blocks ---------------------------------------------------------------------------

    def unit_rows(self) -> Float[Array, "m P"]:
        """Return Ã, dense, without its grading."""
        if self.dense is not None and self.order is None:
            return self.dense
        return self.gauge.rows(self._plain_rows())

    def sum_blocks(self, function: Callable[[Float[Array, "b P"]], Array]) -> Array:
        """Return the sum of a function of blocks of rows of Ã, one block of samples at a time."""
        formed = self.dense is not None and self.order is None
        if formed or not self.by_block or self.chunk >= self.count:
            return function(self.scale[:, None] * self.unit_rows())

        one = self._scaled_block()

        def blocks(samples):
            rows = jax.vmap(one)(samples).reshape(-1, self.shape[1])
            return function(self.gauge.rows(rows))

        return sum_over_samples(blocks, self._scaled_samples(), self.count, self.chunk)

    def sample_blocks(self, function: Callable[[Float[Array, "q P"]], Array]) -> Array:
        """Return a function of the rows of each sample; of each row where samples have no rows."""
        if not self.by_block:
            # A coupled metric may have another number of rows than a multiple of the samples.
            count = self.shape[0] if self.shape[0] % self.count else self.count
            rows = self.scale[:, None] * self.unit_rows()
            return jax.vmap(function)(rows.reshape(count, -1, self.shape[1]))

        block = self._scaled_block()

        def one(sample):
            return function(self.gauge.rows(block(sample)))

        return over_samples(one, self._scaled_samples(), self.count, self.chunk)

    def gram(self) -> Float[Array, "P P"]:
        """Return ÃᵀÃ, summed over blocks of samples."""
        return self.sum_blocks(lambda rows: rows.T @ rows)

    def _plain_rows(self) -> Float[Array, "m P"]:
        """Return Â in the coordinates of the parameters."""
        objective, root = self.objective, self.root
        if not self.by_sample:
            rows = self._block(objective.outputs, root.unit_transpose, root.unit, self.shape[0])
        else:
            rows = over_samples(self._sample_block(), self._samples(), self.count, self.chunk)
            rows = rows.reshape(-1, self.shape[1])
            if objective.problem.metric.couples_samples:
                # The metric mixes the samples: rows are those of J, and each column is an output
                # vector of the whole batch.
                whiten = lambda v: root.unit_transpose(self.linear.like.unravel(v))
                rows = jax.vmap(whiten, in_axes=1, out_axes=1)(rows)
        return jnp.where(self.active[:, None], rows.astype(self.dtype), 0.0)

    def _samples(self):
        inputs = eqx.filter(self.objective.batch.inputs, eqx.is_array)
        roots = self.root.roots if isinstance(self.root, BlockRoot) else None
        return inputs, roots, jnp.arange(self.count)

    def _scaled_samples(self):
        return self._samples(), self.log_scale.reshape(self.count, -1)

    def _scaled_block(self) -> Callable[[PyTree], Float[Array, "q P"]]:
        """Return the function from a sample to its rows of A; zero if the sample is absent."""
        one = self._sample_block()

        def scaled(sample):
            block, log_scale = one(sample[0]).astype(self.dtype), sample[1][:, None]
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


def scatter(x: Array, order: np.ndarray) -> Array:
    """Return the vector y with y[order] = x."""
    return jnp.zeros_like(x).at[order].set(x, unique_indices=True)


def rows_at(objective: Objective, params: Params, memory: int = MEMORY) -> Rows:
    """Linearise a problem at a point and take the root of its metric there; Euclidean gauge."""
    like = structure(params)
    moving, carried = split(params)
    model = lambda p, given=objective: given.outputs_and_state(eqx.combine(p, carried))
    linear = linearise(model, moving, like, has_state=True)
    objective = paired(objective, linear.pairs)
    problem, batch = objective.problem, objective.batch
    # The shapes are checked here, where the model is traced anyway.
    check_outputs(objective, linear.outputs)
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
        root = problem.metric.weigh(weights).root(linear.outputs)
        log_scale = root.log_scale.astype(dtype)
        return Rows(
            objective, params, linear, root, log_scale, EuclideanGauge(), memory, cut=separation
        )
    outputs, constants = eqx.partition(linear.outputs, eqx.is_array)
    targets, static = eqx.partition(batch.targets, eqx.is_array)

    def one(z, y, index):
        metric = problem.metric.observe(eqx.combine(y, static), index)
        return metric.root(eqx.combine(z, constants))

    root = BlockRoot(jax.vmap(one)(outputs, targets, jnp.arange(objective.count)))
    half = jnp.log(weights).astype(dtype)[:, None] / 2
    log_scale = (root.log_scale.astype(dtype).reshape(objective.count, -1) + half).ravel()
    return Rows(
        objective, params, linear, root, log_scale, EuclideanGauge(), memory, cut=separation
    )
