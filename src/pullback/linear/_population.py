r"""The Fisher matrix of logistic regression averaged over a population instead of the data.

*Standard normal inputs.* With \(\sigma = |\beta|\), \(b = \beta/\sigma\) and z standard normal,

\[ E[\varphi(s)\varphi(-s)\,xx^\top] = aI + (c - a)\,bb^\top, \qquad a = E[\varphi\varphi_-(\sigma
z)], \quad c = E[z^2\,\varphi\varphi_-(\sigma z)], \]

one-dimensional integrals of functions analytic in a strip. The trapezoidal rule converges
exponentially for them: 401 nodes give all digits at every σ. The inverse is \(a^{-1}(I - bb^\top) +
c^{-1}bb^\top\).

*Any other population* by Monte Carlo: \(F = Z^\top WZ/M = R^\top R/M\) from a QR of \(W^{1/2}Z\),
or from the graded rows of `_graded.py` where light rows decide.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._base.types import Scalar
from ._graded import graded_triangle
from ._weighted import column_units, heavy_rows_span

NODES = np.linspace(-1.0, 1.0, 401)


def log_fisher(u: Array) -> Array:
    r"""\(\log \varphi(u)\varphi(-u)\), for any u."""
    return -jax.nn.softplus(u) - jax.nn.softplus(-u)


def gaussian_moments(norm: Scalar) -> tuple[Scalar, Scalar]:
    """The two integrals a and c."""
    dtype = jnp.result_type(norm)
    # Past |z| = 12 the normal density is zero, past |σz| = 40 the sigmoid's derivative.
    reach = jnp.minimum(jnp.asarray(12.0, dtype), 40.0 / jnp.maximum(norm, 1e-3))
    z = reach * jnp.asarray(NODES, dtype)
    weights = jnp.exp(-(z**2) / 2 - jax.nn.softplus(norm * z) - jax.nn.softplus(-norm * z)) * (
        reach / 200 / np.sqrt(2 * np.pi)
    )
    return jnp.sum(weights), jnp.sum(z**2 * weights)


def gaussian_natural_gradient(
    beta: Float[Array, " D"], gradient: Float[Array, " D"]
) -> Float[Array, " D"]:
    """The gradient under the inverse Fisher matrix of standard normal inputs."""
    norm = jnp.linalg.norm(beta)
    a, c = gaussian_moments(norm)
    b = beta / jnp.where(norm > 0, norm, 1)
    along = b @ gradient
    return (gradient - along * b) / a + (along / c) * b


def sampled_natural_gradient(
    inputs: Float[Array, "M D"], log_weights: Float[Array, " M"], gradient: Float[Array, " D"]
) -> tuple[Float[Array, " D"], Bool[Array, ""]]:
    """The gradient under the inverse Fisher matrix averaged over a sample of inputs.

    Also whether the inputs span all dimensions; the gradient is NaN where they do not.
    """
    units = column_units(inputs)
    rows = inputs / units[None, :]
    arguments = rows, log_weights, gradient / units
    solved, spans = jax.lax.cond(
        heavy_rows_span(rows, log_weights),
        lambda *given: (_solved(*given), jnp.asarray(True)),
        _solved_graded,
        *arguments,
    )
    return jnp.where(spans, solved / units * inputs.shape[0], jnp.nan), spans


def _solved(
    rows: Float[Array, "M D"], log_weights: Float[Array, " M"], covector: Float[Array, " D"]
) -> Float[Array, " D"]:
    """The solution for the summed Fisher matrix, from a QR of the weighted rows."""
    shift = jnp.max(log_weights)
    r = jnp.linalg.qr(rows * jnp.exp((log_weights - shift) / 2)[:, None], mode="r")
    half = jax.scipy.linalg.solve_triangular(r, covector, trans="T")
    return jax.scipy.linalg.solve_triangular(r, half) * jnp.exp(-shift)


def _solved_graded(
    rows: Float[Array, "M D"], log_weights: Float[Array, " M"], covector: Float[Array, " D"]
) -> tuple[Float[Array, " D"], Bool[Array, ""]]:
    """The same for weights of any spread, and whether the rows span all dimensions."""
    none = jnp.zeros_like(log_weights)
    triangle = graded_triangle(rows, log_weights, none, none)
    return triangle.metric_solution(covector), triangle.rank == rows.shape[1]
