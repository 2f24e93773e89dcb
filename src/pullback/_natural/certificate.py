r"""Certificates: the residual of a solution, recomputed with products of \(A\), whoever's solver it was.

With \(g = A^\top r + g_x\), a solution \(\eta\) is certified by the equation that defines it:

- damped: \(\|g - G\eta - λ\eta\| / \|g\|\);
- damped afterwards, on what a pseudo-inverse keeps, with \(\Pi\) the projection on that: the larger
  of \(\|\Pi(g - G\eta - λ\eta)\| / \|\Pi g\|\) and \(\|(I - \Pi)(\eta - g_x/λ)\| / \|\eta\|\),
  where \(g_x/λ\) is absent for λ = 0;
- a pseudo-inverse that drops nothing: \(\|A^\top(r - A\eta)\| / \|A^\top r\|\), and if there is a
  \(g_x\), which may lie outside the range, \(\|A(g - G\eta)\| / \|A g\|\);
- a pseudo-inverse that drops singular values, with \(\Pi\) the projection on what is kept: the
  larger of \(\|\Pi(g - G\eta)\| / \|\Pi g\|\) and \(\|\eta - \Pi\eta\| / \|\eta\|\);
- any other filter: \(\eta = h(G) g\) has no equation, so the decomposition behind the factors is
  used, and tested: with \(w = V^\top\eta\), the largest of \(\|w - h(s)\,V^\top g\|\), of \(\|G V w
  - V s^2 w\|/s_{\max}^2\) and of \(\|(I - VV^\top)\eta - h_0 (I - VV^\top) g\|\), relative to
  \(\|\eta\|\).

NaN if the factors have no projection or no decomposition: such an answer cannot be certified.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, Scalar
from .._rows.rows import Rows
from ..inverse._base import AbstractInverse, respond
from ..solver._base import AbstractDecomposition, AbstractFactors
from ..solver._redamped import inverse_damping


def certify(
    rows: Rows,
    inverse: AbstractInverse,
    factors: AbstractFactors,
    damping: Scalar | None,
    eta: Flat,
    r: Float[Array, " m"],
    g: Flat | None,
) -> Scalar:
    """Return the relative residual of a solution for r (with its grading) and g."""
    norm = jnp.linalg.norm
    pulled = rows.rmv(r)
    total = pulled if g is None else pulled + g
    left = rows.rmv(r - rows.mv(eta))
    left = left if g is None else left + g
    if damping is not None:
        rest = left - damping * eta
        if inverse.damping is not None:
            return relative(norm(rest), norm(total))
        if factors.knows_row_space:
            kept = relative(norm(factors.project(rest)), norm(factors.project(total)))
            outside = eta - factors.project(eta)
            if g is not None:
                outside = outside - inverse_damping(damping) * (g - factors.project(g))
            return jnp.maximum(kept, relative(norm(outside), norm(eta)))
        # λ = 0 is the pseudo-inverse, for which what is left outside the range is no residual.
        undamped = relative(norm(rows.mv(left)), norm(rows.mv(total)))
        return jnp.where(damping > 0, relative(norm(rest), norm(total)), undamped)
    if inverse.pseudo_inverse and inverse.truncates:
        if not factors.knows_row_space:
            return jnp.asarray(jnp.nan, eta.dtype)
        kept = relative(norm(factors.project(left)), norm(factors.project(total)))
        return jnp.maximum(kept, relative(norm(eta - factors.project(eta)), norm(eta)))
    if inverse.pseudo_inverse:
        if g is None:
            return relative(norm(left), norm(total))
        # What is left outside the range is no residual: use what A sees of it.
        return relative(norm(rows.mv(left)), norm(rows.mv(total)))
    decomposition = factors.decomposition
    if decomposition is None:
        return jnp.asarray(jnp.nan, eta.dtype)
    return _spectral(rows, inverse, decomposition, eta, total)


def _spectral(
    rows: Rows,
    inverse: AbstractInverse,
    decomposition: AbstractDecomposition,
    eta: Flat,
    g: Flat,
) -> Scalar:
    norm = jnp.linalg.norm
    s = decomposition.s
    top = jnp.max(s, initial=0.0)
    h = respond(inverse, s, rows.shape, decomposition.resolution).h
    w, v = decomposition.coordinates(eta), decomposition.coordinates(g)
    expected = h * v
    inside, kernel = decomposition.combine(w), jnp.asarray(inverse.kernel, eta.dtype)
    outside = (eta - inside) - kernel * (g - decomposition.combine(v))
    eigen = rows.rmv(rows.mv(inside)) - decomposition.combine(s * s * w)
    size = norm(eta)
    parts = jnp.stack(
        [
            relative(norm(w - expected), norm(expected)),
            relative(norm(outside), size),
            relative(norm(eigen), top * top * size),
        ]
    )
    return jnp.max(parts)


def relative(a: Scalar, b: Scalar) -> Scalar:
    """Return a/b of two norms, and a itself if b is zero."""
    return a / jnp.where(b > 0, b, 1.0)
