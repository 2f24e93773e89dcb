r"""What `Dual` and `Primal` share: a symmetric matrix, K or G, factorised by eigenvectors, or by
Cholesky where it is damped.

Working on \(K = AA^\top\) or \(G = A^\top A\) squares the condition number: an eigenvalue below
\(n\,\mathrm{eps}\,\lambda_{\max}\) is rounding, so these solvers resolve singular values down to
\(\sqrt{n\,\mathrm{eps}}\; s_{\max}\) only. That is the cut-off they report if the inverse asks for
less. Iterative refinement with products of \(A\) recovers the digits of the solution itself, where
the inverse is damped or a pseudo-inverse; any other filter is applied to the eigenvalues as it is.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from .._base.types import Scalar
from .._compat.lapack import cholesky
from .._gram.centred import Gram
from .._rows.rows import AbstractRows
from ..inverse._base import AbstractInverse, respond
from ._base import AbstractDecomposition, AbstractFactors, Spectrum
from ._panels import DealtFactor, PanelFactor
from ._redamped import Redamped, damped_filter, inverse_damping

Map = Callable[[Array], Array]


class Part(NamedTuple):
    """An inverse on some of the eigenvectors, and the projection on them."""

    inverse: Map
    project: Map


How = Callable[[Map, Part | None], Array]
"""A solution from an inverse and a part of it: see `Damped.solve`."""
CANCELS, TALL, TURNS, MOST = 1e4, 10.0, 4, 12
"""From which cancellation on a damped solution is refined further, and where there are more rows
than parameters; how often where eigenvectors took over; the most refinements where they did not."""


class Eigen(eqx.Module):
    """K or G = Q diag(s²) Qᵀ, largest first, and h(s)."""

    vectors: Float[Array, "n n"]
    s: Float[Array, " n"]
    h: Float[Array, " n"]
    kept: Array
    spectrum: Spectrum
    resolution: Scalar
    """The singular value at or below which everything is rounding."""
    refinements: int = eqx.field(static=True)
    """How often a solution is refined: twice for a pseudo-inverse, which eigenvectors square."""
    truncates: bool = eqx.field(static=True)
    """Whether singular values above rounding may be dropped."""

    @property
    def size(self) -> Scalar:
        """‖A‖, the Frobenius norm."""
        return jnp.linalg.norm(self.s)

    def apply(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return h(·) x on the eigenvectors."""
        return self.vectors @ (self.h * (self.vectors.T @ x))

    def apply_resolved(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return h(·) x without the eigenvectors that are rounding.

        What is in the range of A has no part along them, and h₀ may be large.
        """
        h = jnp.where(self.s > self.resolution, self.h, 0.0)
        return self.vectors @ (h * (self.vectors.T @ x))

    def project(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return the projection on the eigenvectors that are kept."""
        return self.vectors @ jnp.where(self.kept, self.vectors.T @ x, 0.0)


class Damped(eqx.Module):
    """K + λ or G + λ = L Lᵀ.

    Also keeps what recomputes the matrix for the rare eigenvector fallback: LAPACK overwrites its
    input, and keeping a copy would double the memory.
    """

    cholesky: "Cholesky | PanelFactor | DealtFactor"
    again: "AbstractMatrix"
    damping: Scalar
    proved: Array
    """Whether the matrix is positive definite beyond rounding."""
    size: Scalar
    """‖A‖, the Frobenius norm."""
    spectrum: Spectrum
    refinements: Array
    """How often a solution is refined: once, and more often the nearer λ is to rounding."""
    careful: bool = eqx.field(static=True)
    """Whether eigenvectors take over; NaN otherwise."""

    def solve(self, how: How) -> Array:
        """Return the solution of `how(inverse, resolved)`, with `inverse(x)` = (· + λ)⁻¹ x.

        By Cholesky first, with `None` for the second argument. Where that is not proved, by
        eigenvectors: `resolved` is the part without those that are rounding.
        """

        def by_eigenvectors():
            matrix, lost = jax.lax.stop_gradient(self.again())
            values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
            noise = matrix.shape[0] * jnp.finfo(matrix.dtype).eps * jnp.max(values, initial=lost)
            h = 1 / (jnp.maximum(values, 0.0) + self.damping)
            seen = values > noise
            apply = lambda h: lambda x: vectors @ (h * (vectors.T @ x))
            part = Part(apply(jnp.where(seen, h, 0.0)), apply(seen.astype(h.dtype)))
            return how(apply(h), part)

        # The condition is on the solution: around the factor it would cost XLA two copies of it.
        solution = how(lambda x: self.cholesky.solve(x), None)
        if not self.careful:
            return jnp.where(self.proved, solution, jnp.nan)
        return jax.lax.cond(self.proved, lambda: solution, by_eigenvectors)


class Cholesky(eqx.Module):
    """L of L Lᵀ, on this device."""

    factor: Float[Array, "n n"]
    """L below the diagonal; above it, anything."""

    def solve(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return (L Lᵀ)⁻¹ x."""
        return cho_solve((self.factor, True), x)


class Factored(NamedTuple):
    """K + λ or G + λ = L Lᵀ, and what tells whether to rely on it."""

    factor: Cholesky | PanelFactor | DealtFactor
    positive: Array
    """Whether all pivots were."""
    size: Scalar
    """‖A‖, the Frobenius norm."""
    diagonal: Float[Array, " n"]
    """Of K + λ or G + λ."""
    lost: Scalar
    """See `Gram`."""


class AbstractMatrix(eqx.Module):
    """K or G: how it is made, and factorised where it is damped."""

    @abc.abstractmethod
    def __call__(self) -> Gram:
        """Return the matrix, lower triangle, and what was taken off it."""

    @property
    def has_eigenvectors(self) -> bool:
        """Whether eigenvectors can take over where a Cholesky factorisation is not proved."""
        return True

    @property
    def noise(self) -> Scalar:
        """The λ at or below which a Cholesky factorisation is not proved; see `damped`."""
        matrix, lost = self()
        return rounding(jnp.diagonal(matrix), lost)

    def kept(self) -> "AbstractMatrix":
        """Return the same matrix, made once for several factorisations."""
        return Matrix(self())

    def cholesky(self, matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Array]:
        """Return the Cholesky factor of the damped matrix, and whether all pivots were positive."""
        return cholesky(matrix)

    def factorised(self, damping: Scalar) -> Factored:
        """Return the Cholesky factorisation of the matrix + λ."""
        matrix, lost = jax.lax.stop_gradient(self())
        # Read before it is written, so that everything happens in place; `jnp.trace` would read it
        # all.
        index, diagonal = jnp.arange(matrix.shape[0]), jnp.diagonal(matrix)
        size, diagonal = jnp.sqrt(jnp.sum(diagonal)), diagonal + damping
        matrix = matrix.at[index, index].set(diagonal, unique_indices=True)
        factor, positive = self.cholesky(matrix)
        return Factored(Cholesky(factor), positive, size, diagonal, lost)


class Matrix(AbstractMatrix):
    """An already computed K or G, for `damped`, which would otherwise compute it again."""

    gram: Gram

    def __call__(self):
        return self.gram


class Family(eqx.Module):
    """K or G, kept to be damped several times."""

    matrix: AbstractMatrix
    build: Callable[..., "AbstractSymmetricFactors"]
    """Factors from `gram` and `damping`; a pytree."""
    rows: AbstractRows
    """What the matrix was made of, with a dense Ã if that was formed."""

    def damped(self, damping: Scalar) -> "AbstractSymmetricFactors":
        """Return factors by Cholesky, of solutions that are NaN if that is not proved."""
        gram = damped(self.matrix, damping, careful=False)
        return self.build(gram=gram, damping=damping)


def rounding(diagonal: Float[Array, " n"], lost: Scalar) -> Scalar:
    """Return n·eps·max, a bound on the rounding of a Gram matrix and of its Cholesky factor.

    To it comes that of what was taken off the matrix.
    """
    n, eps = diagonal.shape[0], jnp.finfo(diagonal.dtype).eps
    return eps * (n * jnp.max(diagonal, initial=0.0) + lost)


def eigen(gram: Gram, rows: AbstractRows, inverse: AbstractInverse) -> Eigen:
    """Return the eigendecomposition of K or G, lower triangle."""
    shape = rows.shape
    # Factors are constants, also where the model closes over something that is differentiated; the
    # derivative rule of eigenvectors would use the upper triangle, which holds anything.
    matrix, lost = jax.lax.stop_gradient(gram)
    values, vectors = jnp.linalg.eigh(matrix, symmetrize_input=False)
    s = jnp.sqrt(jnp.maximum(values[::-1], 0.0))
    # The maximum hides a NaN matrix; let it show.
    s = jnp.where(jnp.all(jnp.isfinite(values)), s, jnp.nan)
    top = jnp.maximum(s[0], jnp.sqrt(lost))
    resolution = jnp.maximum(jnp.sqrt(max(shape) * jnp.finfo(s.dtype).eps) * top, rows.noise)
    h, kept, cutoff = respond(inverse, s, shape, resolution)
    spectrum = Spectrum.of(s, kept, cutoff)
    refinements = 2 if inverse.pseudo_inverse else 0
    return Eigen(vectors[:, ::-1], s, h, kept, spectrum, resolution, refinements, inverse.truncates)


def damped(make: AbstractMatrix, damping: Scalar, careful: bool) -> Damped:
    """Return Cholesky factors of K + λ or G + λ.

    The matrix is positive semi-definite by construction, and its smallest computed eigenvalue is at
    least -n·eps·‖·‖, with the norm of what it was summed from; so with λ above that the sum is
    positive definite. The pivots are checked all the same. Otherwise eigenvectors take over, if it
    is to be `careful`, and the spectrum reports it.
    """
    factor, positive, size, diagonal, lost = make.factorised(damping)
    n, dtype = diagonal.shape[0], diagonal.dtype
    proved = positive & (damping > rounding(diagonal, lost))
    spectrum = Spectrum.unknown(dtype, fallback=~proved)
    # Each refinement multiplies the error by about this: as many as leave 100 eps.
    eps = float(jnp.finfo(dtype).eps)
    factor_of_error = math.sqrt(n) * eps * jnp.max(diagonal, initial=0.0) / damping
    needed = jnp.ceil(math.log(100 * eps) / jnp.log(jnp.minimum(factor_of_error, 0.5))) - 1
    refinements = jnp.clip(jnp.nan_to_num(needed), 1, MOST).astype(int)
    careful = careful and make.has_eigenvectors
    return Damped(factor, make, damping, proved, size, spectrum, refinements, careful)


def refine(
    gram: Eigen | Damped,
    solve: Callable[[Array], Array],
    residual: Callable[[Array], Array],
    start: Array,
) -> Array:
    """Return x after refinements x + solve(residual(x)) from a start."""
    return jax.lax.fori_loop(0, gram.refinements, lambda _, x: x + solve(residual(x)), start)


class AbstractSymmetricFactors(AbstractFactors, AbstractDecomposition):
    """What factors of K and of G have in common; with eigenvectors, a decomposition of A."""

    gram: eqx.AbstractVar[Eigen | Damped]
    damping: eqx.AbstractVar[Scalar | None]

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.gram.spectrum

    @property
    def knows_row_space(self):
        return isinstance(self.gram, Eigen)

    @property
    def kernel_exact(self):
        return True

    @property
    def decomposition(self):
        return self if isinstance(self.gram, Eigen) else None

    @property
    def eigen(self) -> Eigen:
        """The eigenvectors; only where `decomposition` is not `None`."""
        assert isinstance(self.gram, Eigen)
        return self.gram

    @property
    def s(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.eigen.s

    @property
    def resolution(self):
        return self.eigen.resolution

    def damped(self, damping):
        if not isinstance(self.gram, Eigen):
            return super().damped(damping)
        h = damped_filter(self.gram.s, self.gram.kept, damping)
        where = lambda f: (f.gram.h, f.damping)
        inner = eqx.tree_at(where, self, (h, damping), is_leaf=lambda x: x is None)
        return Redamped(self, self.in_range(inner), inverse_damping(damping))

    @abc.abstractmethod
    def in_range(self, damped: Any) -> Any:
        """Return damped factors with `solve_lifted` and `solve_in_range` from the same damped."""
