r"""Derivatives of a network with respect to its *inputs*, by forward mode.

A second derivative along one direction costs about three evaluations of the network and stores no
intermediates. The one reverse pass is that with respect to the parameters. Nested reverse modes
would store every intermediate of every level.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import shown
from .._base.types import Scalar

Field = Callable[[Float[Array, " d"]], Scalar]
"""A scalar function of one point."""


def partial(u: Field, x: Float[Array, " d"], axis: int) -> Scalar:
    """∂u/∂x_axis.

    **Arguments:**

    - `u`: a function of one point.
    - `x`: the point.
    - `axis`: the index of the coordinate.
    """
    return jax.jvp(u, (x,), (jnp.zeros_like(x).at[axis].set(1.0),))[1]


def second(u: Field, x: Float[Array, " d"], v: Float[Array, " d"]) -> Scalar:
    """∂²u/∂v², the second derivative along a direction.

    **Arguments:**

    - `u`: a function of one point.
    - `x`: the point.
    - `v`: the direction.
    """
    if jnp.shape(v) != jnp.shape(x):
        raise ValueError(
            f"second(v={shown(v)}): v must be a direction of shape {jnp.shape(x)}; for the second "
            "derivative along an axis use laplacian(u, x, [axis])."
        )
    v = jnp.asarray(v, x.dtype)
    first = lambda y: jax.jvp(u, (y,), (v,))[1]
    return jax.jvp(first, (x,), (v,))[1]


def laplacian(u: Field, x: Float[Array, " d"], axes: Sequence[int] | None = None) -> Scalar:
    """Σ ∂²u/∂x_i², the Laplacian.

    **Arguments:**

    - `u`: a function of one point.
    - `x`: the point.
    - `axes`: the indices of the coordinates to sum over; defaults to all.
    """
    axes = range(x.shape[0]) if axes is None else axes
    directions = jnp.eye(x.shape[0], dtype=x.dtype)[jnp.asarray(list(axes))]
    return jnp.sum(jax.vmap(lambda v: second(u, x, v))(directions))
