r"""Natural gradient flow of logistic regression at any time, by one convex problem.

The Fisher matrix of \(L = \sum_i \log(1 + e^{-u_i})\), \(u = \tilde X\beta\), is the Hessian. So \(\frac{d}{dt}\nabla L(\beta_t) = F\dot\beta_t = -\nabla L(\beta_t)\) and

\[ \nabla L(\beta_t) = e^{-t}\,\nabla L(\beta_0) \iff \beta_t = \arg\min_\beta\ \sum_i \log(1 + e^{-u_i}) + e^{-t} q_i u_i, \qquad q_i = \varphi(-u_i(0)). \]

*Independent rows.* Then \(\varphi(-u_i(t)) = e^{-t} q_i\) for each i, that is \(\log(1 + e^{u_i(t)}) = t + \log(1 + e^{u_i(0)})\), and with the Moore-Penrose inverse
\(\beta_t = \beta_0 + \tilde X^{+}(u(t) - u(0))\).

*Otherwise* Newton's method along the path in t: a step of the flow (`least_squares`) starts each solve, whose steps \(\delta\) come from
\(\tilde X^\top W\tilde X\delta = \tilde X^\top(\varphi(-u) - e^{-t}q)\) by the triangle of a QR of \(W^{1/2}\tilde X\). Near a solution the D heaviest rows all weigh about \(e^{-t}\).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._population import log_fisher
from ._weighted import least_squares, semi_normal

STRIDE = 2.0
"""The longest early step in t between two solves."""
LARGEST = 3.0
"""The largest change of a logit in one Newton step: the weights change by a factor e with each unit."""


def independent_rows(x: Float[Array, "N D"]) -> bool:
    """Whether the rows of a matrix are linearly independent.

    **Arguments:**

    - `x`: a concrete matrix.
    """
    if x.shape[0] > x.shape[1]:
        return False
    s = np.linalg.svd(np.asarray(x), compute_uv=False)
    return bool(s[-1] > max(x.shape) * np.finfo(s.dtype).eps * s[0])


def logits_in_closed_form(u: Float[Array, " N"], t: Float[Array, ""] | float) -> Float[Array, " N"]:
    r"""\(u(t) = \log(e^{t + c} - 1)\), \(c = \log(1 + e^{u(0)})\): the margins under natural gradient flow, if the rows are independent.

    **Arguments:**

    - `u`: the margins \(y_i s_i\) at time 0.
    - `t`: the time.
    """
    u = jnp.asarray(u)
    level = jax.nn.softplus(u) + jnp.asarray(t, u.dtype)
    # log(e^v - 1) = v + log(-expm1(-v)); v is at least t and, for u very negative at t = 0, about e^u: there return u itself.
    return jnp.where(level > 0, level + jnp.log(-jnp.expm1(-jnp.where(level > 0, level, 1))), u)


@jax.jit
def _minus_natural_gradient(u, x):
    return least_squares(x, log_fisher(u), jax.nn.softplus(-u), jnp.ones_like(u))


@jax.jit
def _newton_step(u, x, q, t):
    """The step for ∇L(β) = e⁻ᵗ∇L(β₀). Everything is divided by the largest weight, of the order of e⁻ᵗ: nothing underflows."""
    log_weights = log_fisher(u)
    heaviest = jnp.max(log_weights)
    defect = jnp.exp(-jax.nn.softplus(u) - heaviest) - q * jnp.exp(-t - heaviest)
    return semi_normal(x, log_weights, x.T @ defect)


def newton_flow(beta: Float[Array, " D"], x: Float[Array, "N D"], t: float, tolerance: float) -> Float[Array, " D"]:
    """The flow at time t.

    **Arguments:**

    - `beta`: the start.
    - `x`: the rows, signed by their labels.
    - `t`: the time.
    - `tolerance`: relative, on the last change of the logits.
    """
    start = x @ beta
    if independent_rows(x):
        return beta + jnp.linalg.pinv(x) @ (logits_in_closed_form(start, t) - start)
    # The flow moves in the row space: coordinates there, of which there may be fewer than columns.
    s, vt = np.linalg.svd(np.asarray(x), full_matrices=False)[1:]
    rank = int(np.sum(s > max(x.shape) * np.finfo(s.dtype).eps * s[0]))
    basis = jnp.eye(x.shape[1], dtype=x.dtype) if rank == x.shape[1] else jnp.asarray(vt[:rank].T)
    return beta + basis @ _path(start, x @ basis, t, tolerance)


def _path(start, x, t, tolerance):
    """From zero along the flow, by steps of it, each put right."""
    q, now, moved = jax.nn.sigmoid(-start), 0.0, jnp.zeros(x.shape[1], x.dtype)
    while now < t:
        step = _minus_natural_gradient(start + x @ moved, x)
        largest = float(jnp.max(jnp.abs(x @ step)))
        # Late, all logits grow in proportion to t and the flow is a straight line: longer strides.
        stride = min(max(STRIDE, now / 4), max(LARGEST, now / 4) / max(largest, 1e-300), t - now)
        now = t if stride == t - now else now + stride
        moved = _corrected(moved + stride * step, start, x, q, now, tolerance)
    return moved


def _corrected(moved, start, x, q, t, tolerance, most=200):
    """Newton's method, each step limited to `LARGEST` in the logits."""
    change = float("inf")
    for _ in range(most):
        u = start + x @ moved
        step = _newton_step(u, x, q, jnp.asarray(t, x.dtype))
        longest = float(jnp.max(jnp.abs(x @ step)))
        before, change = change, longest / max(1.0, float(jnp.max(jnp.abs(u))))
        if not np.isfinite(change):
            break
        moved = moved + min(1.0, LARGEST / max(longest, 1e-300)) * step
        # Rounding: the steps no longer shrink.
        if change < tolerance or (change < 1e-6 and change > before / 2):
            return moved
    raise RuntimeError(f"no solution at t = {t}: the last Newton step changes the logits by {change:.3g}, relative to the largest.")
