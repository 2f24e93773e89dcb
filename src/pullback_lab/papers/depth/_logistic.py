r"""Logistic models on separable data, written out in NumPy: what the claims are held against.

With labels \(y = \pm1\), \(\tilde x_i = y_i x_i\), \(u_i = \tilde x_i\cdot\beta\) and \(\varphi(u)
= 1/(1 + e^{-u})\), gradient and Fisher matrix are

\[ \nabla L = -\tilde X^\top \varphi(-u), \qquad F = \tilde X^\top
\mathrm{diag}[\varphi(u)\varphi(-u)]\,\tilde X , \]

both summed or both averaged: in the natural gradient the factor cancels. \(F\) is also the Hessian
of \(L\), so the natural flow is the Newton flow, \(\nabla L(\beta_t) = e^{-t}\,\nabla L(\beta_0)\),
and \(\beta_t\) minimises the convex function \(L(\beta) - e^{-t}\,\nabla L(\beta_0)\cdot\beta\).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import pullback as pb


def phi(u: np.ndarray) -> np.ndarray:
    """The logistic function, without overflow."""
    return np.exp(-np.logaddexp(0.0, -u))


def logits(beta: Float[Array, " d"], x: Float[Array, "N d"]) -> Float[Array, " N"]:
    """The linear model."""
    return x @ beta


def diagonal(weights: Float[Array, "L d"], x: Float[Array, "N d"]) -> Float[Array, " N"]:
    """A linear diagonal network: the coefficients are the product of the rows."""
    return x @ jnp.prod(weights, axis=0)


def stacked(params: dict, x: Float[Array, "N d"]) -> Float[Array, " N"]:
    """`diagonal` of any depth up to the number of rows: rows from `depth` on are left out. One
    program serves all depths.
    """
    layers = params["layers"]
    active = jnp.broadcast_to(jnp.arange(layers.shape[0])[:, None], layers.shape) < params["depth"]
    return x @ jnp.prod(jnp.where(active, layers, 1.0), axis=0)


LINEAR = pb.Composite(logits, metric=pb.metric.Bernoulli())
DIAGONAL = pb.Composite(diagonal, metric=pb.metric.Bernoulli())
STACKED = pb.Composite(stacked, metric=pb.metric.Bernoulli())
WIDE = (8, 12)
TALL = (20, 4)
"""Shapes of the inputs. Most claims share them, and so the compiled flows."""
SAVED = 32


def batch(x: np.ndarray, y: np.ndarray) -> tuple[Array, Array]:
    """The data as the library takes them, labels in {0, 1}."""
    return jnp.asarray(x), jnp.asarray((y + 1) / 2)


def separable(
    rng: np.random.Generator, samples: int, columns: int, margin: float = 0.2
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian inputs and the labels of a random teacher, moved away from its plane."""
    teacher = rng.standard_normal(columns)
    teacher /= np.linalg.norm(teacher)
    x = rng.standard_normal((samples, columns))
    y = np.sign(x @ teacher)
    return x + margin * np.outer(y, teacher), y


def gradient(x: np.ndarray, y: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The gradient of the summed loss."""
    signed = y[:, None] * x
    return -signed.T @ phi(-signed @ beta)


def fisher(x: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The summed Fisher matrix; the labels play no part."""
    return x.T @ ((phi(x @ beta) * phi(-x @ beta))[:, None] * x)


def natural_flow(x: np.ndarray, y: np.ndarray, beta: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The library's natural flow of the linear model, at some times."""
    return np.asarray(
        follow(LINEAR, jnp.asarray(beta), x, y, times, pb.NaturalFlow(solver=pb.solver.SVD()))
    )


def follow(
    problem: pb.Composite,
    params: Any,
    x: np.ndarray,
    y: np.ndarray,
    times: np.ndarray,
    kind: pb.AbstractFlow,
    **options: Any,
) -> Any:
    """A flow at some times, which are filled up to one number of them so that one program serves
    all.
    """
    times = np.asarray(times, float)
    between = np.setdiff1d(np.linspace(0.0, times[-1], SAVED + 2)[1:-1], times)[
        : SAVED - times.size
    ]
    ts = np.union1d(times, between)
    options = {"rtol": 1e-9, "atol": 1e-11, **options}
    sol = pb.flow(problem, params, batch(x, y), t1=times[-1], ts=ts, kind=kind, **options)
    if not bool(sol.result == pb.RESULTS.successful):
        # What is saved for later times would be the end, over and over.
        raise RuntimeError(f"the flow stopped at t = {float(sol.t):.6g}: {sol.message}")
    moving = eqx.filter(sol.saved, eqx.is_inexact_array)
    return jax.tree.map(lambda a: a[np.searchsorted(ts, times)], moving)


def newton_flow(x: np.ndarray, y: np.ndarray, beta: np.ndarray, t: float) -> np.ndarray:
    """The natural flow at a time, from one convex problem: ∇L = e^-t ∇L(β₀), by damped Newton steps
    from β₀. Needs X of full column rank.
    """
    start = gradient(x, y, beta)
    for level in np.linspace(0.0, t, max(2, int(np.ceil(4 * t)) + 1))[1:]:
        target = np.exp(-level) * start
        beta = _minimise(lambda b, c=target: gradient(x, y, b) - c, lambda b: fisher(x, b), beta)
    return beta


def _minimise(slope: Callable, hessian: Callable, beta: np.ndarray) -> np.ndarray:
    for _ in range(50):
        step = np.linalg.solve(hessian(beta), slope(beta))
        beta = beta - step
        if np.linalg.norm(step) <= 1e-13 * (1 + np.linalg.norm(beta)):
            break
    return beta


def interpolating_logits(s: np.ndarray, y: np.ndarray, t: float | np.ndarray) -> np.ndarray:
    """The logits under the natural flow when the Jacobian is onto, eq. (68): y log(e^(t + c) - 1)
    with c = log(1 + e^(y s₀)).
    """
    time = np.asarray(t, float)[..., None] + np.logaddexp(0.0, y * s)
    return y * (time + np.log1p(-np.exp(-time)))
