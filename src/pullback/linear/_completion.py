r"""References for matrix completion: the completion of least nuclear norm, and the effective rank.

\[ \min \lVert\beta\rVert_* \ \text{subject to}\ \beta_\Omega = \text{target}_\Omega
\qquad\text{dual:}\qquad \max \langle Y, \text{target}\rangle\ \text{subject to}\ \lVert Y\rVert_2
\le 1,\ Y = 0 \text{ off } \Omega. \]

The method is the splitting of Douglas and Rachford: reflections at singular value thresholding and
at the observations. The gap between the two values certifies the result.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._base import checks
from .._base.types import Scalar
from .._base.vector import finite_or_nan


def effective_rank(matrix: Float[Array, "m n"]) -> Scalar:
    """The exponential of the entropy of the normalised singular values (Roy and Vetterli).

    The effective rank of the zero matrix is zero.

    **Arguments:**

    - `matrix`: any matrix.
    """
    matrix = checks.floating("effective_rank", "matrix", matrix, 2)
    # Of a size at which the sum neither over- nor underflows. In two steps: half of the exponent
    # has a power of two that is a normal number.
    exponent = jnp.frexp(jnp.max(jnp.abs(matrix)))[1]
    half = exponent // 2
    unit = jnp.ldexp(jnp.ldexp(matrix, -half), half - exponent)
    s = jnp.linalg.svd(finite_or_nan(unit), compute_uv=False)
    total = jnp.sum(s)
    p = s / jnp.where(total > 0, total, 1)
    entropy = -jnp.sum(jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0))
    # With 0 * total a NaN in the matrix, which only compiled code can pass, is a NaN here.
    return jnp.where(total == 0, 0, jnp.exp(entropy) + 0 * total)


def minimum_nuclear_norm(
    target: Float[Array, "m n"],
    mask: Bool[Array, "m n"],
    tolerance: float = 1e-4,
    max_steps: int = 5000,
) -> tuple[Float[Array, "m n"], Scalar]:
    """The completion of least nuclear norm, and its relative duality gap.

    **Arguments:**

    - `target`: the matrix, finite; the result does not depend on entries that are not observed.
    - `mask`: where it is observed.
    - `tolerance`: on the gap.
    - `max_steps`: bound on the number of singular value decompositions.
    """
    target = checks.floating("minimum_nuclear_norm", "target", target, 2)
    mask = checks.mask("minimum_nuclear_norm", "mask", mask, target.shape)
    return _douglas_rachford(
        jnp.where(mask, target, 0),
        mask,
        jnp.asarray(tolerance, target.dtype),
        jnp.asarray(max_steps),
    )


@jax.jit
def _douglas_rachford(
    target: Float[Array, "m n"], mask: Bool[Array, "m n"], tolerance: Scalar, most: Array
) -> tuple[Float[Array, "m n"], Scalar]:
    """The completion and its gap."""
    # The threshold: of the order of the singular values, so that it scales with the data.
    step = jnp.linalg.norm(target, 2) / 4 + jnp.finfo(target.dtype).tiny

    def observed(z):
        return jnp.where(mask, target, z)

    def threshold(z):
        u, s, vt = jnp.linalg.svd(finite_or_nan(z), full_matrices=False)
        return (u * jnp.maximum(s - step, 0)[None, :]) @ vt

    def advance(carry):
        z, _, _, count = carry
        x = observed(z)
        low = threshold(2 * x - z)
        # At a fixed point (x - z)/step is a subgradient of the nuclear norm at x; made feasible, it
        # bounds the optimum from below.
        y = jnp.where(mask, (x - z) / step, 0)
        bound = jnp.sum(y * target) / jnp.maximum(1, jnp.linalg.norm(y, 2))
        value = jnp.sum(jnp.linalg.svd(finite_or_nan(x), compute_uv=False))
        gap = (value - bound) / jnp.where(value > 0, value, 1.0)
        return z + low - x, x, gap, count + 1

    def unfinished(carry):
        return (carry[2] > tolerance) & (carry[3] < most)

    _, x, gap, _ = jax.lax.while_loop(
        unfinished, advance, (target, target, jnp.asarray(jnp.inf, target.dtype), jnp.asarray(0))
    )
    return x, gap
