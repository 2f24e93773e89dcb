r"""LSMR (Fong and Saunders, 2011) on vectors that are spread over devices.

It is MINRES on \(B^\top B x = B^\top b\), by the bidiagonalisation of Golub and Kahan: u on the
rows, v on the parameters. A product with \(B\) is made where the rows are, one with \(B^\top\) ends
in a sum over devices, and of u only the norm is needed everywhere. lineax's LSMR, which runs on one
device, does not trace inside of `jax.shard_map`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.types import Scalar

Norm = Callable[[PyTree], Scalar]


def lsmr(
    forward: Callable[[PyTree], PyTree],
    adjoint: Callable[[PyTree], PyTree],
    norms: tuple[Norm, Norm],
    b: PyTree,
    rtol: float,
    max_steps: int,
) -> tuple[PyTree, Array]:
    """Return the x of least norm among those of least ‖b - Bx‖, and the steps taken.

    `norms` are those of x and of b. It ends where ‖Bᵀρ‖ ≤ rtol ‖B‖‖ρ‖ or ‖ρ‖ ≤ rtol (‖b‖ +
    ‖B‖‖x‖), ρ = b - Bx, by the estimates of the recurrence.
    """
    norm_x, norm_b = norms
    size = norm_b(b)
    u = _over(b, size)
    v = adjoint(u)
    alpha = norm_x(v)
    v = _over(v, alpha)
    one, zero = jnp.ones_like(alpha), jnp.zeros_like(alpha)
    nothing = jax.tree.map(jnp.zeros_like, v)
    # In units of ‖b‖, so that squares of what is small remain.
    start: dict[str, Any] = {
        "x": nothing, "u": u, "v": v, "h": v, "hbar": nothing, "alpha": alpha, "zetabar": alpha,
        "alphabar": alpha, "rho": one, "rhobar": one, "cbar": one, "sbar": zero, "zeta": zero,
        "betadd": one, "betad": zero, "rhod": one, "tau": zero, "theta": zero,
        "square": alpha**2, "steps": jnp.zeros((), jnp.int32), "going": (alpha > 0) & (size > 0),
    }  # fmt: skip

    def step(s):
        u = jax.tree.map(lambda a, b: a - s["alpha"] * b, forward(s["v"]), s["u"])
        beta = norm_b(u)
        u = _over(u, beta)
        v = jax.tree.map(lambda a, b: a - beta * b, adjoint(u), s["v"])
        alpha = norm_x(v)
        v = _over(v, alpha)
        c, sine, rho = _rotation(s["alphabar"], beta)
        theta_new, alphabar = sine * alpha, c * alpha
        theta_bar = s["sbar"] * rho
        cbar, sbar, rhobar = _rotation(s["cbar"] * rho, theta_new)
        zeta, zetabar = cbar * s["zetabar"], -sbar * s["zetabar"]
        factor = _ratio(theta_bar * rho, s["rho"] * s["rhobar"])
        hbar = jax.tree.map(lambda h, g: h - factor * g, s["h"], s["hbar"])
        rate, back = _ratio(zeta, rho * rhobar), _ratio(theta_new, rho)
        x = jax.tree.map(lambda x, g: x + rate * g, s["x"], hbar)
        h = jax.tree.map(lambda v, h: v - back * h, v, s["h"])
        rest, estimate = _residual(s, c, sine, theta_bar, rhobar, zeta)
        square = s["square"] + beta**2
        largest = jnp.sqrt(square)
        steps = s["steps"] + 1
        solved = rest <= rtol * (1 + largest * norm_x(x))
        stationary = jnp.abs(zetabar) <= rtol * largest * rest
        ended = solved | stationary | (alpha == 0) | (beta == 0) | ~jnp.isfinite(rest)
        return {
            "x": x, "u": u, "v": v, "h": h, "hbar": hbar, "alpha": alpha, "zetabar": zetabar,
            "alphabar": alphabar, "rho": rho, "rhobar": rhobar, "cbar": cbar, "sbar": sbar,
            "zeta": zeta, "square": square + alpha**2, "steps": steps,
            "going": ~ended & (steps < max_steps),
        } | estimate  # fmt: skip

    found = jax.lax.while_loop(lambda s: s["going"], step, start)
    return jax.tree.map(lambda x: size * x, found["x"]), found["steps"]


def _residual(
    s: dict[str, Any], c: Scalar, sine: Scalar, theta_bar: Scalar, rhobar: Scalar, zeta: Scalar
) -> tuple[Scalar, dict[str, Scalar]]:
    """Return the norm of the residual, from the same rotations, and what it needs next time."""
    beta_hat, betadd = c * s["betadd"], -sine * s["betadd"]
    ct, st, rho_tilde = _rotation(s["rhod"], theta_bar)
    theta, rhod = st * rhobar, ct * rhobar
    betad = -st * s["betad"] + ct * beta_hat
    tau = _ratio(s["zeta"] - s["theta"] * s["tau"], rho_tilde)
    rest = jnp.hypot(betad - _ratio(zeta - theta * tau, rhod), betadd)
    return rest, {"betadd": betadd, "betad": betad, "rhod": rhod, "tau": tau, "theta": theta}


def _over(tree: PyTree, size: Scalar) -> PyTree:
    """Return a tree of length one; zero if its length is."""
    return jax.tree.map(lambda x: x / jnp.where(size > 0, size, 1.0), tree)


def _ratio(a: Scalar, b: Scalar) -> Scalar:
    """Return a/b, and 0 for b = 0."""
    return jnp.where(b == 0, 0.0, a / jnp.where(b == 0, 1.0, b))


def _rotation(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Return cosine, sine and length of the rotation that takes (a, b) to (length, 0)."""
    size = jnp.hypot(a, b)
    return jnp.where(size == 0, 1.0, _ratio(a, size)), _ratio(b, size), size
