r"""The derivative of a natural gradient, whatever solver found it.

In orthonormal coordinates of the gauge \(\eta = h(G)\,g\) with \(G = A^\top A\) and \(g = A^\top r
+ g_x\). Let \(\Pi\) be the projection on the row space of \(A\), \(\rho = r - A\eta\), \(t =
A\,h(G)\,\eta\), \(n = (I - \Pi) g_x\). At constant rank (Golub and Pereyra, 1973)

\[ d\eta = A^+(dr - dA\,\eta) + h(G)\,(dA^\top \rho + dg_x) + (I - \Pi)\,dA^\top t + h(G)\,A^+ dA\,
n \]

for the Moore-Penrose inverse. For Tikhonov's the last two terms are absent, and \(-h(G)\,\eta\,dλ\)
joins. Only products with the derivative of \(A\) and the factors at hand enter; no decomposition is
differentiated (theirs have poles where singular values coincide).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat
from ..inverse._base import AbstractInverse, MoorePenrose, Tikhonov
from ..solver._base import Factorised, Whitened


def stop(tree):
    """The tree as a constant for differentiation."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


@eqx.filter_custom_jvp
def attach(
    eta: Flat,
    operator: Whitened,
    inverse: AbstractInverse,
    r: Float[Array, " m"],
    g: Flat,
    *,
    factorised: Factorised,
) -> Flat:
    """The solution η itself, with the derivative above."""
    return eta


@attach.def_jvp
def _attach_jvp(primals, tangents, *, factorised):
    eta, operator, inverse, r, g = primals
    _, d_operator, d_inverse, d_r, d_g = tangents
    factors = factorised.factors
    if not isinstance(inverse, MoorePenrose | Tikhonov):
        raise NotImplementedError(
            f"the natural gradient with {type(inverse).__name__} is not differentiated: where the truncation cuts is not smooth. "
            "Use MoorePenrose(rtol=...) or Tikhonov(damping)."
        )
    metric = operator.metric
    undamped = isinstance(inverse, MoorePenrose)
    residual = operator.scale * (r - metric.unit_mv(operator.gauge.lower(eta)))
    image = operator.mv(factors.covector(eta))
    outside = g - factors.project(g)

    def products(operator, r):
        v = operator.gauge.lower(eta)
        unit = jnp.where(metric.active, r - operator.metric.unit_mv(v), 0.0)
        return (
            unit,
            jnp.where(metric.active, operator.metric.log_scale, 0.0),
            operator.rmv(residual),
            operator.rmv(image) if undamped else None,
            operator.metric.unit_mv(operator.gauge.lower(outside)) if undamped else None,
        )

    (unit, *_), (d_unit, d_log, d_pull, d_image, d_outside) = eqx.filter_jvp(
        products, (operator, r), (d_operator, d_r)
    )

    def or_zero(tangent, like):
        return jnp.zeros_like(like) if tangent is None else tangent

    row = or_zero(d_unit, unit) + or_zero(d_log, unit) * unit
    d_eta = factors.lifted(row) + factors.covector(or_zero(d_pull, eta) + or_zero(d_g, eta))
    if undamped:
        d_image = or_zero(d_image, eta)
        d_eta = d_eta + (d_image - factors.project(d_image))
        d_eta = d_eta + factors.covector(factors.lifted(or_zero(d_outside, unit)))
    elif d_inverse is not None and d_inverse.damping is not None:
        d_eta = d_eta - factors.covector(eta) * jnp.asarray(d_inverse.damping, eta.dtype)
    return eta, d_eta
