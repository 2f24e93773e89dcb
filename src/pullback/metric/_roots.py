r"""The roots that several metrics share: diagonal, dense (symmetric), and a given factor.

A dense positive semi-definite matrix is rooted symmetrically, \(S = M^{1/2} = V\,\mathrm{diag}(\sqrt\lambda)\,V^\top\), because that root is a smooth
function of \(M\) even where eigenvalues coincide (the eigenvectors are not). An eigenvalue at or below
\(k \cdot \mathrm{eps} \cdot \lambda_{\max}\) is zero to working precision. A negative one beyond that makes the root NaN, which the engine
reports as a metric that is not a metric.
"""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._tree import Structure, structure
from .._types import OutputCovector, Outputs, OutputVector
from ._base import AbstractRoot


class DiagonalRoot(AbstractRoot):
    """S = diag(e^ℓ) on the ravelled outputs."""

    log_scale: Float[Array, " k"]
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        return self.like.unravel(w)

    def unit_transpose(self, v):
        return self.like.ravel(v)

    def unit_lift(self, c):
        # S⁺c = e^-ℓ c, and its grading divided out: e^-2ℓ c. In two factors, because e^-2ℓ may overflow where the product does not.
        present = jnp.isfinite(self.log_scale)
        inverse = jnp.exp(-jnp.where(present, self.log_scale, 0.0))
        return jnp.where(present, (self.like.ravel(c) * inverse) * inverse, 0.0)


class FactorRoot(AbstractRoot):
    """A dense factor S (k × q) of the metric and its pseudo-inverse, on the ravelled outputs; not graded."""

    factor: Float[Array, "k q"]
    inverse: Float[Array, "q k"]
    like: Structure = eqx.field(static=True)

    @property
    def log_scale(self):
        return jnp.zeros(self.factor.shape[-1], self.factor.dtype)

    def unit(self, w):
        return self.like.unravel(self.factor @ w)

    def unit_transpose(self, v):
        return self.factor.T @ self.like.ravel(v)

    def unit_lift(self, c):
        return self.inverse @ self.like.ravel(c)


def factor_root(factor: Float[Array, "k q"], z: Outputs) -> FactorRoot:
    """The root whose factor is given: M = S Sᵀ.

    **Arguments:**

    - `factor`: any matrix S with as many rows as the outputs have entries; rank deficient and rectangular are fine.
    - `z`: the outputs, for their structure.
    """
    return FactorRoot(factor, jnp.linalg.pinv(factor, rtol=None), structure(z))


def matrix_root(matrix: Float[Array, "k k"], z: Outputs) -> FactorRoot:
    """The symmetric root of a dense positive semi-definite matrix.

    **Arguments:**

    - `matrix`: symmetric, positive semi-definite up to rounding.
    - `z`: the outputs, for their structure.
    """
    return FactorRoot(_spectral(_sqrt, matrix), _spectral(_inverse_sqrt, matrix), structure(z))


def matrix_apply(matrix: Float[Array, "k k"], z: Outputs, v: OutputVector) -> OutputCovector:
    """M v for a dense matrix on the ravelled outputs.

    **Arguments:**

    - `matrix`: the metric at `z`.
    - `z`: the outputs, for their structure.
    - `v`: an output vector.
    """
    like = structure(z)
    return like.unravel(matrix @ like.ravel(v))


def matrix_sharp(matrix: Float[Array, "k k"], z: Outputs, c: OutputCovector) -> OutputVector:
    """M⁺ c for a dense matrix on the ravelled outputs.

    **Arguments:**

    - `matrix`: the metric at `z`.
    - `z`: the outputs, for their structure.
    - `c`: an output covector.
    """
    like = structure(z)
    return like.unravel(_spectral(_inverse, matrix) @ like.ravel(c))


def _sqrt(x: Array) -> Array:
    return jnp.sqrt(x)


def _inverse_sqrt(x: Array) -> Array:
    return 1 / jnp.sqrt(x)


def _inverse(x: Array) -> Array:
    return 1 / x


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _spectral(function: Callable[[Array], Array], matrix: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """f(M) on the range of M and zero on its kernel.

    The derivative is that of Daleckii and Krein, V (F ∘ Vᵀ dM V) Vᵀ with F the divided differences of f: finite where eigenvalues
    coincide, and right at constant rank.
    """
    _, vectors, image = _eigh(function, matrix)
    return (vectors * image) @ vectors.T


def _eigh(function: Callable[[Array], Array], matrix: Array) -> tuple[Array, Array, Array]:
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    noise = matrix.shape[0] * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.abs(values), initial=0.0)
    kept = values > noise
    image = jnp.where(kept, function(jnp.where(kept, values, 1.0)), jnp.where(values < -noise, jnp.nan, 0.0))
    return jnp.where(kept, values, 0.0), vectors, image


@_spectral.defjvp
def _spectral_jvp(function, primals, tangents):
    values, vectors, image = _eigh(function, *primals)
    gap = values[:, None] - values[None, :]
    apart = jnp.abs(gap) > 1e-6 * (values[:, None] + values[None, :])
    quotient = (image[:, None] - image[None, :]) / jnp.where(apart, gap, 1.0)
    # Where two kept eigenvalues (almost) coincide the divided difference is the derivative at their mean; on the kernel it is zero.
    mean = (values[:, None] + values[None, :]) / 2
    both = (values[:, None] > 0) & (values[None, :] > 0)
    slope = jax.vmap(jax.vmap(jax.grad(function)))(jnp.where(both, mean, 1.0))
    weights = jnp.where(apart, quotient, jnp.where(both, slope, 0.0))
    tangent = (tangents[0] + tangents[0].T) / 2
    return (vectors * image) @ vectors.T, vectors @ (weights * (vectors.T @ tangent @ vectors)) @ vectors.T
