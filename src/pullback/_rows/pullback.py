r"""The pullback metric at a point: \(A = S^\top J\), \(G = A^\top A\), \(K = AA^\top\), as
operators; nothing dense until asked.

The rows of \(A\) are kept in the graded form of the metric's root, \(A =
\mathrm{diag}(e^{\ell})\,\hat A\) with \(\hat A = \hat S^\top J\) of order one. The weights of the
measure are part of the grading, \(\ell_i + \tfrac12 \log w_i\), and an absent sample has \(\ell =
-\infty\).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.tangent import CotangentVector, TangentVector, covector_tree, vector_tree
from .._base.tree import Structure, coarsest_dtype, split, structure
from .._base.types import (
    Count,
    Covector,
    Flat,
    OutputCovector,
    Outputs,
    OutputVector,
    Params,
    Scalar,
    Vector,
)
from .._problem.composite import Batch, Composite, present, sample_count
from ..metric._base import AbstractRoot
from .linearise import Linearisation, block, linearise, over_samples, sum_over_samples

MEMORY = 2**30
"""The default bound, in bytes, on the working storage of Jacobian blocks."""


class BlockRoot(AbstractRoot):
    """The root of a batch: one root per sample, block diagonal."""

    roots: AbstractRoot

    @property
    def log_scale(self):
        return self.roots.log_scale.ravel()

    def unit(self, w):
        return jax.vmap(lambda root, w: root.unit(w))(
            self.roots, w.reshape(self.roots.log_scale.shape)
        )

    def unit_transpose(self, v):
        return jax.vmap(lambda root, v: root.unit_transpose(v))(self.roots, v).ravel()

    def unit_lift(self, c):
        return jax.vmap(lambda root, c: root.unit_lift(c))(self.roots, c).ravel()


class PullbackMetric(eqx.Module):
    """The metric G = JᵀMJ of a problem at a point. Made by `pullback.pullback`."""

    problem: Composite
    params: Params
    batch: Batch
    linear: Linearisation
    root: AbstractRoot
    log_scale: Float[Array, " m"]
    inverse: Any
    solver: Any
    memory: int = eqx.field(static=True)

    # ---- sizes
    # ----------------------------------------------------------------------------------------------------------

    @property
    def outputs(self) -> Outputs:
        """z, the outputs at this point."""
        return self.linear.outputs

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return self.linear.params.size

    @property
    def rows(self) -> int:
        """m, the number of rows of A."""
        return self.log_scale.shape[0]

    @property
    def dtype(self) -> Any:
        """The dtype of the linear algebra."""
        return self.log_scale.dtype

    @property
    def structure(self) -> Structure:
        """How the parameters lie in a flat vector."""
        return self.linear.params

    # ---- what users ask
    # ----------------------------------------------------------------------------------------------------

    def pushforward(self, v: Vector) -> OutputVector:
        """J v.

        **Arguments:**

        - `v`: a vector on the parameters.
        """
        return self.linear.pushforward(self.structure.ravel(vector_tree(v, "pushforward")))

    def pull(self, c: OutputCovector) -> Covector:
        """Jᵀ c.

        **Arguments:**

        - `c`: an output covector.
        """
        return self.structure.unravel(self.linear.pull(c))

    def flat(self, v: Vector) -> Covector:
        """G v, the covector ⟨v, ·⟩.

        **Arguments:**

        - `v`: a vector on the parameters.
        """
        covector = self._tree(self.rmv(self.mv(self._flat(vector_tree(v, "flat")))))
        return CotangentVector(covector) if isinstance(v, TangentVector) else covector

    def sharp(self, g: Covector, inverse: Any = None, solver: Any = None) -> Vector:
        """G⁺ g, the vector whose flat is g (of the part of g in the range of G).

        **Arguments:**

        - `g`: a covector on the parameters.
        - `inverse`: which generalised inverse; that of this object if left out.
        - `solver`: how; that of this object if left out.
        """
        vector = self._tree(
            self.factorise(inverse, solver).covector(self._flat(covector_tree(g, "sharp")))
        )
        return TangentVector(vector) if isinstance(g, CotangentVector) else vector

    def inner(self, u: Vector, v: Vector) -> Scalar:
        """⟨u, v⟩ = uᵀGv.

        **Arguments:**

        - `u`, `v`: vectors on the parameters.
        """
        first, second = (self.mv(self._flat(vector_tree(x, "inner"))) for x in (u, v))
        return jnp.vdot(first, second)

    def norm(self, v: Vector) -> Scalar:
        """‖v‖ in the metric.

        **Arguments:**

        - `v`: a vector on the parameters.
        """
        return jnp.linalg.norm(self.mv(self._flat(vector_tree(v, "norm"))))

    def project(
        self, ambient: OutputVector, inverse: Any = None, solver: Any = None
    ) -> OutputVector:
        """Π(ambient): the projection of an output vector on the span of the ∂ᵢ, orthogonal in the
        metric of the outputs.

        **Arguments:**

        - `ambient`: an output vector.
        - `inverse`: which generalised inverse; that of this object if left out.
        - `solver`: how; that of this object if left out.
        """
        unit = self.root.unit_transpose(ambient).astype(self.dtype)
        v = self.factorise(inverse, solver).lifted(jnp.where(self.active, unit, 0.0))
        return self.linear.pushforward(v.astype(self.structure.dtype))

    def factorise(self, inverse: Any = None, solver: Any = None) -> Any:
        """Factorise once, solve many: factors with `lifted(r)`, `covector(g)`, `rank`, and the
        edges of the spectrum.

        **Arguments:**

        - `inverse`: which generalised inverse; that of this object if left out.
        - `solver`: how; that of this object if left out.
        """
        return (self.solver if solver is None else solver).factorise(
            self, self.inverse if inverse is None else inverse
        )

    def jacobian(self) -> Float[Array, "m P"]:
        """A = SᵀJ, the whitened Jacobian, dense."""
        return jnp.exp(self.log_scale)[:, None] * self.unit_rows()

    def matrix(self) -> Float[Array, "P P"]:
        """G, dense, summed over blocks of samples."""
        return self.sum_blocks(lambda rows: rows.T @ rows)

    def kernel(self) -> Float[Array, "m m"]:
        """K = AAᵀ, dense."""
        a = self.jacobian()
        return a @ a.T

    def spectrum(self) -> Float[Array, " k"]:
        """The min(m, P) leading eigenvalues of G, largest first: the squares of the singular values
        of A.
        """
        return jnp.linalg.svd(self.jacobian(), compute_uv=False) ** 2

    def rank(self, inverse: Any = None, solver: Any = None) -> Count:
        """The rank of G as the inverse sees it; -1 if the solver does not compute it.

        **Arguments:**

        - `inverse`: which generalised inverse; that of this object if left out.
        - `solver`: how; that of this object if left out.
        """
        return self.factorise(inverse, solver).rank

    # ---- what solvers ask
    # ------------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Array:
        """Which rows of A are present (a sample of weight zero is not)."""
        return self.log_scale > -jnp.inf

    def mv(self, v: Flat) -> Float[Array, " m"]:
        """A v on flat vectors.

        **Arguments:**

        - `v`: a flat vector on the parameters.
        """
        return jnp.exp(self.log_scale) * self.unit_mv(v)

    def unit_mv(self, v: Flat) -> Float[Array, " m"]:
        """Â v on flat vectors.

        **Arguments:**

        - `v`: a flat vector on the parameters.
        """
        pushed = self.linear.pushforward(v.astype(self.structure.dtype))
        return jnp.where(self.active, self.root.unit_transpose(pushed).astype(self.dtype), 0.0)

    def rmv(self, y: Float[Array, " m"]) -> Flat:
        """Aᵀ y on flat vectors.

        **Arguments:**

        - `y`: a vector in the whitened space.
        """
        return self.unit_rmv(jnp.exp(self.log_scale) * y)

    def unit_rmv(self, y: Float[Array, " m"]) -> Flat:
        """Âᵀ y on flat vectors.

        **Arguments:**

        - `y`: a vector in the whitened space.
        """
        y = jnp.where(self.active, y, 0.0).astype(self.linear.like.dtype)
        return self.linear.pull(self.root.unit(y)).astype(self.dtype)

    def unit_rows(self) -> Float[Array, "m P"]:
        """Â, dense."""
        if self.by_sample:
            rows = over_samples(self._sample_block, self._samples(), self.count, self.chunk)
            rows = rows.reshape(-1, self.size)
            if self.problem.metric.couples_samples:
                # The metric mixes the samples: rows are those of J, and each column is an output
                # vector of the whole batch.
                rows = jax.vmap(
                    lambda v: self.root.unit_transpose(self.linear.like.unravel(v)),
                    in_axes=1,
                    out_axes=1,
                )(rows)
        else:
            root = self.root
            rows = self._block(
                lambda p: self.problem.outputs(p, self.batch.inputs),
                root.unit_transpose,
                root.unit,
                self.rows,
            )
        return jnp.where(self.active[:, None], rows.astype(self.dtype), 0.0)

    def sum_blocks(self, function: Callable[[Float[Array, "b P"]], Array]) -> Array:
        """The sum of a function of blocks of rows of A, one block of samples at a time.

        **Arguments:**

        - `function`: acts on a block of rows.
        """
        if not self.by_sample or self.problem.metric.couples_samples or self.chunk >= self.count:
            return function(self.jacobian())

        def blocks(samples):
            return function(jax.vmap(self._scaled_block)(samples).reshape(-1, self.size))

        return sum_over_samples(blocks, self._scaled_samples(), self.count, self.chunk)

    def sample_blocks(self, function: Callable[[Float[Array, "q P"]], Array]) -> Array:
        """A function of the rows of A that belong to one sample, for each; of one row at a time
        where rows are not those of samples.

        **Arguments:**

        - `function`: acts on a block of rows.
        """
        if not self.by_sample or self.problem.metric.couples_samples:
            count = self.rows if self.rows % self.count else self.count
            return jax.vmap(function)(self.jacobian().reshape(count, -1, self.size))

        return over_samples(
            lambda sample: function(self._scaled_block(sample)),
            self._scaled_samples(),
            self.count,
            self.chunk,
        )

    @property
    def point(self) -> Flat:
        """The parameters as a flat vector."""
        return self.structure.ravel(self.params)

    def function(self, flat: Flat) -> Outputs:
        """The model on flat parameters and the whole batch.

        **Arguments:**

        - `flat`: flat parameters.
        """
        return self.problem.outputs(self._params(flat), self.batch.inputs)

    @property
    def chunk(self) -> int:
        """How many samples are held in memory at once: blocks of rows and their intermediates
        (three times as much) fit `memory`.
        """
        per_sample = (
            3 * (self.linear.like.size // self.count) * self.size * jnp.dtype(self.dtype).itemsize
        )
        return max(1, min(self.count, self.memory // max(per_sample, 1)))

    @property
    def by_sample(self) -> bool:
        """Whether the outputs of a sample depend on that sample only."""
        return self.batch.inputs is not None and not self.problem.coupled

    @property
    def count(self) -> int:
        """N, the number of samples."""
        return 1 if self.batch.inputs is None else sample_count(self.outputs)

    def _samples(self):
        inputs = eqx.filter(self.batch.inputs, eqx.is_array)
        return inputs, (self.root.roots if isinstance(self.root, BlockRoot) else None)

    def _scaled_samples(self):
        return self._samples(), self.log_scale.reshape(self.count, -1)

    def _scaled_block(self, sample) -> Float[Array, "q P"]:
        """The rows of A of one sample; zero if it is absent."""
        block, log_scale = self._sample_block(sample[0]).astype(self.dtype), sample[1][:, None]
        return jnp.where(log_scale > -jnp.inf, jnp.exp(log_scale) * block, 0.0)

    def _sample_block(self, sample) -> Float[Array, "q P"]:
        inputs, root = sample
        inputs = eqx.combine(inputs, eqx.filter(self.batch.inputs, eqx.is_array, inverse=True))

        if root is None:
            like = structure(jax.tree.map(lambda x: x[0], split(self.outputs)[0]))
            return self._block(
                lambda params: self.problem.one(params, inputs), like.ravel, like.unravel, like.size
            )
        return self._block(
            lambda params: self.problem.one(params, inputs),
            root.unit_transpose,
            root.unit,
            root.size,
        )

    def _block(
        self, function: Callable[[Params], Outputs], push: Callable, pull: Callable, size: int
    ) -> Float[Array, "q P"]:
        moving, carried = split(self.params)
        return block(
            lambda p: function(eqx.combine(p, carried)), moving, self.structure, push, pull, size
        )

    def _params(self, flat: Flat) -> Params:
        return eqx.combine(self.structure.unravel(flat), split(self.params)[1])

    def _flat(self, tree) -> Flat:
        return self.structure.ravel(tree).astype(self.dtype)

    def _tree(self, flat: Flat):
        return self.structure.unravel(flat)


def at_point(
    problem: Composite,
    params: Params,
    batch: Batch,
    inverse: Any,
    solver: Any,
    memory: int = MEMORY,
) -> PullbackMetric:
    """Linearise a problem at a point and root its metric there."""
    like = structure(params)
    moving, carried = split(params)
    weights = None
    if batch.inputs is not None:
        count = next(x.shape[0] for x in jax.tree.leaves(batch.inputs) if eqx.is_array(x))
        weights = problem.measure.weights(count, like.dtype)
        if not problem.coupled:
            batch = present(batch, weights)
    linear = linearise(
        lambda moving: problem.outputs(eqx.combine(moving, carried), batch.inputs), moving, like
    )
    root = _root(problem, linear.outputs, batch, weights)
    # The Jacobian has the digits of the shortest type on the way; a cut-off for more would take its
    # rounding for rank.
    dtype = coarsest_dtype(*like.dtypes, *linear.like.dtypes)
    log_scale = root.log_scale.astype(dtype)
    if weights is not None and not problem.metric.couples_samples:
        log_scale = (
            log_scale.reshape(weights.shape[0], -1) + (jnp.log(weights).astype(dtype) / 2)[:, None]
        ).ravel()
    return PullbackMetric(problem, params, batch, linear, root, log_scale, inverse, solver, memory)


def _root(problem: Composite, outputs: Outputs, batch: Batch, weights) -> AbstractRoot:
    if batch.inputs is None:
        return problem.metric.observe(None, jnp.asarray(0)).root(outputs)
    if problem.metric.couples_samples:
        return problem.metric.weigh(weights).root(outputs)
    moving, carried = eqx.partition(outputs, eqx.is_array)
    targets, static = eqx.partition(batch.targets, eqx.is_array)

    def one(z, y, index):
        return problem.metric.observe(eqx.combine(y, static), index).root(eqx.combine(z, carried))

    return BlockRoot(jax.vmap(one)(moving, targets, jnp.arange(sample_count(outputs))))
