r"""The rows of one sample of a holomorphic model: \(J(\mathrm{i}\delta) = \mathrm{i}J(\delta)\)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.pairs import with_turned
from .._base.tree import Structure
from .._base.types import Outputs, OutputVector, Params


def turned_block(
    block: Callable[..., Float[Array, "h P"]],
    function: Callable[[Params], Outputs],
    like: Structure,
    push: Callable[[OutputVector], Float[Array, " q"]],
) -> Float[Array, "q P"]:
    """Wᵀ J of a holomorphic function, by pulls of real parts: J of i dz is i J.

    `block` is that of `linearise.py` at a point, `like` the structure of the outputs, all pairs.
    """
    real = lambda w: like.unravel(jnp.stack([w, jnp.zeros_like(w)], axis=-1).ravel())
    rows = with_turned(block(function, like.ravel, real, like.size // 2))
    return jax.vmap(lambda v: push(like.unravel(v)), in_axes=1, out_axes=1)(rows)
