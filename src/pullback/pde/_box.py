r"""A box, \(\prod_i [a_i, b_i]\), and its faces, as samplers of uniform points."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._base.checks import error
from .._base.show import settings

Face = tuple[int, int]
"""An axis, and 0 for its lower or 1 for its upper end."""


class Box(eqx.Module):
    """A box as a domain: `Box([0.0, -1.0], [1.0, 1.0])` is [0, 1] × [-1, 1].

    Called with a key and a number it returns uniform points inside, as any domain does.
    """

    lower: tuple[float, ...] = eqx.field(static=True)
    upper: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, lower: Sequence[float], upper: Sequence[float]):
        """Choose the corners.

        **Arguments:**

        - `lower`, `upper`: the least and the largest value of each coordinate.
        """
        low, high = np.atleast_1d(np.asarray(lower, float)), np.atleast_1d(np.asarray(upper, float))
        wanted = "two corners of one length, lower below upper, finite"
        if low.ndim != 1 or low.shape != high.shape or not low.size:
            raise error("Box", "lower, upper", (lower, upper), wanted, "Box([0.0], [1.0])")
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
            raise error("Box", "lower, upper", (lower, upper), wanted, "Box([0.0], [1.0])")
        self.lower = tuple(low.tolist())
        self.upper = tuple(high.tolist())

    def __repr__(self) -> str:
        return settings(self, first=True)

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        return len(self.lower)

    @property
    def faces(self) -> tuple[Face, ...]:
        """All faces, each an axis and 0 for its lower or 1 for its upper end."""
        return tuple((axis, side) for axis in range(self.dimension) for side in (0, 1))

    def __call__(self, key: PRNGKeyArray, count: int) -> Float[Array, "n d"]:
        """Return uniform points inside.

        **Arguments:**

        - `key`: a PRNG key.
        - `count`: the number of points.
        """
        return self._scaled(jax.random.uniform(key, (count, self.dimension)))

    def boundary(
        self, key: PRNGKeyArray, count: int, faces: Sequence[Face] | None = None
    ) -> tuple[Float[Array, "n d"], Float[Array, "n d"]]:
        """Return points on faces, all faces with equal probability, and their outward normals.

        **Arguments:**

        - `key`: a PRNG key.
        - `count`: the number of points.
        - `faces`: which faces; defaults to all.
        """
        chosen = jnp.asarray(self.check(self.faces if faces is None else faces))
        inside, which = jax.random.split(key)
        axis, side = chosen[jax.random.randint(which, (count,), 0, chosen.shape[0])].T
        points = jax.random.uniform(inside, (count, self.dimension))
        on_axis = jnp.arange(self.dimension)[None, :] == axis[:, None]
        points = jnp.where(on_axis, side[:, None].astype(points.dtype), points)
        outward = (2 * side - 1).astype(points.dtype)[:, None]
        return self._scaled(points), jnp.where(on_axis, outward, 0.0)

    def check(self, faces: Any) -> tuple[Face, ...]:
        """Return faces; raise a `ValueError` unless each is one of this box.

        **Arguments:**

        - `faces`: pairs of an axis and 0 or 1.
        """
        try:
            found = tuple((int(axis), int(side)) for axis, side in faces)
        except (TypeError, ValueError):
            found = ()
        if not found or any(face not in self.faces for face in found):
            wanted = f"some of {self.faces}, an axis and 0 (lower) or 1 (upper)"
            raise error("Box.boundary", "faces", faces, wanted, "faces=[(0, 0)]")
        return found

    def _scaled(self, unit: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Return points of the unit box, stretched to this one; ends are exact."""
        low, high = (jnp.asarray(x, unit.dtype)[None, :] for x in (self.lower, self.upper))
        return jnp.where(unit == 1, high, low + (high - low) * unit)
