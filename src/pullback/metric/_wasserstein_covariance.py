r"""The Wasserstein (Bures) metric on Gaussian measures in mean and covariance.

\[ \tfrac12 W_2^2 = \tfrac12\|\mu_u - \mu_z\|^2 + \tfrac12\mathrm{tr}\bigl(\Sigma_u + \Sigma_z -
2(\Sigma_z^{1/2}\Sigma_u\Sigma_z^{1/2})^{1/2}\bigr). \]

Its Hessian at \(\Sigma_u = \Sigma_z = \Sigma\) is \(M X = \tfrac12 L\), where \(L\) is the
symmetric solution of \(\Sigma L + L\Sigma = X\) (Lyapunov), and \(M^+ C = 2(\Sigma C + C\Sigma)\).
In one dimension \(X = 2\sigma\dot\sigma\), \(L = \dot\sigma/\sigma\), and \(\langle X, MX\rangle =
\dot\sigma^2\). **The metric does not see antisymmetric matrices**: a \(d \times d\) array is read
as its symmetric part.

The root is the transport itself. Let \(\Sigma = BB^\top\) (Cholesky). A displacement \(H\) of \(B\)
changes \(\Sigma\) by \(D H = HB^\top + BH^\top\), with \(D^\top C = 2CB\), and \(DD^\top = M^+\) on
symmetric matrices. So \(S = (D^\top)^+\):

\[ S^+ C = 2CB, \qquad S^\top X = LB, \qquad S H = M(HB^\top + BH^\top), \]

\(S^\top X\) being the least displacement that achieves \(X\). **Assumes** \(\Sigma\) positive
definite.
"""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._base import AbstractMetric, AbstractRoot
from ._indefinite import describe
from ._outputs import Named, mean_and_covariance, symmetric
from ._roots import SQRT, spectral


@jax.custom_jvp
def lyapunov(covariance: Float[Array, "d d"], x: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The solution L of ΣL + LΣ = X."""
    values, vectors = jnp.linalg.eigh(covariance)
    return vectors @ ((vectors.T @ x @ vectors) / (values[:, None] + values[None, :])) @ vectors.T


@lyapunov.defjvp
def _lyapunov_jvp(primals, tangents):
    """The derivative of the solution, by the same equation: Σ dL + dL Σ = dX - dΣ L - L dΣ."""
    # No derivative of eigenvectors, which have none where eigenvalues coincide.
    covariance, x = primals
    d_covariance, dx = tangents
    solution = lyapunov(covariance, x)
    return solution, lyapunov(covariance, dx - d_covariance @ solution - solution @ d_covariance)


_lyapunov = jax.vmap(lyapunov)


class TransportRoot(AbstractRoot):
    """The root over b independent variables: displacements of all means, then of all factors B."""

    log_scale: Float[Array, " q"]
    covariance: Float[Array, "b d d"]
    factor: Float[Array, "b d d"]
    reader: Named

    def unit(self, w):
        b, d, _ = self.covariance.shape
        x = w[b * d :].reshape(b, d, d) @ jnp.swapaxes(self.factor, -1, -2)
        return self.reader.put(mean=w[: b * d], covariance=_lyapunov(self.covariance, symmetric(x)))

    def unit_transpose(self, v):
        v = self.reader.get(v)
        x = symmetric(v["covariance"]).reshape(self.covariance.shape)
        return jnp.concatenate(
            [v["mean"].ravel(), (_lyapunov(self.covariance, x) @ self.factor).ravel()]
        )

    def unit_lift(self, c):
        c = self.reader.get(c)
        matrix = symmetric(c["covariance"]).reshape(self.covariance.shape)
        return jnp.concatenate([c["mean"].ravel(), (2 * matrix @ self.factor).ravel()])


@jax.vmap
def _fidelity(covariance: Array, other: Array) -> Array:
    """tr (Σ_z^{1/2} Σ_u Σ_z^{1/2})^{1/2}."""
    # With the Cholesky factor of Σ_z instead of its symmetric root the eigenvalues are the same.
    factor = jnp.linalg.cholesky(other)
    return jnp.trace(spectral(SQRT, factor.T @ covariance @ factor))


_read = partial(mean_and_covariance, owner="WassersteinGaussianCovariance()")


class WassersteinGaussianCovariance(AbstractMetric):
    """The W₂ metric of Gaussian variables in mean and covariance.

    The outputs are `{"mean": (..., d), "covariance": (..., d, d)}`, or a named tuple or module with
    these fields; leading axes are independent. The covariance must be positive definite.
    """

    nonsingular: ClassVar[bool] = False

    def root(self, z):
        reader, _, covariance = _read(z)
        b, d, _ = covariance.shape
        return TransportRoot(
            jnp.zeros(b * (d + d * d), covariance.dtype),
            covariance,
            jnp.linalg.cholesky(covariance),
            reader,
        )

    def apply(self, z, v):
        reader, _, covariance = _read(z)
        v = reader.get(v)
        x = symmetric(v["covariance"]).reshape(covariance.shape)
        return reader.put(mean=v["mean"], covariance=_lyapunov(covariance, x) / 2)

    def sharp(self, z, c):
        reader, _, covariance = _read(z)
        c = reader.get(c)
        matrix = symmetric(c["covariance"]).reshape(covariance.shape)
        return reader.put(
            mean=c["mean"], covariance=2 * (covariance @ matrix + matrix @ covariance)
        )

    def divergence(self, u, z):
        _, mean, covariance = _read(u)
        _, other_mean, other = _read(z)
        traces = jnp.trace(covariance, axis1=-2, axis2=-1) + jnp.trace(other, axis1=-2, axis2=-1)
        return jnp.sum((mean - other_mean) ** 2) / 2 + jnp.sum(
            traces / 2 - _fidelity(covariance, other)
        )

    def complaint(self, z):
        _, _, covariance = _read(z)
        worst = min(covariance, key=lambda x: float(np.linalg.eigvalsh(np.asarray(x))[0]))
        return describe(
            worst,
            "WassersteinGaussianCovariance: the covariance",
            "It must be positive definite: model a factor of it.",
        )
