r"""Derivatives of a network with respect to its *inputs*, by forward mode: \(\partial_v u\),
\(\partial_{vv} u\), \(\Delta u\).

A direction costs about three evaluations of the network and keeps nothing for a way back; the one
reverse pass that follows is that with respect to the parameters. Nesting reverse modes instead
would store every intermediate of every level.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Scalar

Field = Callable[[Float[Array, " d"]], Scalar]
"""A scalar function of one point."""


def partial(u: Field, x: Float[Array, " d"], axis: int) -> Scalar:
    """∂u/∂x_axis.

    **Arguments:**

    - `u`: a function of one point.
    - `x`: the point.
    - `axis`: which coordinate.
    """
    return jax.jvp(u, (x,), (jnp.zeros_like(x).at[axis].set(1.0),))[1]


def second(u: Field, x: Float[Array, " d"], v: Float[Array, " d"]) -> Scalar:
    """∂²u/∂v², along a direction.

    **Arguments:**

    - `u`: a function of one point.
    - `x`: the point.
    - `v`: the direction.
    """
    first = lambda y: jax.jvp(u, (y,), (v,))[1]
    return jax.jvp(first, (x,), (v,))[1]


def laplacian(u: Field, x: Float[Array, " d"], axes: Sequence[int] | None = None) -> Scalar:
    """Σ ∂²u/∂x_i².

    **Arguments:**

    - `u`: a function of one point.
    - `x`: the point.
    - `axes`: over which coordinates; all of them if left out.
    """
    axes = range(x.shape[0]) if axes is None else axes
    directions = jnp.eye(x.shape[0], dtype=x.dtype)[jnp.asarray(list(axes))]
    return jnp.sum(jax.vmap(lambda v: second(u, x, v))(directions))
