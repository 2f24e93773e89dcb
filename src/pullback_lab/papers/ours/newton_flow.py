r"""The natural flow of a linear logistic model is the Newton flow, and so is known at any time
without a time step:

\[ F(\beta) = \tilde X^\top\mathrm{diag}[\varphi(u)\varphi(-u)]\tilde X = \nabla^2 L(\beta)
\quad\Longrightarrow\quad \tfrac{d}{dt}\nabla L(\beta_t) = -\nabla L(\beta_t), \qquad \nabla
L(\beta_t) = e^{-t}\,\nabla L(\beta_0), \]

that is, \(\beta_t\) minimises the convex function \(L(\beta) - e^{-t}\,\nabla
L(\beta_0)\cdot\beta\). The source does not say so. It holds for every likelihood of an exponential
family in its natural parameter with a linear model, and fails as soon as the model is not linear:
for two diagonal layers \(F\) and the Hessian differ.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from ..depth._logistic import (
    DIAGONAL,
    LINEAR,
    TALL,
    batch,
    fisher,
    follow,
    gradient,
    natural_flow,
    newton_flow,
    separable,
)
from ..depth.diagonal_network import jacobian

TIMES = np.linspace(0.0, 15.0, 16)
MIDDLE = 3
"""The index of the time at which one step is compared."""
LENGTH = 0.3


def hessian_of(problem: pb.Composite, params: Array, data: tuple[Array, Array]) -> Array:
    """The Hessian of the mean loss in flat parameters, by automatic differentiation."""

    def value(flat):
        s = problem.model(flat.reshape(params.shape), data[0])
        return jnp.mean(jax.nn.softplus((1 - 2 * data[1]) * s))

    return jax.jit(jax.hessian(value))(params.ravel())


def central_step(x: np.ndarray, y: np.ndarray, start: np.ndarray, beta: np.ndarray) -> float:
    """The difference of a natural gradient step at a point of the flow and a Newton step of the
    convex problem of a later point, with derivatives by automatic differentiation.
    """
    later = (1 - LENGTH) * np.exp(-TIMES[MIDDLE])
    signed = jnp.asarray(y[:, None] * x)
    loss = lambda b: jnp.mean(jax.nn.softplus(-signed @ b))
    tilt = later * jax.grad(loss)(jnp.asarray(start))
    problem = lambda b: loss(b) - tilt @ b
    point = jnp.asarray(beta)
    newton = np.linalg.solve(jax.hessian(problem)(point), jax.grad(problem)(point))
    natural = pb.natural_gradient(LINEAR, point, batch(x, y)).vector
    return distance(LENGTH * np.asarray(natural), newton)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The natural flow, the Newton flow and the convex problem."""
    rng = generator(key)
    hessian = []
    decay = []
    newton = []
    convex = []
    central = []
    deep = []
    for _ in range(budget.seeds):
        x, y = separable(rng, *TALL)
        start = 0.5 * rng.standard_normal(4)
        data = batch(x, y)
        hessian.append(
            distance(fisher(x, start) / len(x), hessian_of(LINEAR, jnp.asarray(start), data))
        )
        beta = natural_flow(x, y, start, TIMES)
        initial = gradient(x, y, start)
        decay.append(
            max(
                distance(gradient(x, y, b), np.exp(-t) * initial)
                for t, b in zip(TIMES, beta, strict=True)
            )
        )
        newton.append(
            distance(follow(LINEAR, jnp.asarray(start), x, y, TIMES, pb.NewtonFlow()), beta)
        )
        central.append(central_step(x, y, start, beta[MIDDLE]))
        convex.append(distance(newton_flow(x, y, start, TIMES[-1]), beta[-1]))
        w = rng.standard_normal((2, 4))
        j = jacobian(w)
        f = fisher(x, w.prod(axis=0)) / len(x)
        deep.append(distance(j.T @ f @ j, hessian_of(DIAGONAL, jnp.asarray(w), data)))
    rows = (
        at_most("the Fisher matrix is the Hessian of the loss", max(hessian), 1e-13),
        at_most("∇L(β_t) = e^-t ∇L(β₀), t ≤ 15: relative error", max(decay), 1e-6),
        at_most("natural and Newton flow of the library", max(newton), 1e-7),
        at_most("the flow at t = 15 against one convex problem", max(convex), 1e-7),
        at_most(
            f"a natural gradient step of {LENGTH} on the flow at t = {TIMES[MIDDLE]:g} is a full "
            f"Newton step of the problem with {1 - LENGTH:g} e^-t in place of e^-t, relative error",
            max(central),
            1e-6,
        ),
        at_least(
            "control: for two diagonal layers Fisher matrix and Hessian differ by",
            min(deep),
            0.01,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="newton-flow",
    source="ours",
    place="beside section 3 of Kerekes et al.",
    statement=(
        "The natural flow of a linear logistic model is its Newton flow: the gradient decays as "
        "e^-t, and each point of the flow solves one convex problem."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
