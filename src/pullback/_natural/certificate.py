r"""Certificates: the residual of a solution, recomputed with products of \(A\), whoever's solver it was.

With \(g = A^\top r + g_x\) and \(\rho = g - G\eta - λ\eta\) (λ = 0 if nothing is damped), a solution
\(\eta\) is certified by the equation that defines it:

- a damped inverse: \(\|\rho\| / \|g\|\);
- a pseudo-inverse that drops nothing, damped afterwards or not: the same; undamped, with a \(g_x\)
  whose part in the kernel remains in \(\rho\), \(\|A\rho\| / \|Ag\|\). This equation does not see the
  part of \(\eta\) in the kernel. Factors that are not `kernel_exact` are tested there: \(n = x -
  A^+Ax\) for a random \(x\) is in the kernel, and \(n^\top(\eta - g_x/λ)\) must vanish (\(g_x/λ\) is
  absent for λ = 0);
- a pseudo-inverse that drops singular values, with \(\Pi\) the projection on those that
  `inverse.kept` selects: \(\|\Pi\rho\| / \|\Pi g\|\) and \(\|(I - \Pi)(\eta - g_x/λ)\| / \|\eta\|\);
- any other filter: \(\eta = h(G) g\) has no equation. With \(w = V^\top\eta\) and \(v = V^\top g\),
  \(\|w - h(s)\,v\| / \|h(s)\,v\|\) and \(\|(\eta - Vw) - h_0 (g - Vv)\| / \|\eta\|\).

The last two use the decomposition behind the factors, and test it on the vectors at hand: \(G V w =
V s^2 w\), \(G g = V s^2 v\), and \(A(g - Vv) = 0\), so that no direction is missing. Rows that a
solver formed are compared with the model on \(\eta\). The certificate is the largest of these
numbers; it is NaN if the factors have no decomposition where one is needed.

A number above the tolerance is compared with rounding (`rounding.py`) before it counts: at a
minimum of the loss \(A^\top r\) is rounding itself. Nor does a change of \(A\) by \(\sigma\), a
singular value that the factors need not see, count: \(\sigma\) is the cut-off that they report, or
rounding times the condition number of \(G + λ\); at most half of the digits.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, Scalar
from .._rows.rows import Rows
from ..inverse._base import AbstractInverse, respond
from ..solver._base import AbstractDecomposition, AbstractFactors
from ..solver._redamped import inverse_damping
from .rounding import Noise, half_of_the_digits, noise_of, precision


def tolerance(dtype: Any) -> float:
    """Return √eps, the certificate up to which a solution is one."""
    return math.sqrt(float(jnp.finfo(dtype).eps))


class Solution(eqx.Module):
    """A vector η that is to solve ρ = 0, in orthonormal coordinates of the gauge."""

    rows: Rows
    inverse: AbstractInverse
    factors: AbstractFactors
    undamped: AbstractFactors
    """The factors before they were damped."""
    damping: Scalar | None
    eta: Flat
    g: Flat | None
    """g_x, what enters as a parameter covector."""
    total: Flat
    """g, the whole right-hand side."""
    rest: Flat
    """ρ."""

    @property
    def shifted(self) -> Flat:
        """η - g_x/λ, which has no part in the kernel where a pseudo-inverse is damped."""
        if self.g is None or self.damping is None:
            return self.eta
        return self.eta - inverse_damping(self.damping) * self.g


def certify(
    rows: Rows,
    inverse: AbstractInverse,
    factors: AbstractFactors,
    damping: Scalar | None,
    eta: Flat,
    r: Float[Array, " m"],
    g: Flat | None,
    *,
    undamped: AbstractFactors,
    given: Rows,
) -> Scalar:
    """Return the certificate of a solution for r (with its grading) and g.

    `rows` are those that the solver formed, if it did; `given` are those that it received.
    """
    image, total = rows.mv(eta), rows.rmv(r)
    rest = rows.rmv(r - image)
    if g is not None:
        total, rest = total + g, rest + g
    if damping is not None:
        rest = rest - damping * eta
    solution = Solution(rows, inverse, factors, undamped, damping, eta, g, total, rest)
    size = jnp.linalg.norm(image)
    formed = undamped.formed_rows is not None
    difference = jnp.linalg.norm(given.mv(eta) - image) if formed else jnp.zeros_like(size)

    def parts(noise: Noise | None) -> Scalar:
        same = relative(difference, size, 0.0 if noise is None else noise.image)
        return jnp.maximum(_equation(solution, noise), same)

    strict = parts(None)
    # The rounding takes two more products, and is rarely asked for.
    found = jax.lax.cond(
        strict <= tolerance(strict.dtype),
        lambda: strict,
        lambda: parts(noise_of(rows, eta, r, image, total, rest)),
    )
    if not inverse.pseudo_inverse or inverse.truncates or undamped.kernel_exact:
        return found
    return jnp.maximum(found, _in_kernel(solution))


def _equation(solution: Solution, noise: Noise | None) -> Scalar:
    """Return the residual of the equation that the inverse stands for."""
    inverse = solution.inverse
    if inverse.damping is not None:
        return _everywhere(solution, noise)
    if inverse.pseudo_inverse and not inverse.truncates:
        return _pseudo_inverse(solution, noise)
    decomposition = solution.undamped.decomposition
    # Only a pseudo-inverse has a meaning when it is damped afterwards.
    meaningless = solution.damping is not None and not inverse.pseudo_inverse
    if decomposition is None or meaningless:
        return jnp.asarray(jnp.nan, solution.eta.dtype)
    form = _truncated if inverse.pseudo_inverse else _filtered
    return form(solution, decomposition, noise)


def _unresolved(solution: Solution, noise: Noise) -> Scalar:
    """Return σ, the singular value up to which the factors need not see."""
    rows, spectrum = solution.rows, solution.undamped.spectrum
    if solution.inverse.damping is not None:
        found = precision(rows) * noise.largest**3 / solution.inverse.damping
    else:
        found = jnp.where((spectrum.cutoff > 0) & ~spectrum.graded, spectrum.cutoff, 0.0)
    return jnp.minimum(found, half_of_the_digits(rows, noise.largest))


def _allowed(solution: Solution, noise: Noise | None) -> Scalar | float:
    """Return how large ρ may be where g is no larger."""
    if noise is None:
        return 0.0
    return noise.rest + _unresolved(solution, noise) * noise.residual


def _everywhere(solution: Solution, noise: Noise | None) -> Scalar:
    """Return ‖ρ‖/‖g‖."""
    norm = jnp.linalg.norm
    return relative(norm(solution.rest), norm(solution.total), _allowed(solution, noise))


def _seen(solution: Solution, noise: Noise | None) -> Scalar:
    """Return ‖Aρ‖/‖Ag‖; what of ρ is below σ does not count."""
    norm, rows = jnp.linalg.norm, solution.rows
    if noise is None:
        return relative(norm(rows.mv(solution.rest)), norm(rows.mv(solution.total)), 0.0)
    allowed = noise.largest * _allowed(solution, noise)
    allowed = allowed + _unresolved(solution, noise) * norm(solution.rest)
    return relative(noise.size_of_rest, noise.size_of_total, allowed)


def _pseudo_inverse(solution: Solution, noise: Noise | None) -> Scalar:
    """Return the residual of a pseudo-inverse that drops nothing, damped afterwards or not."""
    damping = solution.damping
    if noise is None and solution.g is None:
        return _everywhere(solution, None)
    seen = _seen(solution, noise)
    if damping is None or (noise is not None and solution.factors.kernel_exact):
        return seen
    # Damped, the equation determines the part in the kernel, too.
    return jnp.where(damping > 0, _everywhere(solution, noise), seen)


def _in_kernel(solution: Solution) -> Scalar:
    """Return the part of a solution along a vector of the kernel, relative to the solution."""
    rows, norm = solution.rows, jnp.linalg.norm
    x = jax.random.normal(jax.random.key(0), solution.eta.shape, solution.eta.dtype)
    n = x
    # Twice: where there is no kernel, what remains is the square of the rounding.
    for _ in range(2):
        n = n - solution.undamped.solve_lifted(rows.unit_mv(n))
    outside = relative(norm(rows.mv(n)), norm(rows.mv(x)), 0.0)
    part = relative(jnp.abs(jnp.vdot(n, solution.shifted)), norm(solution.eta), 0.0)
    return jnp.maximum(outside, part)


def _truncated(
    solution: Solution, decomposition: AbstractDecomposition, noise: Noise | None
) -> Scalar:
    """Return the residual of a pseudo-inverse that drops singular values."""
    norm, s, size = jnp.linalg.norm, decomposition.s, jnp.linalg.norm(solution.eta)
    kept = respond(solution.inverse, s, solution.rows.shape, decomposition.resolution).kept

    def project(x: Flat) -> Flat:
        return decomposition.combine(jnp.where(kept, decomposition.coordinates(x), 0.0))

    mixed = jnp.zeros_like(size)
    if noise is not None:
        # The eigenvectors of a square, K or G, mix what is kept with the rest.
        smallest = jnp.min(jnp.where(kept, s, jnp.inf), initial=jnp.inf)
        mixed = jnp.minimum((decomposition.resolution / smallest) ** 2, 1e-2) * size
    kept_rest, kept_total = project(solution.rest), project(solution.total)
    inside = relative(norm(kept_rest), norm(kept_total), _allowed(solution, noise))
    shifted = solution.shifted
    outside = relative(norm(shifted - project(shifted)), size, mixed)
    return jnp.maximum(jnp.maximum(inside, outside), _decomposed(solution, decomposition))


def _filtered(
    solution: Solution, decomposition: AbstractDecomposition, noise: Noise | None
) -> Scalar:
    """Return how far η is from h(G) g, seen from a decomposition."""
    norm, eta, g = jnp.linalg.norm, solution.eta, solution.total
    inverse, rows = solution.inverse, solution.rows
    h = respond(inverse, decomposition.s, rows.shape, decomposition.resolution).h
    kernel = jnp.asarray(inverse.kernel, eta.dtype)
    allowed = jnp.zeros_like(kernel)
    if noise is not None:
        allowed = jnp.maximum(jnp.max(h, initial=0.0), kernel) * noise.rest
    w, v = decomposition.coordinates(eta), decomposition.coordinates(g)
    inside = relative(norm(w - h * v), norm(h * v), allowed)
    left = (eta - decomposition.combine(w)) - kernel * (g - decomposition.combine(v))
    outside = relative(norm(left), norm(eta), allowed)
    return jnp.maximum(jnp.maximum(inside, outside), _decomposed(solution, decomposition))


def _decomposed(solution: Solution, decomposition: AbstractDecomposition) -> Scalar:
    """Return how far a decomposition is from one of A, on the solution and the right-hand side."""
    rows, s, g = solution.rows, decomposition.s, solution.total
    norm = jnp.linalg.norm
    w, v = decomposition.coordinates(solution.eta), decomposition.coordinates(g)
    solved, known = decomposition.combine(w), decomposition.combine(v)
    xi = jax.random.normal(jax.random.key(2), g.shape, g.dtype)
    images = jax.lax.map(rows.mv, jnp.stack([solved, g, g - known, xi]))
    turned = jax.lax.map(rows.rmv, images[:2])
    # A claim of large singular values that A does not have would make everything else small.
    top = jnp.minimum(jnp.max(s, initial=0.0), 1e3 * norm(images[3]))
    resolution = jnp.minimum(decomposition.resolution, half_of_the_digits(rows, top))
    parts = [
        relative(norm(turned[0] - decomposition.combine(s * s * w)), top * top * norm(solved), 0.0),
        relative(norm(turned[1] - decomposition.combine(s * s * v)), top * top * norm(g), 0.0),
        relative(norm(images[2]), top * norm(g), 10 * resolution * norm(g)),
    ]
    return jnp.max(jnp.stack(parts))


def relative(error: Scalar, size: Scalar, allowed: Scalar | float) -> Scalar:
    """Return error/size, at most the tolerance where the error is at most what is allowed."""
    size = jnp.maximum(size, allowed / tolerance(error.dtype))
    # Written so that a NaN remains one.
    nothing = size == 0
    return jnp.where(nothing & (error == 0), 0.0, error / size)
