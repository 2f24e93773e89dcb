"""Points in the unit box and on its faces, uniformly at random."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray


def interior(key: PRNGKeyArray, count: int, dimension: int) -> Float[Array, "n d"]:
    """Points inside the box.

    **Arguments:**

    - `key`: a PRNG key.
    - `count`: the number of points.
    - `dimension`: the dimension of the box.
    """
    return jax.random.uniform(key, (count, dimension))


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
    inside, which = jax.random.split(key)
    faces = jnp.asarray(
        [
            (axis, side)
            for axis in range(dimension)
            for side in (0, 1)
            if not (evolution and axis == 0 and side == 1)
        ]
    )
    axis, side = faces[jax.random.randint(which, (count,), 0, faces.shape[0])].T
    points = jax.random.uniform(inside, (count, dimension))
    return jnp.where(
        jnp.arange(dimension)[None, :] == axis[:, None], side[:, None].astype(points.dtype), points
    )


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
