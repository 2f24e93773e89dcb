r"""A condition on a solution: a residual at points of its own."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from .._base.checks import function, integer
from .._base.functions import canonical
from .._base.pairs import like_precision
from .._base.show import settings
from ._box import Box, Face

Value = float | Array | Callable[[Array], Array]
"""A number, an array, or a function of one point."""
Sampler = Callable[[PRNGKeyArray, int], Any]
"""`sampler(key, count)` returns points of shape (count, d)."""


class Domain(eqx.Module):
    """Where an equation holds, for conditions: the box, and whether its first axis is time."""

    box: Box | None
    evolution: bool = eqx.field(static=True)

    def boundary(self, owner: str, where: Any) -> tuple[Box, tuple[Face, ...]]:
        """Return the box and the faces of a condition; by default not those of time."""
        if self.box is None:
            raise ValueError(
                f"{owner}: the domain is a sampler of your own and has no faces; pass where=, a "
                "function (key, count) that returns points on its boundary."
            )
        if where is None:
            spatial = [face for face in self.box.faces if not (self.evolution and face[0] == 0)]
            return self.box, tuple(spatial)
        return self.box, self.box.check(where)


class AbstractCondition(eqx.Module):
    """A condition. To write one, give `sample` and `residual`, and a `name`."""

    name: eqx.AbstractVar[str]

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, domain: Domain) -> PyTree[Array]:
        """Return points, a pytree of arrays with one leading axis.

        **Arguments:**

        - `key`: a PRNG key.
        - `domain`: the box of the equation, if it has one.
        """

    @abc.abstractmethod
    def residual(self, u: Callable[[Array], Array], point: Any) -> Any:
        """Return the residual at one point: a number, a vector, or a tuple of them.

        **Arguments:**

        - `u`: a function of one point.
        - `point`: an entry of what `sample` returned.
        """

    def _at_points(self) -> "AbstractCondition":
        """Return the condition without what only `sample` uses."""
        return self


class Condition(AbstractCondition):
    """A condition of your own: any residual at points on faces, or of a sampler.

    ```python
    robin = pb.pde.Condition(lambda u, x: u(x) + pb.pde.partial(u, x, 0), 50, where=[(0, 1)])
    ```
    """

    function: Callable[[Callable, Array], Any]
    points: int = eqx.field(static=True)
    where: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(
        self,
        residual: Callable[[Callable, Array], Any],
        points: int,
        where: Sequence[Face] | Sampler | None = None,
        name: str = "condition",
    ):
        """Give the residual.

        **Arguments:**

        - `residual`: `residual(u, x)` for a function u and a point x.
        - `points`: the number of points.
        - `where`: as for `Dirichlet`.
        - `name`: what to call the term.
        """
        function("Condition", "residual", residual, "Condition(lambda u, x: u(x) - 1.0, 100)")
        self.function = canonical(residual)
        self.points = integer("Condition", "points", points, 1)
        self.where = as_where(where)
        self.name = name

    def sample(self, key, domain):
        if callable(self.where):
            return points_of("Condition", self.where, key, self.points)
        box, faces = domain.boundary("Condition", self.where)
        return box.boundary(key, self.points, faces)[0]

    def residual(self, u, point):
        return self.function(u, point)


def as_where(where: Any) -> Any:
    """Return faces as a tuple, and a sampler as it is."""
    return canonical(where) if callable(where) or where is None else tuple(where)


def points_of(owner: str, where: Sampler, key: PRNGKeyArray, count: int) -> Array:
    """Return the points of a sampler; raise a `ValueError` unless they are points."""
    found: Any = where(key, count)
    if not eqx.is_array(found) or found.ndim != 2 or found.shape[0] != count:
        shape = f"shape {found.shape}" if eqx.is_array(found) else type(found).__name__
        raise ValueError(
            f"{owner}(where=...): the function (key, count) must return points of shape "
            f"({count}, d), got {shape}."
        )
    return found


def difference(owner: str, found: Array, value: Value, x: Array) -> Array:
    """Return what was found at a point without the value g(x) that is wanted there."""
    wanted = value(x) if callable(value) else jnp.asarray(value)
    if not callable(value) and not jnp.iscomplexobj(wanted):
        wanted = wanted.astype(x.dtype)
    if jnp.shape(wanted) not in ((), jnp.shape(found)):
        raise ValueError(
            f"{owner}: the value at a point has shape {jnp.shape(wanted)}, and that of u is of "
            f"shape {jnp.shape(found)}; choose an entry of a system with component=0."
        )
    return minus(found, wanted)


def minus(found: Array, wanted: Array) -> Array:
    """Return the difference, complex if one of the two is, in the precision of what was found."""
    if jnp.iscomplexobj(wanted):
        kind = like_precision(wanted.dtype, found.dtype)
        return found.astype(kind) - wanted.astype(kind)
    return found - wanted


def entry(u: Callable[[Array], Array], component: int | None) -> Callable[[Array], Array]:
    """Return u, or one entry of it."""
    return u if component is None else lambda y: u(y)[component]


def along(u: Callable[[Array], Array], axis: int) -> Callable[[Array], Array]:
    """Return ∂u/∂x_axis as a function."""
    return lambda y: jax.jvp(u, (y,), (jnp.zeros_like(y).at[axis].set(1.0),))[1]
