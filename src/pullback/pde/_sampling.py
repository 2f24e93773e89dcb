"""Points in the unit box and on its faces, uniformly at random."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ._box import Box


def interior(key: PRNGKeyArray, count: int, dimension: int) -> Float[Array, "n d"]:
    """Points inside the box.

    **Arguments:**

    - `key`: a PRNG key.
    - `count`: the number of points.
    - `dimension`: the dimension of the box.
    """
    return unit(dimension)(key, count)


def boundary(
    key: PRNGKeyArray, count: int, dimension: int, evolution: bool = False
) -> Float[Array, "n d"]:
    """Points on the faces of the box, all faces with equal probability.

    **Arguments:**

    - `key`: a PRNG key.
    - `count`: the number of points.
    - `dimension`: the dimension of the box.
    - `evolution`: whether the first coordinate is time, whose last face, t = 1, is no boundary.
    """
    box = unit(dimension)
    faces = [face for face in box.faces if not (evolution and face == (0, 1))]
    return box.boundary(key, count, faces)[0]


def collocation(
    key: PRNGKeyArray, inside: int, border: int, dimension: int, evolution: bool = False
) -> tuple[Float[Array, "N d"], Bool[Array, " N"]]:
    """Points inside and on the boundary, and which of them are inside.

    **Arguments:**

    - `key`: a PRNG key.
    - `inside`, `border`: the numbers of points inside and on the boundary.
    - `dimension`: the dimension of the box.
    - `evolution`: whether the first coordinate is time, as for `boundary`.
    """
    one, two = jax.random.split(key)
    points = jnp.concatenate(
        [interior(one, inside, dimension), boundary(two, border, dimension, evolution)]
    )
    return points, jnp.arange(inside + border) < inside


def unit(dimension: int) -> Box:
    """Return the unit box of a dimension."""
    return Box([0.0] * dimension, [1.0] * dimension)
