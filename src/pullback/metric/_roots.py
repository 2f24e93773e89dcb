r"""The roots that several metrics share: diagonal, dense (symmetric), and a given factor.

A dense positive semi-definite matrix is rooted symmetrically, \(S = M^{1/2} =
V\,\mathrm{diag}(\sqrt\lambda)\,V^\top\), because that root is a smooth function of \(M\) even where
eigenvalues coincide (the eigenvectors are not). An eigenvalue at or below \(k \cdot \mathrm{eps}
\cdot \lambda_{\max}\) is zero to working precision. A negative eigenvalue beyond 64 times that
bound makes the root NaN, which the engine reports as `RESULTS.bad_metric`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.tree import Structure, structure
from .._base.types import OutputCovector, Outputs, OutputVector
from .._base.vector import finite_or_nan
from ._base import AbstractRoot


class DiagonalRoot(AbstractRoot):
    """S = diag(e^ℓ) on the ravelled outputs."""

    log_scale: Float[Array, " k"]
    like: Structure = eqx.field(static=True)

    @property
    def complex_linear(self):
        return True

    def unit(self, w):
        return self.like.unravel(w)

    def unit_transpose(self, v):
        return self.like.ravel(v)

    def unit_lift(self, c):
        # S⁺c = e^-ℓ c, and its grading divided out: e^-2ℓ c. In two factors, because e^-2ℓ may
        # overflow where the product does not. Where it does, c = 0 must give 0. Elsewhere the map
        # stays linear in c, so that it can be differentiated at c = 0.
        c = self.like.ravel(c)
        present = (self.log_scale != -jnp.inf) & ((c != 0) | ~overflows(-2 * self.log_scale))
        inverse = jnp.exp(-jnp.where(present, self.log_scale, 0.0))
        return jnp.where(present, (c * inverse) * inverse, 0.0)


def overflows(log: Array) -> Array:
    """Whether e^log is beyond the range of the floating-point type."""
    return log >= jnp.log(jnp.finfo(log.dtype).max)


class FactorRoot(AbstractRoot):
    """A dense factor S (k × q) of the metric and its pseudo-inverse, on the ravelled outputs.

    The root is not graded. Leading axes of the factor are independent blocks.
    """

    log_scale: Float[Array, " q"]
    factor: Float[Array, "*batch k q"]
    inverse: Float[Array, "*batch q k"]
    like: Structure = eqx.field(static=True)

    def __init__(self, factor, inverse, like):
        self.factor = factor
        self.inverse = inverse
        self.like = like
        self.log_scale = jnp.zeros(math.prod(factor.shape[:-2]) * factor.shape[-1], factor.dtype)

    def unit(self, w):
        return self.like.unravel(_block_mv(self.factor, w))

    def unit_transpose(self, v):
        return _block_mv(jnp.swapaxes(self.factor, -1, -2), self.like.ravel(v))

    def unit_lift(self, c):
        return _block_mv(self.inverse, self.like.ravel(c))


def _block_mv(matrix: Float[Array, "*batch a b"], x: Array) -> Array:
    """The product of a block diagonal matrix with a flat vector."""
    return jnp.einsum(
        "...ab,...b->...a", matrix, x.reshape(*matrix.shape[:-2], matrix.shape[-1])
    ).ravel()


def factor_root(factor: Float[Array, "k q"], z: Outputs) -> FactorRoot:
    """The root whose factor is given: M = S Sᵀ."""
    return FactorRoot(factor, jnp.linalg.pinv(finite_or_nan(factor)), structure(z))


def matrix_root(matrix: Float[Array, "k k"], z: Outputs) -> FactorRoot:
    """The symmetric root of a dense positive semi-definite matrix."""
    return FactorRoot(spectral(SQRT, matrix), spectral(INVERSE_SQRT, matrix), structure(z))


def matrix_apply(matrix: Float[Array, "k k"], z: Outputs, v: OutputVector) -> OutputCovector:
    """M v for a dense matrix on the ravelled outputs."""
    like = structure(z)
    return like.unravel(matrix @ like.ravel(v))


def matrix_sharp(matrix: Float[Array, "k k"], z: Outputs, c: OutputCovector) -> OutputVector:
    """M⁺ c for a dense matrix on the ravelled outputs."""
    like = structure(z)
    return like.unravel(spectral(INVERSE, matrix) @ like.ravel(c))


class SpectralFunction(NamedTuple):
    """A function of symmetric matrices, by its action on the eigenvalues.

    `image` is the function of one eigenvalue, `quotient` its divided difference on a pair. The last
    argument of both is the level at or below which an eigenvalue is noise.
    """

    image: Callable[[Array, Array], Array]
    quotient: Callable[[Array, Array, Array], Array]


def _on_range(
    function: Callable[[Array], Array], quotient: Callable[[Array, Array], Array]
) -> SpectralFunction:
    """f above the noise, zero within it, NaN below; `quotient` is (f(a) - f(b))/(a - b)."""

    def image(values, noise):
        kept = values > noise
        return jnp.where(
            kept, function(jnp.where(kept, values, 1.0)), jnp.where(values < -noise, jnp.nan, 0.0)
        )

    def divided(a, b, noise):
        a, b = jnp.broadcast_arrays(a, b)
        one = jnp.where(a > noise, a, 1.0)
        other = jnp.where(b > noise, b, 1.0)
        # Where b is noise, f(b) = b = 0 and the quotient is f(a)/a; likewise for a.
        second = jnp.where(b > noise, function(other) / other, 0.0)
        mixed = jnp.where(a > noise, function(one) / one, second)
        return jnp.where((a > noise) & (b > noise), quotient(one, other), mixed)

    return SpectralFunction(image, divided)


SQRT = _on_range(jnp.sqrt, lambda a, b: 1 / (jnp.sqrt(a) + jnp.sqrt(b)))
INVERSE_SQRT = _on_range(
    lambda a: 1 / jnp.sqrt(a), lambda a, b: -1 / (a * jnp.sqrt(b) + b * jnp.sqrt(a))
)
INVERSE = _on_range(lambda a: 1 / a, lambda a, b: -1 / (a * b))
CLIP = SpectralFunction(
    lambda a, _: jnp.maximum(a, 0.0),
    lambda a, b, _: (jnp.maximum(a, 0.0) + jnp.maximum(b, 0.0)) / _nonzero(jnp.abs(a) + jnp.abs(b)),
)
ABSOLUTE = SpectralFunction(
    lambda a, _: jnp.abs(a), lambda a, b, _: (a + b) / _nonzero(jnp.abs(a) + jnp.abs(b))
)


def _nonzero(x: Array) -> Array:
    """x with zeros replaced by ones, for a denominator."""
    return jnp.where(x == 0, 1.0, x)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def spectral(function: SpectralFunction, matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """f(M) for a symmetric matrix.

    The derivative is that of Daleckii and Krein, V (F ∘ Vᵀ dM V) Vᵀ with F the divided differences
    of f, in closed form: accurate where eigenvalues coincide, and right at constant rank.
    """
    values, vectors, noise = _eigh(matrix)
    return (vectors * function.image(values, noise)[None, :]) @ vectors.T


def _eigh(matrix: Array) -> tuple[Array, Array, Array]:
    """Eigenvalues, eigenvectors, and the noise in the eigenvalues.

    The noise is at least k eps λ_max, the backward error of the decomposition. Automatic Hessians
    carry a little more, and a slightly negative eigenvalue (down to 64 times that) measures how
    much: no eigenvalue below its modulus then counts as positive.
    """
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    noise = matrix.shape[0] * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.abs(values), initial=0.0)
    return values, vectors, jnp.clip(-jnp.min(values, initial=0.0), noise, 64 * noise)


@spectral.defjvp
def _spectral_jvp(function, primals, tangents):
    """The rule of Daleckii and Krein."""
    (matrix,) = primals
    (tangent,) = tangents
    values, vectors, noise = _eigh(matrix)
    weights = function.quotient(values[:, None], values[None, :], noise)
    inside = vectors.T @ ((tangent + tangent.T) / 2) @ vectors
    value = (vectors * function.image(values, noise)[None, :]) @ vectors.T
    return value, vectors @ (weights * inside) @ vectors.T


def dense_factor(root: AbstractRoot, like: Structure) -> Float[Array, "k q"]:
    """The matrix of a root on the ravelled outputs."""
    return jax.vmap(lambda w: like.ravel(root.mv(w)))(jnp.eye(root.size, dtype=like.dtype)).T
