r"""Conditions on a solution, each a residual at points of its own.

| condition | residual at a point x |
|---|---|
| `Dirichlet(g)` | \(u(x) - g(x)\) on faces |
| `Neumann(g)` | \(\partial_n u(x) - g(x)\) on faces |
| `Initial(g)` | \(u(x) - g(x)\) at the first time; with `rate`, \(\partial_t u\) too |
| `Periodic(axis)` | \(u(x) - u(x')\), and the derivative along the axis, at opposite faces |
| `Data(x, y)` | \(u(x) - y\) |

`u` is a function of one point; of a system it returns a vector, and `component` selects an entry.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.checks import error, floating, integer
from .._base.functions import canonical
from ._box import Face
from ._condition import (
    AbstractCondition,
    Sampler,
    Value,
    along,
    as_where,
    difference,
    entry,
    minus,
    points_of,
)


class Dirichlet(AbstractCondition):
    """u = g on faces of the box, or at points of your own.

    ```python
    pb.pde.Dirichlet(0.0, 100, where=[(1, 0), (1, 1)])  # both ends of axis 1
    ```
    """

    value: Value
    points: int = eqx.field(static=True)
    where: Any = eqx.field(static=True)
    component: int | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(
        self,
        value: Value,
        points: int,
        where: Sequence[Face] | Sampler | None = None,
        component: int | None = None,
        name: str = "dirichlet",
    ):
        """Choose the values.

        **Arguments:**

        - `value`: g, a number or a function of one point.
        - `points`: the number of points.
        - `where`: faces, pairs of an axis and 0 (lower) or 1 (upper); or a function `(key, count)`
            that returns points. Defaults to all faces, without those of time.
        - `component`: which entry of u, of a system; defaults to all.
        - `name`: what to call the term.
        """
        self.value = canonical(value)
        self.points = integer("Dirichlet", "points", points, 1, "Dirichlet(0.0, 100)")
        self.where = as_where(where)
        self.component = component
        self.name = name

    def sample(self, key, domain):
        if callable(self.where):
            return points_of("Dirichlet", self.where, key, self.points)
        box, faces = domain.boundary("Dirichlet", self.where)
        return box.boundary(key, self.points, faces)[0]

    def residual(self, u, point):
        return difference("Dirichlet", entry(u, self.component)(point), self.value, point)


class Neumann(AbstractCondition):
    """∂u/∂n = g on faces of the box, n the outward normal, or at points of your own."""

    value: Value
    points: int = eqx.field(static=True)
    where: Any = eqx.field(static=True)
    component: int | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(
        self,
        value: Value,
        points: int,
        where: Sequence[Face] | Sampler | None = None,
        component: int | None = None,
        name: str = "neumann",
    ):
        """Choose the slopes.

        **Arguments:**

        - `value`: g, a number or a function of one point.
        - `points`: the number of points.
        - `where`: faces, as for `Dirichlet`; or a function `(key, count)` that returns points and
            their outward normals. Defaults to all faces, without those of time.
        - `component`: which entry of u, of a system; defaults to all.
        - `name`: what to call the term.
        """
        self.value = canonical(value)
        self.points = integer("Neumann", "points", points, 1, "Neumann(0.0, 100)")
        self.where = as_where(where)
        self.component = component
        self.name = name

    def sample(self, key, domain):
        if not callable(self.where):
            box, faces = domain.boundary("Neumann", self.where)
            return box.boundary(key, self.points, faces)
        found: Any = self.where(key, self.points)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(
                "Neumann(where=...): the function must return (points, normals), two arrays of "
                f"shape ({self.points}, d), got {type(found).__name__}."
            )
        return found

    def residual(self, u, point):
        x, normal = point
        slope = jax.jvp(entry(u, self.component), (x,), (normal.astype(x.dtype),))[1]
        return difference("Neumann", slope, self.value, x)


class Initial(AbstractCondition):
    """u = g at the first time; with `rate`, ∂u/∂t = `rate` there too. The first axis is time."""

    value: Value
    points: int = eqx.field(static=True)
    rate: Value | None
    component: int | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(
        self,
        value: Value,
        points: int,
        rate: Value | None = None,
        component: int | None = None,
        name: str = "initial",
    ):
        """Choose the values.

        **Arguments:**

        - `value`: g, a number or a function of one point, time included.
        - `points`: the number of points.
        - `rate`: ∂u/∂t at the start, for equations of second order in time; defaults to none.
        - `component`: which entry of u, of a system; defaults to all.
        - `name`: what to call the term.
        """
        self.value = canonical(value)
        self.points = integer("Initial", "points", points, 1, "Initial(0.0, 100)")
        self.rate = canonical(rate)
        self.component = component
        self.name = name

    def sample(self, key, domain):
        if not domain.evolution:
            raise ValueError(
                "Initial: the equation has no time. Pass Equation(..., evolution=True), whose "
                "first coordinate is time, or use Dirichlet(value, points, where=[(axis, 0)])."
            )
        box, faces = domain.boundary("Initial", ((0, 0),))
        return box.boundary(key, self.points, faces)[0]

    def residual(self, u, point):
        u = entry(u, self.component)
        found = difference("Initial", u(point), self.value, point)
        if self.rate is None:
            return found
        slope = jax.jvp(u, (point,), (jnp.zeros_like(point).at[0].set(1.0),))[1]
        return found, difference("Initial", slope, self.rate, point)


class Periodic(AbstractCondition):
    """u, and its derivatives along an axis, agree at both ends of the axis."""

    axis: int = eqx.field(static=True)
    points: int = eqx.field(static=True)
    derivatives: int = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(self, axis: int, points: int, derivatives: int = 1, name: str = "periodic"):
        """Choose the axis.

        **Arguments:**

        - `axis`: the axis whose ends are identified.
        - `points`: the number of pairs of points.
        - `derivatives`: up to which order derivatives agree; 0 for u alone.
        - `name`: what to call the term.
        """
        self.axis = integer("Periodic", "axis", axis, 0)
        self.points = integer("Periodic", "points", points, 1, "Periodic(1, points=100)")
        self.derivatives = integer("Periodic", "derivatives", derivatives, 0)
        self.name = name

    def sample(self, key, domain):
        box, faces = domain.boundary("Periodic", ((self.axis, 0),))
        low = box.boundary(key, self.points, faces)[0]
        return low, low.at[:, self.axis].set(box.upper[self.axis])

    def residual(self, u, point):
        low, high = point
        found, derivative = [], u
        for _ in range(self.derivatives + 1):
            found.append(derivative(low) - derivative(high))
            derivative = along(derivative, self.axis)
        return tuple(found)


class Data(AbstractCondition):
    """u = y at given points x, e.g. measurements."""

    x: Float[Array, "n d"]
    y: Float[Array, "n ..."]
    points: int | None = eqx.field(static=True)
    component: int | None = eqx.field(static=True)
    name: str = eqx.field(static=True)

    def __init__(
        self,
        x: Float[Array, "n d"],
        y: Float[Array, "n ..."],
        points: int | None = None,
        component: int | None = None,
        name: str = "data",
    ):
        """Give the data.

        **Arguments:**

        - `x`: the points, one per row.
        - `y`: the values, one per point.
        - `points`: how many of them, drawn at random, in every step; defaults to all.
        - `component`: which entry of u, of a system; defaults to all.
        - `name`: what to call the term.
        """
        self.x = floating("Data", "x", x, 2)
        self.y = jnp.asarray(y)
        if self.y.ndim < 1 or self.y.shape[0] != self.x.shape[0]:
            wanted = f"one value for each of the {self.x.shape[0]} points"
            raise error("Data", "y", self.y, wanted, "Data(x, y) with len(x) == len(y)")
        if points is not None:
            integer("Data", "points", points, 1, "Data(x, y, points=100)")
            if points > self.x.shape[0]:
                raise error("Data", "points", points, f"at most {self.x.shape[0]}")
        self.points = points
        self.component = component
        self.name = name

    def sample(self, key, domain):
        if self.points is None:
            return self.x, self.y
        chosen = jax.random.choice(key, self.x.shape[0], (self.points,), replace=False)
        return self.x[chosen], self.y[chosen]

    def _at_points(self):
        return eqx.tree_at(lambda data: (data.x, data.y), self, (None, None))

    def residual(self, u, point):
        x, y = point
        found = entry(u, self.component)(x)
        if jnp.shape(found) != jnp.shape(y):
            raise ValueError(
                f"Data: u(x) has shape {jnp.shape(found)} and y has shape {jnp.shape(y)} at a "
                "point; choose an entry of a system with Data(x, y, component=0)."
            )
        return minus(found, y if jnp.iscomplexobj(y) else y.astype(found.dtype))
