r"""How far apart are two networks as *functions*? The divergence of the metric, pulled back and
averaged by the measure:

\[ \rho(u, \theta) = \sum_i w_i\, \rho_z\bigl(f(u, x_i),\, f(\theta, x_i)\bigr), \]

beside \(\lVert u - \theta \rVert\), which depends on the parametrisation, and \(\tfrac12 (u -
\theta)^\top G(\theta)\, (u - \theta)\), which is \(\rho\) to second order.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.tree import all_finite, split, structure
from .._base.types import Params, Scalar
from .._natural.outcome import prepare
from .._problem.composite import Batch, Composite, check_batch, presented, sample_count
from .._rows.pullback import MEMORY, at_point
from ..inverse._base import MoorePenrose
from ..solver import SVD


class Distance(eqx.Module):
    """Three measures of the way from one point to another (or to several: then arrays)."""

    function: Float[Array, "..."]
    """ρ(other, params), in the units of the metric's divergence (nats for a Fisher metric)."""
    quadratic: Float[Array, "..."]
    """½‖other - params‖² in the metric at params: ρ to second order."""
    parameters: Float[Array, "..."]
    """‖other - params‖, Euclidean."""

    def __str__(self) -> str:
        if jnp.ndim(self.function):
            return "\n".join(
                str(Distance(*row))
                for row in zip(self.function, self.quadratic, self.parameters, strict=True)
            )
        return f"as functions {self.function:.6g} (quadratic estimate {self.quadratic:.6g}), parameters {self.parameters:.6g}"


def function_distance(problem: Composite, u: Params, params: Params, batch: Batch) -> Scalar:
    """ρ(u, params), a pure function."""
    batch = presented(problem, batch)
    a, b = problem.outputs(u, batch.inputs), problem.outputs(params, batch.inputs)
    if batch.inputs is None:
        return jnp.asarray(problem.metric.observe(None, jnp.asarray(0)).divergence(a, b))
    moving = [eqx.partition(z, eqx.is_array) for z in (a, b)]
    targets, static = eqx.partition(batch.targets, eqx.is_array)

    def one(u, z, y, index):
        metric = problem.metric.observe(eqx.combine(y, static), index)
        return jnp.asarray(
            metric.divergence(eqx.combine(u, moving[0][1]), eqx.combine(z, moving[1][1]))
        )

    return problem.measure.total(
        jax.vmap(one)(moving[0][0], moving[1][0], targets, jnp.arange(sample_count(a)))
    )


def distance(
    problem: Composite, params: Params, other: Params | Sequence[Params], batch: Any = None
) -> Distance:
    """How far apart two sets of parameters are as functions, in the metric's quadratic estimate,
    and as numbers.

    **Arguments:**

    - `problem`: model, metric (which must have a divergence) and measure.
    - `params`: the point of reference.
    - `other`: another point; or a list of points (a training run), for a curve of all three.
    - `batch`: `(inputs,)` or `(inputs, targets)` to average over, `None` for a model without data.
    """
    problem, params, data, *_ = prepare(problem, params, batch, None, None, None, MEMORY)
    check_batch(problem, params, data)
    if not problem.metric.has_divergence:
        raise ValueError(
            f"{type(problem.metric).__name__} is a metric without a divergence, so that there is no distance of functions. The quadratic "
            "estimate is pullback(problem, params, batch).norm(v)."
        )
    several = isinstance(other, list) and structure(other) != structure(params)
    points = [
        prepare(problem, p, batch, None, None, None, MEMORY)[1]
        for p in (other if several else [other])
    ]
    like = structure(params)
    for point in points:
        if structure(point) != like:
            raise ValueError(
                "other must have the structure, shapes and dtypes of params (or be a list of such trees)."
            )
        if not bool(all_finite(point)):
            raise ValueError("other contains a NaN or an infinity.")
    rows = [_distance(problem, params, point, data) for point in points]
    return (
        Distance(*(jnp.stack(column) for column in zip(*rows, strict=True)))
        if several
        else Distance(*rows[0])
    )


@eqx.filter_jit
def _distance(
    problem: Composite, params: Params, other: Params, data: Batch
) -> tuple[Scalar, Scalar, Scalar]:
    like = structure(params)
    v = like.ravel(other) - like.ravel(params)
    metric = at_point(problem, params, data, MoorePenrose(), SVD())
    quadratic = jnp.sum(metric.mv(v.astype(metric.dtype)) ** 2) / 2
    return function_distance(problem, other, params, data), quadratic, jnp.linalg.norm(v)


def line(params: Params, other: Params, count: int = 21) -> list[Params]:
    """Points on the straight line between two sets of parameters, both ends included; for
    `distance`.

    **Arguments:**

    - `params`, `other`: the ends.
    - `count`: how many points.
    """
    if count < 2:
        raise ValueError(f"line(count={count}): at least both ends.")
    moving, carried = split(params)
    step = lambda t: jax.tree.map(
        lambda a, b: a + jnp.asarray(t, a.dtype) * (b - a), moving, split(other)[0]
    )
    return [eqx.combine(step(t), carried) for t in np.linspace(0.0, 1.0, count)]
