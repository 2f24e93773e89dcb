r"""The derivative of a natural gradient, whatever solver found it.

In orthonormal coordinates of the gauge \(\eta = h(G)\,g\) with \(G = A^\top A\) and \(g = A^\top r
+ g_x\). Let \(\Pi\) be the projection on the row space of \(A\), \(\rho = r - A\eta\), \(t =
A\,h(G)\,\eta\), \(n = (I - \Pi) g_x\). At constant rank (Golub and Pereyra, 1973)

\[ d\eta = A^+(dr - dA\,\eta) + h(G)\,(dA^\top \rho + dg_x) + (I - \Pi)\,dA^\top t + h(G)\,A^+ dA\,
n \]

for the Moore-Penrose inverse. For a damped one the last two terms are absent, and
\(-h(G)\,\eta\,dλ\) joins. Only products with the derivative of \(A\) and the factors at hand
enter; no decomposition is differentiated (theirs have poles where singular values coincide).

Solvers branch on their right-hand side, so JAX cannot transpose them. Their transposes are known:
\(h(G)\) and \(\Pi\) are symmetric, and that of \(r \mapsto h(G)\,A^\top r\) is \(v \mapsto
A\,h(G)\,v\). The factors are constants, so a second derivative would be wrong, and is refused.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat
from .._rows.rows import AbstractRows
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractFactors

SECOND = (
    "second derivatives of a natural gradient are not implemented: the factorisation is a constant "
    "of the first derivative. Use differences of first derivatives."
)


def stop(tree):
    """Return the tree as a constant for differentiation."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


@eqx.filter_custom_jvp
def with_derivative(
    eta: Flat,
    rows: AbstractRows,
    inverse: AbstractInverse,
    r: Float[Array, " m"],
    g: Flat,
    *,
    factors: AbstractFactors,
) -> Flat:
    """Return the solution η, a constant, with the derivative above; the factors are constants."""
    return eta


@with_derivative.def_jvp
def _with_derivative_jvp(primals, tangents, *, factors):
    eta, rows, inverse, r, g = primals
    _, d_rows, d_inverse, d_r, d_g = tangents
    if not inverse.differentiable:
        raise NotImplementedError(
            f"the natural gradient with {type(inverse).__name__} is not differentiated: where a "
            "truncation cuts is not smooth, and the derivative of another filter is not known. Use "
            "MoorePenrose(rtol=...) or Tikhonov(damping)."
        )
    undamped = inverse.damping is None
    residual = rows.scale * (r - rows.unit_mv(eta))
    image = rows.mv(factors.solve_covector(eta))
    outside = g - factors.project(g)
    fixed = stop(rows)
    covector = lambda g: _symmetric(factors.solve_covector, g, (rows, inverse))
    project = lambda g: _symmetric(factors.project, g, (rows, inverse))
    pushed = lambda v: fixed.scale * fixed.mv(factors.solve_covector(v))
    solve = lambda r: factors.solve_lifted(r)  # a function can be hashed, a method with tracers not
    lifted = lambda r: _rectangular(solve, pushed, r, eta, (rows, inverse))

    def products(rows, r):
        unit = jnp.where(rows.active, r - rows.unit_mv(eta), 0.0)
        return (
            unit,
            jnp.where(rows.active, rows.log_scale, 0.0),
            rows.rmv(residual),
            rows.rmv(image) if undamped else None,
            rows.unit_mv(outside) if undamped else None,
        )

    (unit, *_), found = eqx.filter_jvp(products, (rows, r), (d_rows, d_r))
    d_unit, d_log, d_pull, d_image, d_outside = found

    def or_zero(tangent, like):
        return jnp.zeros_like(like) if tangent is None else tangent

    d_eta = lifted(or_zero(d_unit, unit) + or_zero(d_log, unit) * unit)
    d_eta = d_eta + covector(or_zero(d_pull, eta) + or_zero(d_g, eta))
    if undamped:
        d_image = or_zero(d_image, eta)
        d_eta = d_eta + (d_image - project(d_image))
        d_eta = d_eta + covector(lifted(or_zero(d_outside, unit)))
    else:
        _, d_damping = eqx.filter_jvp(lambda i: i.damping, (inverse,), (d_inverse,))
        if d_damping is not None:
            d_eta = d_eta - factors.solve_covector(eta) * jnp.asarray(d_damping, eta.dtype)
    return eta, d_eta


@eqx.filter_custom_jvp
def pushed(d: Flat, given: AbstractRows, *, rows: AbstractRows) -> Float[Array, " m"]:
    """Return Â d from rows that are constants, with the derivative of those they were made of."""
    return rows.unit_push(d)


@pushed.def_jvp
def _pushed_jvp(primals, tangents, *, rows):
    _, tangent = eqx.filter_jvp(lambda d, given: given.unit_push(d), primals, tangents)
    image = rows.unit_push(primals[0])
    return image, jnp.zeros_like(image) if tangent is None else tangent


def _symmetric(solve: Callable[[Any], Any], x: Any, made_of: Any) -> Any:
    """Return solve(x) of a symmetric map, transposed as such and refused a second derivative."""
    leaves = eqx.filter(made_of, eqx.is_inexact_array)
    # JAX would differentiate the map whose inverse `solve` is, and nothing else.
    matvec = lambda x: once(x, leaves, SECOND)
    return jax.lax.custom_linear_solve(matvec, x, lambda _, x: solve(x), symmetric=True)


def _rectangular(
    solve: Callable[[Array], Array],
    transpose: Callable[[Array], Array],
    x: Array,
    like: Array,
    made_of: Any,
) -> Array:
    """Return solve(x), shaped like `like`, of a map S with a known transpose.

    With its transpose it is a symmetric map of pairs, one below the other: (x, y) to (Sᵀy, Sx).
    """
    count = x.shape[0]

    def both(pair):
        x, y = pair[:count], pair[count:]
        # One of the two is zero: y in a derivative, x in its transpose.
        back = jax.lax.cond(jnp.any(y != 0), transpose, lambda _: jnp.zeros_like(x), y)
        there = jax.lax.cond(jnp.any(x != 0), solve, lambda _: jnp.zeros_like(y), x)
        return jnp.concatenate([back, there])

    return _symmetric(both, jnp.pad(x, (0, like.shape[0])), made_of)[count:]


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def once(x: Any, made_of: Any, what: str) -> Any:
    """Return x; raise a `NotImplementedError` if x, or what it is made of, is differentiated."""
    return x


@once.defjvp
def _once_jvp(what, primals, tangents):
    raise NotImplementedError(what)
