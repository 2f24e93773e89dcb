r"""A natural gradient step in a constrained parameter space: \(\theta - h\delta\), then back; or
\(\theta - h\,(\delta + G^+ dp)\) with a penalty \(p\).

What each way back does to invariance stands in `pullback.constraint`. A step that violates nothing
is not touched.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._base.results import RESULTS
from .._base.tree import split, structure
from .._base.types import Params, Scalar
from .._natural.natural_gradient import natural_gradient, pullback
from .._natural.outcome import prepare
from .._problem.composite import Composite
from .._rows.pullback import MEMORY
from ..constraint import AbstractConstraint, Penalty
from ..inverse._base import AbstractInverse


class ConstrainedStep(eqx.Module):
    """A step and what the constraint did to it."""

    params: Params
    """The new point."""
    free: Params
    """Where the step would have led without the constraint."""
    slack: Scalar
    """How far inside the new point is; negative if outside, which only a penalty allows."""
    correction: Scalar
    """How far the constraint moved the point, ‖params - free‖; zero if it was not met."""
    dropped: Scalar
    """The share of the penalty's differential outside the range of G, which the inverse drops; zero
    without a penalty.
    """
    result: RESULTS


def constrained_step(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    step: Any,
    constraint: AbstractConstraint | Penalty,
    inverse: AbstractInverse | None = None,
    throw: bool = True,
) -> ConstrainedStep:
    """A natural gradient step that heeds a constraint, by back-projection, clipping or a penalty.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, which must satisfy the constraint
        (unless it is a penalty).
    - `step`: the step size.
    - `constraint`: of `pullback.constraint`: `Simplex()`, `PositiveDefinite()` (back-projection),
        `Clipping(a, b)`, `Penalty(constraint, strength)`.
    - `inverse`: which generalised inverse; `MoorePenrose()` if left out.
    - `throw`: whether a failure raises; otherwise look at `result`.
    """
    if not isinstance(constraint, AbstractConstraint | Penalty):
        raise ValueError(
            f"constraint must be one of pullback.constraint, e.g. constraint.Simplex(), got {constraint!r}."
        )
    if isinstance(constraint, AbstractConstraint):
        constraint.refuse(params)
    ng = natural_gradient(problem, params, batch, inverse=inverse, throw=throw)
    params = prepare(problem, params, batch, inverse, None, None, MEMORY)[1]
    like, carried = structure(params), split(params)[1]
    h = jnp.asarray(step, like.dtype)
    whole = lambda flat: eqx.combine(like.unravel(flat), carried)
    free = like.ravel(params) - h * like.ravel(ng.vector)
    zero = jnp.zeros((), like.dtype)
    if isinstance(constraint, AbstractConstraint):
        moved, dropped, limits = constraint(whole(free)), zero, constraint
    else:
        metric = pullback(problem, params, batch, inverse=inverse)
        g = like.ravel(constraint.covector(params))
        v = like.ravel(metric.sharp(like.unravel(g)))
        inside = like.ravel(metric.flat(like.unravel(v)))
        size = jnp.linalg.norm(g)
        dropped = jnp.where(
            size > 0, jnp.linalg.norm(g - inside) / jnp.where(size > 0, size, 1.0), 0.0
        )
        moved, limits = whole(free - h * v), constraint.constraint
    correction = jnp.linalg.norm(like.ravel(moved) - free)
    return ConstrainedStep(moved, whole(free), limits.slack(moved), correction, dropped, ng.result)
