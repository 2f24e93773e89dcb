r"""A matrix of Gaussian variables of mean \(\beta\) and standard deviation \(\sigma_n\) has the
Fisher matrix \(F(\beta) = \sigma_n^{-2} I\) in its mean.

The expectation of \((X - \mu)(X - \mu)^\top/\sigma_n^4\), eq. (17), is taken by Gauss-Hermite
quadrature, exact for polynomials of this degree; and the Hessian of \(\mathrm{KL}(\mu \Vert \mu')\)
on the diagonal is taken by automatic differentiation. Both are compared with the library's metric.

The lemma holds; eq. (15) writes \(\mathcal N(\mu, \sigma_n I)\) with \(\sigma_n\) a standard
deviation, eq. (17) needs the variance \(\sigma_n^2 I\).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Verdict, at_most
from .._numbers import distance, generator


def second_moment(sigma: float, size: int) -> np.ndarray:
    """E[(X - μ)(X - μ)ᵀ]/σ⁴ by quadrature with 5 nodes in each of the coordinates."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[nodes] * size, indexing="ij"), axis=-1).reshape(-1, size) * sigma
    mass = np.prod(
        np.stack(np.meshgrid(*[weights] * size, indexing="ij"), axis=-1).reshape(-1, size), axis=-1
    )
    return grid.T @ (mass[:, None] * grid) / sigma**4


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A 2 x 2 matrix, flat."""
    rng = generator(key)
    beta = jnp.asarray(rng.standard_normal(4))
    sigma = float(rng.uniform(0.2, 3.0))
    metric = pb.metric.Gaussian(sigma**2)
    expected = np.eye(4) / sigma**2
    hessian = jax.jit(jax.hessian(lambda m: metric.divergence(beta, m)))(beta)
    matrix = jax.jit(jax.vmap(metric.apply, in_axes=(None, 1), out_axes=1))(beta, jnp.eye(4))
    rows = (
        at_most("eq. (17) by quadrature", distance(second_moment(sigma, 4), expected), 1e-13),
        at_most("the library's Gaussian metric", distance(matrix, expected), 1e-14),
        at_most("the Hessian of the KL divergence", distance(hessian, expected), 1e-13),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-lemma-2",
    source="depth",
    place="appendix A, Lemma 2, eqs. (15) to (17)",
    quotation=(
        "the Fisher information matrix of the product matrix in matrix factorization is F(β) = "
        "I/σ_n²"
    ),
    statement=(
        "With Gaussian noise of standard deviation σ on all entries, the Fisher matrix of the "
        "product matrix is I/σ²."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
