r"""Derivatives of a network with respect to its *inputs*, all of them in one forward pass.

`propagate` carries the value, the first derivatives along k directions and one sum of second
derivatives through the program of \(u\): k + 2 rows in every matrix product, where second
derivatives one by one need 2k + 1. The one reverse pass is that with respect to the parameters.

The value and the rows of a direction are the same arrays in every function below, so that `u(x)`,
`partial(u, x, 0)` and `laplacian(u, x, [1, 2])` in one residual are computed once. A derivative of
a derivative is a derivative of another program: \(\Delta^2 u\) is
`laplacian(lambda y: laplacian(u, y), x)`.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._base.checks import error, is_concrete, shown
from .._base.types import Scalar
from .._compat.jaxpr import trace
from ._propagate import Series, propagate

Field = Callable[[Float[Array, " d"]], Scalar]
"""A scalar function of one point."""


class Jet(NamedTuple):
    """What one pass through a function gives."""

    value: PyTree
    """u."""
    gradient: PyTree
    """∂u, the coordinates last."""
    laplacian: PyTree
    """Δu."""


def jet(u: Callable, x: Float[Array, " d"], axes: Sequence[int] | None = None) -> Jet:
    """The value, the gradient and the Laplacian, in one pass.

        u, (ut, ux), uxx = jet(u, x, axes=[1])

    **Arguments:**

    - `u`: a function of one point, of scalars or arrays.
    - `x`: the point.
    - `axes`: the coordinates of the Laplacian, without repetition; defaults to all. The gradient
        has all of them.
    """
    x = _point("jet", x)
    chosen = _axes("jet", x, axes)
    order = [*chosen, *(axis for axis in range(x.size) if axis not in chosen)]
    found = _pass(u, x, _rows(x, order), len(chosen))
    back = np.argsort(order)
    return Jet(
        _each(found, lambda s: s.value),
        _each(found, lambda s: jnp.moveaxis(s.first[back], 0, -1)),
        _each(found, _second),
    )


def gradient(u: Callable, x: Float[Array, " d"]) -> PyTree:
    """∂u/∂x_i for all coordinates i, which are the last axis of the result.

    **Arguments:**

    - `u`: a function of one point, of scalars or arrays.
    - `x`: the point.
    """
    x = _point("gradient", x)
    found = _pass(u, x, _rows(x, range(x.size)), 0)
    return _each(found, lambda s: jnp.moveaxis(s.first, 0, -1))


def partial(u: Callable, x: Float[Array, " d"], axis: int) -> PyTree:
    """∂u/∂x_axis.

    **Arguments:**

    - `u`: a function of one point, of scalars or arrays.
    - `x`: the point.
    - `axis`: the index of the coordinate.
    """
    x = _point("partial", x)
    if is_concrete(axis):
        rows = _rows(x, _axes("partial", x, [axis], name="axis"))
    else:
        rows = (jnp.arange(x.size) == axis).astype(x.dtype)[None]
    return _each(_pass(u, x, rows, 0), lambda s: s.first[0])


def second(u: Callable, x: Float[Array, " d"], v: Float[Array, " d"]) -> PyTree:
    """∂²u/∂v², the second derivative along a direction.

    **Arguments:**

    - `u`: a function of one point, of scalars or arrays.
    - `x`: the point.
    - `v`: the direction.
    """
    x = _point("second", x)
    return _each(_pass(u, x, _direction("second", x, v), 1), _second)


def laplacian(u: Callable, x: Float[Array, " d"], axes: Sequence[int] | None = None) -> PyTree:
    """Σ ∂²u/∂x_i², the Laplacian; of a function of arrays, that of each entry.

    **Arguments:**

    - `u`: a function of one point, of scalars or arrays.
    - `x`: the point.
    - `axes`: the indices of the coordinates to sum over, without repetition; defaults to all.
    """
    x = _point("laplacian", x)
    chosen = _axes("laplacian", x, axes)
    return _each(_pass(u, x, _rows(x, chosen), len(chosen)), _second)


def divergence(u: Callable, x: Float[Array, " d"]) -> Scalar:
    """Σ ∂u_i/∂x_i of a vector field.

    **Arguments:**

    - `u`: a function of one point that returns as many numbers as the point has coordinates.
    - `x`: the point.
    """
    x = _point("divergence", x)
    found = jax.eval_shape(u, x)
    if getattr(found, "shape", None) != x.shape:
        raise ValueError(
            f"divergence(u): u(x) must have the shape {x.shape} of the point, not "
            f"{getattr(found, 'shape', found)}; for the divergence of a gradient use laplacian."
        )
    return jnp.trace(gradient(u, x))


def hessian_vector(u: Callable, x: Float[Array, " d"], v: Float[Array, " d"]) -> PyTree:
    """Σ_j ∂²u/∂x_i∂x_j v_j for all coordinates i, which are the last axis of the result.

    **Arguments:**

    - `u`: a function of one point, of scalars or arrays.
    - `x`: the point.
    - `v`: the vector.
    """
    x = _point("hessian_vector", x)
    rows = _direction("hessian_vector", x, v)
    return gradient(lambda y: _each(_pass(u, y, rows, 0), lambda s: s.first[0]), x)


def _pass(u: Callable, x: Array, rows: Array | np.ndarray, summed: int) -> PyTree:
    """The results of u, each a `Series` along the rows."""
    kept = []

    def leaves(x):
        found, tree = jax.tree.flatten(u(x))
        kept[:] = [tree]
        return [jnp.asarray(leaf) for leaf in found]

    program = trace(leaves, x)
    outs = propagate(program, [Series(x, jnp.asarray(rows), None)], summed)
    k = rows.shape[0]
    still = lambda a: Series(a, jnp.zeros((k, *jnp.shape(a)), jnp.result_type(a, x)), None)
    found = [out if isinstance(out, Series) else still(jnp.asarray(out)) for out in outs]
    return jax.tree.unflatten(kept[0], found)


def _each(found: PyTree, read: Callable[[Series], Any]) -> PyTree:
    """One part of every result."""
    return jax.tree.map(read, found, is_leaf=lambda s: isinstance(s, Series))


def _second(series: Series) -> Array:
    """The sum of second derivatives."""
    return jnp.zeros_like(series.first[:1].sum(0)) if series.second is None else series.second


def _rows(x: Array, axes: Sequence[int]) -> np.ndarray:
    """Unit vectors, in NumPy: those of two passes are seen to be equal."""
    return np.eye(x.size, dtype=x.dtype)[list(axes)]


def _point(owner: str, x: Any) -> Array:
    """The point; raises a `ValueError` unless it is one."""
    found = jnp.asarray(x)
    if found.ndim != 1 or not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(
            f"{owner}(x={shown(x)}): x must be one point, a floating array of shape (d,). For a "
            f"batch of points: jax.vmap(lambda x: {owner}(u, x))(points); for a function of one "
            "number: x[None]."
        )
    return found


def _direction(owner: str, x: Array, v: Any) -> Array:
    """A direction as the one row of a pass; raises a `ValueError` unless it is like the point."""
    if jnp.shape(v) != x.shape:
        raise ValueError(
            f"{owner}(v={shown(v)}): v must be a direction of shape {x.shape}; for the second "
            "derivative along an axis use laplacian(u, x, [axis])."
        )
    return jnp.asarray(v).astype(x.dtype)[None]


def _axes(owner: str, x: Array, axes: Any, name: str = "axes") -> list[int]:
    """The indices of coordinates; raises a `ValueError` unless they are, each once."""
    if axes is None:
        return list(range(x.size))
    given = axes[0] if name == "axis" else axes
    wanted = (
        f"one of the {x.size} coordinates"
        if name == "axis"
        else (f"different coordinates of the {x.size}")
    )
    example = f"{owner}(u, x, {'0' if name == 'axis' else '[0]'})"
    try:
        found = [operator.index(axis) for axis in axes]
    except TypeError:
        raise error(owner, name, given, wanted, example) from None
    inside = all(-x.size <= axis < x.size for axis in found)
    found = [axis % x.size for axis in found] if inside else found
    if not inside or len(set(found)) != len(found):
        raise error(owner, name, given, wanted, example)
    return found
