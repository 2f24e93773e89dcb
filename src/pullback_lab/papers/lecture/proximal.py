r"""The proximal point method with half the squared distance is implicit gradient descent:

\[ u_\star = \arg\min_u J(u) + \tfrac\lambda2\|u - w\|^2 \iff u_\star = w - \lambda^{-1}\nabla
J(u_\star). \]
"""

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from ._problem import PARAMS, PLAIN, cost, flat

WEIGHTS = (1.0, 5.0, 25.0)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Three weights, and a tiny one."""
    slope = jax.jit(jax.grad(cost))
    start = flat(PARAMS)
    fixed = []
    same = []
    explicit = []
    for weight in WEIGHTS:
        step = pb.proximal_step(PLAIN, PARAMS, weight=weight, rtol=1e-13)
        implicit = pb.implicit_step(PLAIN, PARAMS, step=1 / weight, rtol=1e-13)
        u = flat(step.params)
        fixed.append(
            float(
                np.linalg.norm(u - start + flat(slope(step.params)) / weight)
                / np.linalg.norm(u - start)
            )
        )
        same.append(float(np.linalg.norm(u - flat(implicit.params)) / np.linalg.norm(u - start)))
        explicit.append(
            float(
                np.linalg.norm(u - start + flat(slope(PARAMS)) / weight) / np.linalg.norm(u - start)
            )
        )
    free = pb.proximal_step(PLAIN, PARAMS, weight=1e-3, throw=False)
    falls = float(np.linalg.norm(flat(slope(free.params))) / np.linalg.norm(flat(slope(PARAMS))))
    return Measured(
        (
            at_most(
                "u = w - ∇J(u)/λ for the proximal point u: largest relative error",
                max(fixed),
                1e-10,
            ),
            at_most("proximal_step and implicit_step agree: largest difference", max(same), 1e-10),
            at_most("λ = 0.001: it nearly minimises J; the gradient falls to", falls, 0.05),
            at_least(
                "the explicit step w - ∇J(w)/λ is another: smallest difference",
                min(explicit),
                1e-3,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="proximal-implicit",
    source="lecture",
    place="Proximal optimisation",
    quotation=(
        "This is implicit gradient descent: it's almost a gradient descent update, except that the "
        "gradient is evaluated at u⋆"
    ),
    statement=(
        "With squared Euclidean distance the proximal point is a step of implicit gradient "
        "descent; as the weight of the distance goes to zero it minimises the cost itself."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
