r"""Certificates: the residual of a solution, recomputed with products of \(A\), for any solver.

With \(g = A^\top r + g_x\) and \(\rho = g - G\eta - λ\eta\) (λ = 0 if nothing is damped), a
solution \(\eta\) is certified by the equation that defines it:

- a damped inverse: \(\|\rho\| / \|g\|\). With a \(g_x\), where \(\rho\) is known too badly for its
  part in the kernel, which is divided by λ, a decomposition is needed;
- a pseudo-inverse that drops nothing, damped afterwards or not: the same; undamped, with a \(g_x\)
  whose part in the kernel remains in \(\rho\), \(\|A\rho\| / \|Ag\|\). This equation does not
  see the part of \(\eta\) in the kernel. Factors that are not `kernel_exact` are tested there:
  \(n = x - A^+Ax\) for a random \(x\) is in the kernel, and \(n^\top(\eta - g_x/λ)\) must vanish
  (\(g_x/λ\) is absent for λ = 0);
- a pseudo-inverse that drops singular values, with \(\Pi\) the projection on those that
  `inverse.kept` selects: \(\|\Pi\rho\| / \|\Pi g\|\), and \(\|(I - \Pi)(\eta - g_x/λ)\| /
  \|\eta\|\);
- any other filter: \(\eta = h(G) g\) has no equation. With \(w = V^\top\eta\) and \(v = V^\top g\),
  \(\|w - h(s)\,v\| / \|h(s)\,v\|\) and \(\|(\eta - Vw) - h_0 (g - Vv)\| / \|\eta\|\).

The last two use the decomposition behind the factors, and test it on the vectors at hand: \(G V w =
V s^2 w\), \(G g = V s^2 v\), and \(A(g - Vv) = 0\), so that no direction is missing. Rows that a
solver formed are compared with the model on \(\eta\). The certificate is the largest of these
numbers; it is NaN if the factors have no decomposition where one is needed.

What is no more than rounding (`rounding.py`) does not count: at a minimum of the loss \(A^\top r\)
is rounding itself. Nor does what a change of \(A\) by \(\sigma\) would do, a singular value that
the factors need not resolve: the cut-off that they report, or rounding times the condition number
of \(G + λ\); at most half of the digits.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, Scalar
from .._base.vector import norm, norms, probe
from .._rows.rows import AbstractRows
from ..inverse._base import AbstractInverse, respond
from ..solver._base import AbstractDecomposition, AbstractFactors
from ..solver._redamped import inverse_damping
from .rounding import Noise, half_of_the_digits, noise_of, precision


def tolerance(dtype: Any) -> float:
    """Return √eps, the certificate up to which a solution is one."""
    return math.sqrt(float(jnp.finfo(dtype).eps))


class Solution(eqx.Module):
    """A vector η that is to solve ρ = 0, in orthonormal coordinates of the gauge."""

    rows: AbstractRows
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
    total_size: Scalar
    rest_size: Scalar
    """‖g‖ and ‖ρ‖."""
    noise: Noise

    @property
    def shifted(self) -> Flat:
        """η - g_x/λ, which has no part in the kernel where a pseudo-inverse is damped."""
        if self.g is None or self.damping is None:
            return self.eta
        return self.eta - inverse_damping(self.damping) * self.g

    @property
    def unresolved(self) -> Scalar:
        """σ, the singular value up to which the factors need not see."""
        spectrum, largest = self.undamped.spectrum, self.noise.largest
        # Rounding times the condition number of G + λ.
        damped = lambda damping: precision(self.rows) * largest**3 / damping
        if self.inverse.damping is not None:
            found = damped(self.inverse.damping)
        else:
            found = jnp.where((spectrum.cutoff > 0) & ~spectrum.graded, spectrum.cutoff, 0.0)
        if self.inverse.factorised_per_damping and self.damping is not None:
            # By Cholesky, without singular values, as for a damped inverse.
            found = jnp.where(spectrum.rank < 0, damped(self.damping), found)
        return jnp.minimum(found, half_of_the_digits(self.rows, largest))

    @property
    def allowed(self) -> Scalar:
        """How large ρ may be, however small g is."""
        return self.noise.rest + self.unresolved * self.noise.residual


def certify(
    rows: AbstractRows,
    inverse: AbstractInverse,
    factors: AbstractFactors,
    damping: Scalar | None,
    eta: Flat,
    r: Float[Array, " m"],
    g: Flat | None,
    *,
    undamped: AbstractFactors,
    given: AbstractRows,
) -> Scalar:
    """Return the certificate of a solution for r (with its grading) and g.

    `rows` are those that the solver formed, if it did; `given` are those that it received.
    """
    image, total = rows.mv(eta), rows.rmv(r)
    total = total if g is None else total + g
    residual = r - image
    size, residual_size, r_size = norms(image, residual, r)
    eta_size, total_size = norms(eta, total)
    difference, missing = jnp.zeros_like(size), jnp.zeros_like(size)
    if undamped.formed_rows is not None:
        difference = norm(given.mv(eta) - image)
        # η says nothing of a parameter that the rows leave out.
        product = rows.rmv(probe(rows.shape[0], size.dtype))
        other = given.rmv(probe(rows.shape[0], size.dtype))
        missing = relative(*norms(other - product, other), 0.0)

    def solution(pulled: Flat, largest: Scalar, rest_size: Scalar | None = None) -> Solution:
        """Return what is certified, from Aᵀ(r - Aη) and the norm of A; 0 for no rounding."""
        rest = pulled if g is None else pulled + g
        rest = rest if damping is None else rest - damping * eta
        rest_size = norm(rest) if rest_size is None else rest_size
        noise = noise_of(rows, largest, eta_size, residual_size, r_size, total_size, rest_size)
        return Solution(
            rows, inverse, factors, undamped, damping, eta, g, total, rest, total_size, rest_size,
            noise,
        )  # fmt: skip

    def worst(solution: Solution, equation: Scalar) -> Scalar:
        seen = relative(difference, size, solution.noise.image)
        return jnp.maximum(equation, jnp.maximum(seen, missing))

    has_equation = inverse.damping is not None or _drops_nothing(inverse)

    def doubtful(pulled: Flat) -> tuple[Array, Scalar]:
        """Return whether rounding has to be taken into account, and ‖ρ‖."""
        exact = solution(pulled, jnp.zeros_like(size))
        fine = worst(exact, _everywhere(exact)) <= tolerance(size.dtype)
        doubt = ~fine if g is None else ~fine | jnp.any(g != 0)
        return doubt | (not has_equation), exact.rest_size

    solved = solution(*_pull(rows, residual, doubtful))
    found = jnp.where(
        _is_rounding(solved, size, eta_size), jnp.inf, worst(solved, _equation(solved))
    )
    if undamped.kernel_exact or not _drops_nothing(inverse):
        return found
    return jnp.maximum(found, _in_kernel(solved))


def _is_rounding(solution: Solution, size: Scalar, eta_size: Scalar) -> Array:
    """Return whether η is along directions in which A is rounding of the mean that was taken off.

    A pseudo-inverse of what is more than rounding has ‖Aη‖ above that rounding times ‖η‖.
    """
    if (
        not solution.rows.centred
        or solution.damping is not None
        or not _drops_nothing(solution.inverse)
    ):
        return jnp.asarray(False)
    return size < solution.rows.noise * eta_size


def _drops_nothing(inverse: AbstractInverse) -> bool:
    return inverse.pseudo_inverse and not inverse.truncates


def _pull(
    rows: AbstractRows, residual: Array, doubtful: Callable[[Flat], tuple[Array, Scalar]]
) -> tuple[Flat, Scalar, Scalar]:
    """Return Aᵀ(r - Aη), ‖A‖ where that is doubtful, 0 otherwise, and what `doubtful` measured.

    One loop for the two products, so that the product is compiled once.
    """

    def step(state):
        first, _, y, pulled, _, size = state
        product = rows.rmv(y)
        pulled, largest = jnp.where(first, product, pulled), jnp.where(first, 0.0, norm(product))
        doubt, measured = doubtful(pulled)
        again, size = first & doubt, jnp.where(first, measured, size)
        return jnp.asarray(False), again, probe(y.size, y.dtype), pulled, largest, size

    yes, zero = jnp.asarray(True), jnp.zeros((), residual.dtype)
    nothing = jnp.zeros(rows.shape[1], residual.dtype)
    start = (yes, yes, residual, nothing, zero, zero)
    return jax.lax.while_loop(lambda state: state[1], step, start)[3:]


def _equation(solution: Solution) -> Scalar:
    """Return the residual of the equation that the inverse stands for."""
    inverse, decomposition = solution.inverse, solution.undamped.decomposition
    if inverse.damping is not None:
        found = _everywhere(solution)
        if solution.g is None or decomposition is not None:
            return found
        return jnp.where(_blind(solution, inverse.damping), jnp.nan, found)
    if _drops_nothing(inverse):
        return _pseudo_inverse(solution)
    # Only a pseudo-inverse has a meaning when it is damped afterwards.
    meaningless = solution.damping is not None and not inverse.pseudo_inverse
    if decomposition is None or meaningless:
        return jnp.asarray(jnp.nan, solution.eta.dtype)
    form = _truncated if inverse.pseudo_inverse else _filtered
    return jnp.maximum(form(solution, decomposition), _decomposed(solution, decomposition))


def _everywhere(solution: Solution) -> Scalar:
    """Return ‖ρ‖/‖g‖."""
    return relative(solution.rest_size, solution.total_size, solution.allowed)


def _blind(solution: Solution, damping: Scalar | float) -> Array:
    """Return whether the rounding of ρ hides a tenth of a damped solution.

    Along the kernel of A a parameter covector is answered by g_x/λ, and an error of η is one of ρ/λ
    there. A lifted covector has no such part.
    """
    assert solution.g is not None
    hidden = 10 * solution.noise.rest > damping * norm(solution.eta)
    return hidden & jnp.any(solution.g != 0)


def _pseudo_inverse(solution: Solution) -> Scalar:
    """Return the residual of a pseudo-inverse that drops nothing, damped afterwards or not."""
    if solution.g is None:
        return _everywhere(solution)
    # What is left of g_x in the kernel is no residual: use what A sees of it. In units of its own,
    # because one more product with A may overflow.
    both = jnp.stack([solution.rest, solution.total])
    unit = _unit(norm(both.ravel()))
    rest, total = jax.lax.map(solution.rows.mv, both / unit)
    allowed = solution.noise.largest * (solution.allowed / unit)
    allowed = allowed + solution.unresolved * norm(both[0] / unit)
    seen = relative(*norms(rest, total), allowed)
    if solution.damping is None or solution.factors.kernel_exact:
        return seen
    # Damped, the equation determines the part in the kernel, too.
    return jnp.where(solution.damping > 0, _everywhere(solution), seen)


def _in_kernel(solution: Solution) -> Scalar:
    """Return the part of a solution along a vector of the kernel, relative to the solution."""
    rows = solution.rows
    x = probe(solution.eta.size, solution.eta.dtype)
    n = x
    # Twice: where there is no kernel, what remains is the square of the rounding.
    for _ in range(2):
        n = n - solution.undamped.solve_lifted(rows.unit_mv(n))
    outside = relative(*norms(rows.mv(n), rows.mv(x)), 0.0)
    part = relative(jnp.abs(jnp.vdot(n, solution.shifted)), norm(solution.eta), 0.0)
    return jnp.maximum(outside, part)


def _truncated(solution: Solution, decomposition: AbstractDecomposition) -> Scalar:
    """Return the residual of a pseudo-inverse that drops singular values."""
    s, size, resolution = decomposition.s, norm(solution.eta), _resolution(solution, decomposition)
    kept = respond(solution.inverse, s, solution.rows.shape, resolution).kept

    def project(x: Flat) -> Flat:
        return decomposition.combine(jnp.where(kept, decomposition.coordinates(x), 0.0))

    rest, total, shifted = project(solution.rest), project(solution.total), solution.shifted
    inside = relative(*norms(rest, total), solution.allowed)
    # The eigenvectors of a square, K or G, mix what is kept with the rest.
    smallest = jnp.min(jnp.where(kept, s, jnp.inf), initial=jnp.inf)
    mixed = jnp.minimum((resolution / smallest) ** 2, 1e-2) * size
    return jnp.maximum(inside, relative(norm(shifted - project(shifted)), size, mixed))


def _filtered(solution: Solution, decomposition: AbstractDecomposition) -> Scalar:
    """Return how far η is from h(G) g, seen from a decomposition."""
    eta, g, s = solution.eta, solution.total, decomposition.s
    inverse, shape = solution.inverse, solution.rows.shape
    resolution = _resolution(solution, decomposition)
    h = respond(inverse, s, shape, resolution).h
    kernel = jnp.asarray(inverse.kernel, eta.dtype)
    allowed = jnp.maximum(jnp.max(h, initial=0.0), kernel) * solution.noise.rest
    w, v = decomposition.coordinates(eta), decomposition.coordinates(g)
    # Vectors AᵀU/s that belong to eigenvectors of K are orthogonal up to this.
    oblique = jnp.minimum((resolution / jnp.where(s > 0, s, 1.0)) ** 2, 1e-2)
    allowed = allowed + norm(jnp.where(s > 0, oblique, 0.0) * w)
    inside = relative(*norms(w - h * v, h * v), allowed)
    left = (eta - decomposition.combine(w)) - kernel * (g - decomposition.combine(v))
    return jnp.maximum(inside, relative(*norms(left, eta), allowed))


def _decomposed(solution: Solution, decomposition: AbstractDecomposition) -> Scalar:
    """Return how far a decomposition is from one of A, on the solution and the right-hand side."""
    rows, top = solution.rows, _top(solution, decomposition)
    # Vectors of length one, and A/s_max: two products with A may overflow.
    unit, present = _unit(top), (top > 0).astype(top.dtype)
    s, resolution = decomposition.s / unit, _resolution(solution, decomposition) / unit
    eta = solution.eta / _unit(norm(solution.eta))
    g = solution.total / _unit(solution.total_size)
    w, v = decomposition.coordinates(eta), decomposition.coordinates(g)
    solved, known = decomposition.combine(w), decomposition.combine(v)
    images = jax.lax.map(lambda x: rows.mv(x) / unit, jnp.stack([solved, g, g - known]))
    turned = jax.lax.map(lambda y: rows.rmv(y) / unit, images[:2])
    first = turned[0] - decomposition.combine(s * s * w)
    second = turned[1] - decomposition.combine(s * s * v)
    first, second, size, length = norms(first, second, solved, g)
    parts = [
        relative(first, present * size, 0.0),
        relative(second, present * length, 0.0),
        relative(norm(images[2]), present * length, 10 * resolution * length),
        # A truncation keeps the first ones.
        relative(jnp.max(jnp.diff(s), initial=0.0), present, resolution),
    ]
    return jnp.max(jnp.stack(parts))


def _top(solution: Solution, decomposition: AbstractDecomposition) -> Scalar:
    """Return s_max; singular values that A does not have would make all else look small."""
    return jnp.minimum(jnp.max(decomposition.s, initial=0.0), 1e3 * solution.noise.largest)


def _resolution(solution: Solution, decomposition: AbstractDecomposition) -> Scalar:
    """Return the resolution of a decomposition, at most half of the digits."""
    half = half_of_the_digits(solution.rows, _top(solution, decomposition))
    return jnp.minimum(decomposition.resolution, jnp.maximum(half, solution.rows.noise))


def _unit(size: Scalar) -> Scalar:
    """Return what to divide by so that a size becomes one; 1 for zero."""
    return jnp.where(size > 0, size, 1.0)


def relative(error: Scalar, size: Scalar, allowed: Scalar | float) -> Scalar:
    """Return error/size, at most the tolerance where the error is at most what is allowed."""
    size = jnp.maximum(size, allowed / tolerance(error.dtype))
    # Written so that a NaN remains one; beside an infinite size everything would be small.
    found = jnp.where((size == 0) & (error == 0), 0.0, error / size)
    return jnp.where(size < jnp.inf, found, jnp.nan)
