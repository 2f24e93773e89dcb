r"""The Fisher metric of Gaussian variables with a given covariance, in their mean: \(M =
\Sigma^{-1}\).

For a variance (scalar or one for each entry) the root is \(\mathrm{diag}(1/\sigma)\). For a full
matrix, \(\Sigma = LL^\top\) and \(S = L^{-\top}\): \(S^\top v = L^{-1} v\) and \(S^+ c = L^\top
c\); \(\Sigma^{-1}\) is never formed. **Assumes** \(\Sigma\) positive definite: a variable without
noise has infinite information. The differential of the negative log-likelihood is \(\Sigma^{-1}(\mu
- y)\), lifted to \(L^{-1}(\mu - y)\).
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base import checks
from .._base.tree import Structure, structure
from ._base import AbstractLikelihood, AbstractRoot
from ._outputs import one_array, targets_like
from ._roots import DiagonalRoot


class PrecisionRoot(AbstractRoot):
    """S = L⁻ᵀ on the last axis of the outputs, Σ = L Lᵀ."""

    log_scale: Float[Array, " q"]
    cholesky: Float[Array, "d d"]
    like: Structure = eqx.field(static=True)

    def unit(self, w):
        return self.like.unravel(_solve(self.cholesky, w, transposed=True))

    def unit_transpose(self, v):
        return _solve(self.cholesky, self.like.ravel(v))

    def unit_lift(self, c):
        return _rows(self.like.ravel(c), self.cholesky).ravel()


def _rows(x: Array, matrix: Array) -> Array:
    """Aᵀ x for each event x."""
    return x.reshape(-1, matrix.shape[0]) @ matrix


def _solve(cholesky: Array, x: Array, transposed: bool = False) -> Array:
    """L⁻¹ x, or L⁻ᵀ x, for each event x."""
    columns = x.reshape(-1, cholesky.shape[0]).T
    return jax.scipy.linalg.solve_triangular(
        cholesky, columns, lower=True, trans=1 if transposed else 0
    ).T.ravel()


class Gaussian(AbstractLikelihood):
    """Gaussian variables with a given covariance; the outputs are their means.

    Targets have the shape of the outputs.

    **Arguments:**

    - `covariance`: a number, the variance of every entry (then the outputs may be any pytree); or a
        vector, the variances along the last axis of one array; or a positive definite matrix, the
        covariance along the last axis. Leading axes are independent.
    """

    covariance: Float[Array, "*d"] | float = 1.0
    nonsingular: ClassVar[bool] = True

    def __check_init__(self):
        shape = np.shape(self.covariance)
        good = True
        if checks.is_concrete(self.covariance) and (len(shape) < 2 or shape == (shape[0],) * 2):
            value = np.asarray(self.covariance, float)
            good = bool(np.all(np.isfinite(value)))
            if good and len(shape) < 2:
                good = bool(np.all(value > 0))
            elif good:
                good = bool(
                    np.allclose(value, value.T) and np.linalg.eigvalsh((value + value.T) / 2)[0] > 0
                )
        if not good or len(shape) > 2 or (len(shape) == 2 and shape[0] != shape[1]):
            raise checks.error(
                "Gaussian",
                "covariance",
                self.covariance,
                "a positive variance, a vector of them, or a positive definite matrix",
                "Gaussian(covariance=0.25) or Gaussian(covariance=jnp.array([1.0, 0.5]))",
            )

    @property
    def event_ndim(self) -> int:
        """1 for a full covariance matrix, 0 otherwise."""
        return 1 if self._full else 0

    @property
    def _full(self) -> bool:
        """Whether the covariance is a matrix."""
        return np.ndim(self.covariance) == 2

    def _read(self, z) -> tuple[Structure, Array]:
        """The structure of the outputs, and their variances or the Cholesky factor of Σ."""
        like = structure(z)
        covariance = jnp.asarray(self.covariance).astype(like.dtype)
        if covariance.ndim == 0:
            return like, jnp.full(like.size, covariance)
        owner = f"Gaussian(covariance of shape {covariance.shape})"
        instead = (
            "Give a scalar variance for a pytree of outputs, or use "
            "Product({'a': Gaussian(...), ...})."
        )
        mean, _ = one_array(z, owner, "one array of means", instead)
        d = mean.shape[-1]
        if d != covariance.shape[0]:
            raise ValueError(
                f"{owner} takes means with {covariance.shape[0]} entries on their last axis, got "
                f"outputs of shape {mean.shape}. Give a covariance of shape ({d},) or ({d}, {d})."
            )
        if covariance.ndim == 1:
            return like, jnp.tile(covariance, like.size // covariance.size)
        return like, jnp.linalg.cholesky(covariance)

    def root(self, z):
        like, spread = self._read(z)
        return (
            PrecisionRoot(jnp.zeros(like.size, like.dtype), spread, like)
            if self._full
            else DiagonalRoot(-jnp.log(spread) / 2, like)
        )

    def apply(self, z, v):
        like, spread = self._read(z)
        x = like.ravel(v)
        return like.unravel(
            _solve(spread, _solve(spread, x), transposed=True) if self._full else x / spread
        )

    def sharp(self, z, c):
        like, spread = self._read(z)
        x = like.ravel(c)
        return like.unravel(
            _rows(_rows(x, spread).ravel(), spread.T).ravel() if self._full else x * spread
        )

    def divergence(self, u, z):
        like, spread = self._read(z)
        return self._half_square(spread, like.ravel(u) - like.ravel(z))

    def _half_square(self, spread: Array, x: Array) -> Array:
        """xᵀ Σ⁻¹ x / 2."""
        return jnp.sum(_solve(spread, x) ** 2) / 2 if self._full else jnp.sum(x**2 / spread) / 2

    def negative_log_likelihood(self, z, targets):
        like, spread = self._read(z)
        return self._half_square(
            spread, like.ravel(z) - like.ravel(targets_like(z, targets, "Gaussian"))
        )

    def sample(self, key, z):
        like, spread = self._read(z)
        noise = jax.random.normal(key, (like.size,), like.dtype)
        return like.unravel(
            like.ravel(z)
            + (_rows(noise, spread.T).ravel() if self._full else noise * jnp.sqrt(spread))
        )

    def likelihood_lift(self, z, targets):
        like, spread = self._read(z)
        x = like.ravel(z) - like.ravel(targets_like(z, targets, "Gaussian"))
        # Diagonal: c = x/σ² with ℓ = -log σ, so e^-2ℓ c = x.
        return _solve(spread, x) if self._full else x

    def complaint(self, z):
        return f"Gaussian: the covariance is not positive definite: {self.covariance}."
