r"""How near a block-diagonal metric comes: the angle of its solution to the natural gradient.

Let \(\delta = (G + λ)^{-1} g\) be the natural gradient (λ = 0: the pseudo-inverse) and \(\delta_B\)
the solution with the diagonal blocks of \(G\). In the metric \(G + λ\)

\[ \cos(\delta_B, \delta) = \frac{g^\top\delta_B}{\sqrt{\|A\delta_B\|^2 + λ\|\delta_B\|^2}\,
\sqrt{g^\top\delta}} . \]

Everything but \(g^\top\delta\) is known without \(\delta\). For \(g = A^\top r + g_x\)

\[ \sqrt{g^\top\delta} \le \|r\| + \|g_x\|/\sqrt{λ} \quad\text{and}\quad \sqrt{g^\top\delta} \le
\|g\|/\sqrt{λ} , \]

and the smaller of the two gives a lower bound of the cosine. Undamped and with \(g_x = 0\) it is
the cosine of the angle between \(A\delta_B\) and \(r\), exact where the Jacobian is onto.
\(\cos^2\) is the fraction of the predicted decrease of the loss that the best step along
\(\delta_B\) keeps.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, Scalar
from .._base.vector import norm
from .certificate import tolerance
from .factorised import Factorised


def alignment(
    factorised: Factorised,
    vector: Flat,
    image: Float[Array, " m"],
    r: Float[Array, " m"] | None,
    g: Flat | None,
) -> Scalar:
    """Return the cosine, or a lower bound; 1 for G itself, NaN where neither is known.

    `image` is A η of the solution; `r` and `g` are the right-hand sides as `solve` takes them.
    """
    one = jnp.ones((), image.dtype)
    if not factorised.blocks:
        return one
    rows, damping = factorised.rows, factorised.damping
    eta = rows.from_params(vector)
    damping = jnp.zeros_like(one) if damping is None else damping
    whole = factorised.whole
    if whole is not None:
        best = whole.solve(r, g)
        other = rows.from_params(best)
        seen = rows.mv(other)
        inner = jnp.vdot(image, seen) + damping * jnp.vdot(eta, other)
        certified = whole.residual(best, r, g) <= tolerance(one.dtype)
        size = jnp.where(certified, _length(seen, other, damping), jnp.nan)
    else:
        lifted, outside = factorised.graded(r), factorised.scaled(g)
        total = rows.rmv(lifted) if outside is None else rows.rmv(lifted) + outside
        inner, size = jnp.vdot(total, eta), _bound(factorised, lifted, outside, total, damping)
    lengths = _length(image, eta, damping) * size
    found = jnp.clip(inner / jnp.where(lengths > 0, lengths, 1.0), -1.0, 1.0)
    # Nothing to solve for is solved by both alike.
    found = jnp.where((lengths == 0) & (inner == 0), 1.0, found)
    return jnp.where(jnp.isnan(lengths), jnp.nan, found)


def _length(image: Array, eta: Flat, damping: Scalar) -> Scalar:
    """Return the length of a vector in the metric G + λ."""
    return jnp.hypot(norm(image), jnp.sqrt(damping) * norm(eta))


def _bound(
    factorised: Factorised, r: Array, g: Flat | None, total: Flat, damping: Scalar
) -> Scalar:
    """Return an upper bound of the length of the natural gradient; NaN where there is none."""
    inverse = factorised.inverse
    if inverse.damping is None and (inverse.truncates or not inverse.pseudo_inverse):
        # What of g such a filter keeps is not known without the decomposition of A.
        return jnp.full_like(damping, jnp.nan)
    root = jnp.where(damping > 0, jnp.sqrt(damping), 1.0)
    bound = norm(r)
    if g is not None:
        outside = norm(g)
        unknown = jnp.where(outside > 0, jnp.nan, 0.0)
        bound = bound + jnp.where(damping > 0, outside / root, unknown)
    return jnp.where(damping > 0, jnp.minimum(bound, norm(total) / root), bound)
