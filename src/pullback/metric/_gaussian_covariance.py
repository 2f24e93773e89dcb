r"""The Fisher metric of multivariate Gaussian variables in mean and covariance.

\[ \langle(\dot\mu, \dot\Sigma), M (\dot\mu, \dot\Sigma)\rangle = \dot\mu^\top\Sigma^{-1}\dot\mu
   + \tfrac12 \mathrm{tr}(\Sigma^{-1}\dot\Sigma\,\Sigma^{-1}\dot\Sigma). \]

**The metric does not see antisymmetric matrices.** Covariance tangents are symmetric; a \(d \times
d\) array is read as its symmetric part, so \(M\dot\Sigma =
\tfrac12\Sigma^{-1}\mathrm{sym}(\dot\Sigma)\Sigma^{-1}\) and \(M^+ C =
2\Sigma\,\mathrm{sym}(C)\Sigma\). An output \(\Sigma\) that is not symmetric stands for its
symmetric part too.

With \(\Sigma = LL^\top\) and \(W = L^{-1}\mathrm{sym}(\dot\Sigma)L^{-\top}\) the form on
covariances is \(\tfrac12\|W\|_F^2 = \sum_i (W_{ii}/\sqrt2)^2 + \sum_{i>j} W_{ij}^2\), which gives
the root: \(S^\top\dot\Sigma = (W_{ii}/\sqrt2,\ W_{ij})\) of \(d(d+1)/2\) entries, all of them
needed. Its adjoint is \(S w = L^{-\top} V L^{-1}\) with \(V_{ii} = w_{ii}/\sqrt2\), \(V_{ij} =
V_{ji} = w_{ij}/2\), so \(S^+ C = (\sqrt2 U_{ii},\ 2U_{ij})\) with \(U = L^\top\mathrm{sym}(C)L\).
For the negative log-likelihood, with \(t = L^{-1}(y - \mu)\), \(U = \tfrac12(I - tt^\top)\).
"""

import math
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._base import AbstractLikelihood, AbstractRoot
from ._indefinite import describe
from ._outputs import Named, mean_and_covariance, symmetric, targets_like


class GaussianRoot(AbstractRoot):
    """The root over b independent variables in d dimensions: all means, then all covariances."""

    log_scale: Float[Array, " q"]
    cholesky: Float[Array, "b d d"]
    reader: Named

    def unit(self, w):
        mean, matrix = _unpack(w, self.cholesky.shape[1], 1 / math.sqrt(2), 1 / 2)
        mean = _solve(self.cholesky, mean[..., None], transposed=True)
        half = _solve(self.cholesky, matrix, transposed=True)
        return self.reader.put(
            mean=mean, covariance=symmetric(_solve(self.cholesky, _t(half), transposed=True))
        )

    def unit_transpose(self, v):
        mean, matrix = _events(self.reader, v)
        mean = _solve(self.cholesky, mean[..., None])
        matrix = symmetric(_solve(self.cholesky, _t(_solve(self.cholesky, symmetric(matrix)))))
        return _pack(mean, matrix, 1 / math.sqrt(2), 1.0)

    def unit_lift(self, c):
        mean, matrix = _events(self.reader, c)
        upper = _t(self.cholesky)
        return _pack(
            upper @ mean[..., None], upper @ symmetric(matrix) @ self.cholesky, math.sqrt(2), 2.0
        )


def _t(matrix: Array) -> Array:
    """The transpose, over leading axes."""
    return jnp.swapaxes(matrix, -1, -2)


@partial(jnp.vectorize, signature="(d,d),(d,k)->(d,k)", excluded=("transposed",))
def _solve(cholesky: Array, x: Array, transposed: bool = False) -> Array:
    """L⁻¹ x, or L⁻ᵀ x."""
    return jax.scipy.linalg.solve_triangular(cholesky, x, lower=True, trans=1 if transposed else 0)


def _events(reader: Named, tree) -> tuple[Array, Array]:
    """The mean and covariance leaves of a tree as arrays (b, d) and (b, d, d)."""
    leaves = reader.get(tree)
    d = leaves["mean"].shape[-1]
    return leaves["mean"].reshape(-1, d), leaves["covariance"].reshape(-1, d, d)


def _pack(mean: Array, matrix: Array, diagonal: float, below: float) -> Array:
    """The means, then diagonal and lower triangle of each symmetric matrix, scaled."""
    rows, columns = np.tril_indices(matrix.shape[-1], -1)
    triangle = jnp.concatenate(
        [diagonal * jnp.diagonal(matrix, axis1=-2, axis2=-1), below * matrix[..., rows, columns]],
        axis=-1,
    )
    return jnp.concatenate([mean.ravel(), triangle.ravel()])


def _unpack(w: Array, d: int, diagonal: float, below: float) -> tuple[Array, Array]:
    """The means and the symmetric matrices with the given entries, scaled."""
    triangle = d * (d + 1) // 2
    b = w.size // (d + triangle)
    mean = w[: b * d].reshape(b, d)
    rest = w[b * d :].reshape(b, triangle)
    rows, columns = np.tril_indices(d, -1)
    lower = jnp.zeros((b, d, d), w.dtype).at[:, rows, columns].set(below * rest[:, d:])
    middle = (
        jnp.zeros((b, d, d), w.dtype).at[:, np.arange(d), np.arange(d)].set(diagonal * rest[:, :d])
    )
    return mean, lower + _t(lower) + middle


class GaussianMeanCovariance(AbstractLikelihood):
    """Gaussian variables with a mean and a covariance, both outputs of the model.

    The outputs are `{"mean": (..., d), "covariance": (..., d, d)}`, or a named tuple or module with
    these fields; leading axes are independent. The covariance must be positive definite. Targets
    have the shape of the mean.
    """

    nonsingular: ClassVar[bool] = False

    def root(self, z):
        reader, _, covariance = mean_and_covariance(z, "GaussianMeanCovariance()")
        b, d, _ = covariance.shape
        return GaussianRoot(
            jnp.zeros(b * (d + d * (d + 1) // 2), covariance.dtype),
            jnp.linalg.cholesky(covariance),
            reader,
        )

    def apply(self, z, v):
        reader, _, covariance = mean_and_covariance(z, "GaussianMeanCovariance()")
        mean, matrix = _events(reader, v)
        half = jnp.linalg.solve(covariance, symmetric(matrix))
        return reader.put(
            mean=jnp.linalg.solve(covariance, mean[..., None]),
            covariance=jnp.linalg.solve(covariance, _t(half)) / 2,
        )

    def sharp(self, z, c):
        reader, _, covariance = mean_and_covariance(z, "GaussianMeanCovariance()")
        mean, matrix = _events(reader, c)
        return reader.put(
            mean=covariance @ mean[..., None],
            covariance=2 * covariance @ symmetric(matrix) @ covariance,
        )

    def divergence(self, u, z):
        # (tr(Σ_z⁻¹Σ_u) - d - log det(Σ_z⁻¹Σ_u) + (μ_u - μ_z)ᵀΣ_z⁻¹(μ_u - μ_z))/2
        _, mean, covariance = mean_and_covariance(u, "GaussianMeanCovariance()")
        _, other, given = mean_and_covariance(z, "GaussianMeanCovariance()")
        cholesky = jnp.linalg.cholesky(given)
        ratio = _solve(cholesky, jnp.linalg.cholesky(covariance))
        diagonal = jnp.diagonal(ratio, axis1=-2, axis2=-1)
        trace = jnp.sum(ratio**2) - diagonal.size
        return (
            trace
            - 2 * jnp.sum(jnp.log(diagonal))
            + jnp.sum(_solve(cholesky, (mean - other)[..., None]) ** 2)
        ) / 2

    def negative_log_likelihood(self, z, targets):
        cholesky, t = self._whiten(z, targets)
        return jnp.sum(t**2) / 2 + jnp.sum(jnp.log(jnp.diagonal(cholesky, axis1=-2, axis2=-1)))

    def sample(self, key, z):
        reader, mean, covariance = mean_and_covariance(z, "GaussianMeanCovariance()")
        noise = jax.random.normal(key, mean.shape, mean.dtype)[..., None]
        return (mean + (jnp.linalg.cholesky(covariance) @ noise)[..., 0]).reshape(
            reader.get(z)["mean"].shape
        )

    def likelihood_lift(self, z, targets):
        _, t = self._whiten(z, targets)
        eye = jnp.broadcast_to(
            jnp.eye(t.shape[1], dtype=t.dtype), (t.shape[0], t.shape[1], t.shape[1])
        )
        return _pack(-t, (eye - t * _t(t)) / 2, math.sqrt(2), 2.0)

    def _whiten(self, z, targets) -> tuple[Array, Array]:
        """L and t = L⁻¹(y - μ), the latter of shape (b, d, 1)."""
        reader, mean, covariance = mean_and_covariance(z, "GaussianMeanCovariance()")
        y = targets_like(reader.get(z)["mean"], targets, "GaussianMeanCovariance").reshape(
            mean.shape
        )
        cholesky = jnp.linalg.cholesky(covariance)
        return cholesky, _solve(cholesky, (y - mean)[..., None])

    def complaint(self, z):
        _, _, covariance = mean_and_covariance(z, "GaussianMeanCovariance()")
        worst = min(covariance, key=lambda x: float(np.linalg.eigvalsh(np.asarray(x))[0]))
        return describe(
            worst,
            "GaussianMeanCovariance: the covariance",
            "The covariance must be positive definite: model its Cholesky factor.",
        )
