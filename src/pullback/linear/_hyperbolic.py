r"""Natural gradient flow of a diagonal network of depth 2 where the data leave β undetermined.

Along \(d_l = \frac{c_l}{s}\odot e\) with \(c_1 = w_2\), \(c_2 = w_1\) the imbalance \(\kappa =
w_1^2 - w_2^2\) is conserved, so \(s^2 = w_1^2 + w_2^2 = \sqrt{4\beta^2 + \kappa^2}\), and

\[ \dot\beta = S^2X^\top\,(XS^2X^\top)^{-1}\,\dot s_X, \qquad s_X = X\beta. \]

\(S^{-2} = \nabla^2\psi\) for the *hyperbolic entropy* \(\psi\), \(\nabla\psi(\beta) =
\tfrac12\,\mathrm{asinh}(2\beta/|\kappa|)\). So \(\nabla\psi(\beta_t) - \nabla\psi(\beta_0)\) stays
in the range of \(X^\top\): \(\beta_t\) is the Bregman projection of \(\beta_0\) on \(\{X\beta =
s_X(t)\}\), the minimiser of \(D_\psi(\beta, \beta_0)\) there. As \(|\kappa|/|\beta|\) tends to zero
\(\psi\) tends to a multiple of the \(\ell_1\) norm. From small weights, and at late times, the flow
therefore tends to the *interpolant of the labels of least \(\ell_1\) norm*, not to the interpolant
of least \(\ell_2\) norm.

The projection is computed in its dual, \(\min_\nu \sum_j \frac{|\kappa_j|}{4}\cosh(2\theta_j) -
\nu\cdot\text{target}\), \(\theta = \nabla\psi(\beta_0) + X^\top\nu\), by Newton's method.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base import checks
from .._base.types import Scalar


def imbalance(weights: Float[Array, "2 D"]) -> Float[Array, " D"]:
    """|w₁² - w₂²|, conserved by the flow."""
    return jnp.abs((weights[0] - weights[1]) * (weights[0] + weights[1]))


def entropy_gradient(beta: Float[Array, " D"], kappa: Float[Array, " D"]) -> Float[Array, " D"]:
    """∇ψ(β) = asinh(2β/κ)/2."""
    return jnp.arcsinh(2 * beta / kappa) / 2


def hyperbolic_projection(
    x: Float[Array, "N D"],
    target: Float[Array, " N"],
    beta: Float[Array, " D"],
    kappa: Float[Array, " D"],
    tolerance: float = 1e-10,
) -> Float[Array, " D"]:
    r"""The Bregman projection of β in the hyperbolic entropy on \(\{X\beta = \text{target}\}\).

    **Arguments:**

    - `x`: inputs with independent rows, no more than columns.
    - `target`: the logits to reach.
    - `beta`: the point to project.
    - `kappa`: the imbalance of each coordinate, positive.
    - `tolerance`: on the logits, relative to the largest of `target` and of those of `beta`.
    """
    owner = "hyperbolic_projection"
    x = checks.floating(owner, "x", x, 2)
    rows, columns = x.shape
    if rows > columns:
        wanted = f"of shape (N, D) with N <= D, not {x.shape}: rows must be independent"
        raise checks.error(owner, "x", x, wanted)
    target = checks.vector(owner, "target", target, rows, "one per row of x").astype(x.dtype)
    beta = checks.vector(owner, "beta", beta, columns, "one per column of x").astype(x.dtype)
    kappa = checks.vector(owner, "kappa", kappa, columns, "one per column of x").astype(x.dtype)
    if not bool(jnp.all(kappa > 0)):
        why = "with |w1| = |w2| in a coordinate its sign is fixed, and the entropy is another"
        raise checks.error(owner, "kappa", kappa, f"positive: {why}")
    size = jnp.maximum(jnp.max(jnp.abs(target)), jnp.max(jnp.abs(x @ beta)))
    size = jnp.where(size > 0, size, 1)
    result, residual = _dual_newton(
        x, target, entropy_gradient(beta, kappa), kappa, jnp.asarray(tolerance, x.dtype), size
    )
    # No logit is better than the rounding of the sum that it is.
    rounding = 100 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x) @ jnp.abs(result)) / size
    if not float(residual) <= max(tolerance, 1e-7, float(rounding)):
        raise RuntimeError(
            f"hyperbolic_projection found no projection: the logits are off by "
            f"{float(residual):.3g}, relative. Are the rows of x independent?"
        )
    return result


@jax.jit
def _dual_newton(
    x: Float[Array, "N D"],
    target: Float[Array, " N"],
    start: Float[Array, " D"],
    kappa: Float[Array, " D"],
    tolerance: Scalar,
    scale: Scalar,
) -> tuple[Float[Array, " D"], Scalar]:
    """The projection and the relative error of its logits, by Newton's method on the dual."""

    def point(nu):
        theta = start + x.T @ nu
        return theta, kappa / 2 * jnp.sinh(2 * theta)

    def dual(nu):
        theta, _ = point(nu)
        return jnp.sum(kappa / 4 * jnp.cosh(2 * theta)) - nu @ target

    def step(carry):
        nu, _, count = carry
        theta, beta = point(nu)
        residual = target - x @ beta
        # The rows of X S as a least-squares problem: X S² Xᵀ is never formed.
        root = jnp.sqrt(kappa * jnp.cosh(2 * theta))
        r = jnp.linalg.qr((x * root[None, :]).T, mode="r")
        change = jax.scipy.linalg.solve_triangular(
            r, jax.scipy.linalg.solve_triangular(r, residual, trans="T")
        )
        # The dual is a sum of exponentials: a unit step in θ changes it by a factor e.
        longest = jnp.max(jnp.abs(x.T @ change))
        change = change * jnp.minimum(1.0, 2.0 / jnp.maximum(longest, 1e-300))
        now = dual(nu)
        slope = residual @ change

        def shorter(size):
            return size / 2

        def too_long(size):
            return (dual(nu + size * change) > now - 1e-4 * size * slope + 1e-13 * jnp.abs(now)) & (
                size > 1e-6
            )

        size = jax.lax.while_loop(too_long, shorter, jnp.asarray(1.0, x.dtype))
        nu = nu + size * change
        return nu, jnp.max(jnp.abs(target - x @ point(nu)[1])) / scale, count + 1

    def unfinished(carry):
        return (carry[1] > tolerance) & (carry[2] < 400)

    nu, residual, _ = jax.lax.while_loop(
        unfinished, step, (jnp.zeros_like(target), jnp.asarray(jnp.inf, x.dtype), jnp.asarray(0))
    )
    return point(nu)[1], residual
