r"""The metric of a pulled back divergence is the pulled back metric, exactly:

\[ \nabla_x^2\,\rho(f(x), f(x_0))\big|_{x = x_0} = J^\top G_z J + \sum_a
\frac{\partial\rho}{\partial z_a}\nabla^2 f_a, \qquad \frac{\partial\rho}{\partial z_a} = 0 \text{
at } z = z_0. \]

For the Gauss-Newton Hessian of a loss the second term is dropped; here there is none.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import open_figure
from .._numbers import distance
from ._problem import FISHER, LABELS, PARAMS, X
from .approximations import divergence
from .rosenbrock import PROBLEM, START, outputs, square

BENT = pb.Composite(
    lambda x: jnp.stack([1 - x[0], 2 * (x[1] - x[0] ** 2)]), lambda z: jnp.sum(z**2)
)
"""Rosenbrock's map with b = 4, to fit the page."""


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Rosenbrock's map with squared distance, and a network with KL averaged over inputs."""
    start = jnp.asarray(START)
    half = lambda x, y: jnp.sum((outputs(x) - outputs(y)) ** 2) / 2
    j = np.array([[-1.0, 0.0], [24.0, 10.0]])
    flat, unravel = ravel_pytree(PARAMS)

    @jax.jit
    def look(start, away):
        metrics = [pb.pullback(PROBLEM, x).matrix() for x in (start, away)]
        hessians = [jax.hessian(half)(x, start) for x in (start, away)]
        cost = jax.hessian(lambda x: square(outputs(x)))(start)
        mean = jax.hessian(lambda u: divergence(unravel(u), PARAMS))(flat)
        return metrics, hessians, cost, mean, pb.pullback(FISHER, PARAMS, (X, LABELS)).matrix()

    (metric, metric_away), (hessian, hessian_away), cost, averaged, fisher = look(
        start, start + jnp.array([0.5, -0.5])
    )
    points = np.stack(
        np.meshgrid(np.linspace(-1.0, 1.0, 5), np.linspace(-0.4, 1.2, 4)), axis=-1
    ).reshape(-1, 2)
    matrix = jax.jit(lambda p: pb.pullback(BENT, p).matrix())
    off = distance(hessian_away, metric_away)
    dropped = distance(2 * np.asarray(metric), cost)
    rows = (
        at_most(
            "Rosenbrock, ρ = |z - z'|²/2: Hessian of f*ρ on the diagonal is JᵀJ",
            distance(hessian, j.T @ j),
            1e-13,
        ),
        at_most("pullback(...).matrix() is the same", distance(metric, j.T @ j), 1e-13),
        at_most(
            "a network, mean KL over the inputs: Hessian is E[JᵀFJ]",
            distance(averaged, fisher),
            1e-12,
        ),
        at_least(
            "off the diagonal the second term is there: the Hessian differs from JᵀJ by",
            off,
            0.01,
            Role.CONTROL,
        ),
        at_least(
            "for a loss it is there: Gauss-Newton 2JᵀJ differs from the Hessian of h by",
            dropped,
            0.01,
            Role.CONTROL,
        ),
    )
    data = {
        "points": points,
        "matrices": np.stack([np.asarray(matrix(jnp.asarray(p))) for p in points]),
        "images": np.asarray(jax.vmap(BENT.model)(jnp.asarray(points))),
    }
    return Measured(rows, data)


def draw(data: Mapping[str, Any]) -> Any:
    """Circles of one radius on the outputs of a bent map, right, and what they are on its
    parameters, left: ellipses that lean with the valley.
    """
    figure, (left, right) = open_figure(columns=2)
    pb.plot.ellipses(data["points"], data["matrices"], radius=0.2, axes=left)
    pb.plot.ellipses(
        data["images"], np.stack([np.eye(2)] * len(data["points"])), radius=0.2, axes=right
    )
    left.set(
        xlabel="$\\theta_1$",
        ylabel="$\\theta_2$",
        title="parameters: the metric pulled back",
        aspect="equal",
    )
    right.set(xlabel="$z_1$", ylabel="$z_2$", title="outputs: Euclidean", aspect="equal")
    return figure


CLAIM = Claim(
    name="pullback-metric",
    source="lecture",
    place="Pullback metric",
    quotation=(
        "The decomposition is similar to the Gauss-Newton Hessian (Lecture 2), except this time "
        "it's exact"
    ),
    statement=(
        "The second-order expansion of a divergence of outputs, pulled back to the parameters, "
        "is JᵀGJ exactly, without the term that the Gauss-Newton approximation drops; for a "
        "network, averaged over the inputs."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
