r"""Tangent kernels: how the outputs move in answer to a covector \(-c\) on the outputs.

\[ \text{Euclidean: } \dot z = \underbrace{JJ^\top}_{\Theta}(-c), \qquad \text{natural: } \dot z =
\underbrace{J G^+ J^\top}_{N}(-c), \qquad G = J^\top M J. \]

If \(J\) is onto and \(M\) invertible, \(N = M^{-1}\) whatever the parametrisation: with \(M = I\)
the identity, only the entry that is pushed moves. If \(M\) is singular (a mask), or \(J\) is not
onto, it is not: then the parametrisation and the gauge decide what else moves, and `reason` says
so. The discrete versions are \((f(\theta + \eta v) - f(\theta))/\eta\) with \(v = J^\top c\) or
\(G^+J^\top c\), which differ by \(O(\eta)\).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.tree import structure
from .._base.types import Flat, OutputCovector, Outputs, OutputVector, Params
from .._natural.evaluate import lift
from .._natural.outcome import prepare
from .._natural.stats import largest_log_scale
from .._problem.composite import check_batch
from .._rows.pullback import MEMORY, PullbackMetric, at_point
from ..inverse._base import AbstractInverse, Tikhonov
from ..solver._base import AbstractSolver
from .examine import examine


class TangentKernel(eqx.Module):
    """A tangent kernel at a point. Made by `ntk` and `natural_ntk`."""

    metric: PullbackMetric
    inverse: AbstractInverse | None
    """`None` for the Euclidean kernel."""
    solver: AbstractSolver
    at: Any
    """Other inputs at which the outputs are watched; `None` for those of the batch."""

    def direction(self, c: OutputCovector) -> Flat:
        """The vector on the parameters that answers to c: Jᵀc or G⁺Jᵀc, flat.

        **Arguments:**

        - `c`: an output covector.
        """
        return self._directions(self.metric.linear.like.ravel(c)[None])[0]

    def product(self, c: OutputCovector) -> OutputVector:
        """The kernel times c: how the outputs move.

        **Arguments:**

        - `c`: an output covector of the batch.
        """
        return self._push(self.direction(c))

    def column(self, *index: int) -> OutputVector:
        """How the outputs move in answer to one entry of them; the outputs must be one array.

        **Arguments:**

        - `*index`: the entry, sample first if there is a batch.
        """
        return self.product(self._unit(index))

    def matrix(self) -> Float[Array, "m n"]:
        """The kernel, dense, on ravelled outputs: rows are where it is watched, columns where it is
        pushed.
        """
        vectors = self._directions(
            jnp.eye(self.metric.linear.like.size, dtype=self.metric.linear.like.dtype)
        )
        ravel = lambda z: structure(z).ravel(z)
        return jax.lax.map(lambda v: ravel(self._push(v)), vectors).T

    def discrete(self, c: OutputCovector, step: Any) -> OutputVector:
        """The discrete kernel times c: (f(θ + step · v) - f(θ))/step, v the direction.

        **Arguments:**

        - `c`: an output covector of the batch.
        - `step`: η > 0.
        """
        step = jnp.asarray(step, self.metric.structure.dtype)
        v = self.direction(c).astype(step.dtype)
        moved, here = self._outputs(self.metric.point + step * v), self._outputs(self.metric.point)
        return jax.tree.map(
            lambda a, b: (a - b) / step if eqx.is_inexact_array(a) else None, moved, here
        )

    def discrete_column(self, *index: int, step: Any) -> OutputVector:
        """A column of the discrete kernel.

        **Arguments:**

        - `*index`: the entry, sample first if there is a batch.
        - `step`: η > 0.
        """
        return self.discrete(self._unit(index), step)

    @property
    def reason(self) -> str:
        """Why the kernel is what it is: whether it depends on the parametrisation, and what
        decides. Outside `jit`.
        """
        if self.inverse is None:
            return "the Euclidean kernel JJᵀ depends on the parametrisation."
        metric = self.metric
        batch = None if metric.batch.inputs is None else metric.batch
        page = examine(metric.problem, metric.params, batch, nearby=0)
        blind, short = page.outputs - page.metric_rank, page.outputs - page.rank
        if isinstance(self.inverse, Tikhonov):
            return "the inverse is damped: the kernel depends on the parametrisation through the damping."
        if blind:
            return (
                f"the metric does not see {blind} of {page.outputs} output directions. What moves there is decided by the gauge (the update of least norm), "
                "hence by the parametrisation: the kernel is not the inverse of the metric."
            )
        if short:
            return f"the Jacobian is not onto: its rank is {page.rank} of {page.outputs} outputs. The kernel is M⁻¹ projected on what the model can do."
        return "the Jacobian is onto and the metric invertible: the kernel is M⁻¹ in every parametrisation."

    def _unit(self, index: tuple[int, ...]) -> OutputCovector:
        leaves, treedef = jax.tree.flatten(eqx.filter(self.metric.outputs, eqx.is_inexact_array))
        if len(leaves) != 1 or len(index) != leaves[0].ndim:
            raise ValueError(
                f"column(*index) needs outputs that are one array and one index for each of its axes; the outputs have shapes "
                f"{[x.shape for x in leaves]}, the index is {index}. Use product(c) with a covector c."
            )
        return jax.tree.unflatten(treedef, [jnp.zeros_like(leaves[0]).at[index].set(1.0)])

    def _outputs(self, flat: Flat) -> Outputs:
        metric = self.metric
        inputs = metric.batch.inputs if self.at is None else self.at
        return metric.problem.outputs(metric._params(flat), inputs)

    def _push(self, v: Flat) -> OutputVector:
        v = v.astype(self.metric.structure.dtype)
        if self.at is None:
            return self.metric.linear.pushforward(v)
        moving = lambda flat: eqx.filter(self._outputs(flat), eqx.is_inexact_array)
        return jax.jvp(moving, (self.metric.point,), (v,))[1]

    def _directions(self, covectors: Float[Array, "n m"]) -> Float[Array, "n P"]:
        """Directions for ravelled covectors, the factors being computed once."""
        metric, like = self.metric, self.metric.linear.like
        if self.inverse is None:
            return jax.lax.map(lambda c: metric.linear.pull(like.unravel(c)), covectors)
        inverse = self.inverse
        # As for a natural gradient: a common factor of A is divided out, and what is outside the
        # range of M is solved as a covector.
        shift = (
            jnp.zeros((), metric.dtype)
            if isinstance(inverse, Tikhonov)
            else largest_log_scale(metric)
        )
        scaled = eqx.tree_at(lambda m: m.log_scale, metric, metric.log_scale - shift)
        factorised = self.solver.factorise(scaled, inverse)

        def one(c):
            r, outside, _ = lift(metric, like.unravel(c))
            v = factorised.lifted(r)
            if outside is not None:
                v = v + factorised.covector(
                    jnp.exp(-2 * shift) * metric.linear.pull(outside).astype(metric.dtype)
                )
            return v

        return jax.lax.map(one, covectors)


def _kernel(
    problem: Any, params: Params, batch: Any, inverse: Any, solver: Any, at: Any, natural: bool
) -> TangentKernel:
    problem, params, data, _, inverse, solver = prepare(
        problem, params, batch, inverse, solver, None, MEMORY
    )
    check_batch(problem, params, data)
    if at is not None and data.inputs is None:
        raise ValueError("at=... is for models with data; this problem was called without a batch.")
    if not np.all(
        [np.all(np.isfinite(x)) for x in jax.tree.leaves(eqx.filter(params, eqx.is_inexact_array))]
    ):
        raise ValueError("params contains a NaN or an infinity.")
    weights = (
        None
        if data.inputs is None
        else problem.measure.weights(jax.tree.leaves(data.inputs)[0].shape[0], float)
    )
    if weights is not None and not problem.measure.positive and not bool(jnp.all(weights > 0)):
        raise ValueError(
            "samples of weight zero are absent and have no place in a kernel: leave them out of the batch."
        )
    # The loss plays no part; with one at hand a covector is lifted by the root of the metric, not
    # by the likelihood.
    problem = eqx.tree_at(lambda p: p.loss, problem, _no_loss, is_leaf=lambda x: x is None)
    return TangentKernel(
        at_point(problem, params, data, inverse, solver), inverse if natural else None, solver, at
    )


def _no_loss(z, *_):
    return jnp.zeros(())


def ntk(problem: Any, params: Params, batch: Any = None, *, at: Any = None) -> TangentKernel:
    """The empirical neural tangent kernel JJᵀ: dense, columns, products, and its discrete version.

    **Arguments:**

    - `problem`: for its model.
    - `params`: the point.
    - `batch`: `(inputs,)` or `(inputs, targets)`; `None` for a model without data.
    - `at`: other inputs at which the outputs are watched.
    """
    return _kernel(problem, params, batch, None, None, at, False)


def natural_ntk(
    problem: Any,
    params: Params,
    batch: Any = None,
    *,
    inverse: AbstractInverse | None = None,
    solver: AbstractSolver | None = None,
    at: Any = None,
) -> TangentKernel:
    """The natural neural tangent kernel J G⁺Jᵀ, of any metric: dense, columns, products, and its
    discrete version.

    **Arguments:**

    - `problem`: for its model, metric and measure.
    - `params`: the point.
    - `batch`: `(inputs,)` or `(inputs, targets)`; `None` for a model without data.
    - `inverse`, `solver`: as for `natural_gradient`.
    - `at`: other inputs at which the outputs are watched.
    """
    return _kernel(problem, params, batch, inverse, solver, at, True)
