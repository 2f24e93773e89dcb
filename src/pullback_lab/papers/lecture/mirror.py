r"""Mirror descent: \(\nabla_u\rho(u_\star, w) = -\lambda^{-1}\nabla J(w)\), on the simplex up to a
multiple of \((1, \dots, 1)\), with closed forms:

\[ \mathrm{KL}(u\|w):\ u \propto w\,e^{-g/\lambda}, \qquad \mathrm{KL}(w\|u):\ u = \lambda w/(g +
\nu), \qquad \tfrac12\|u - w\|^2:\ u = w - g/\lambda. \]
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator

SIZE = 5


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Random probabilities and costs."""
    rng = generator(key)
    forward = []
    reverse = []
    closed = []
    plain = []
    moved = []
    for _ in range(4 * budget.seeds):
        w = rng.dirichlet(np.full(SIZE, 3.0))
        g = rng.standard_normal(SIZE)
        weight = float(rng.uniform(0.5, 2.0))
        problem = pb.Composite(lambda p: p, loss=eqx.Partial(jnp.vdot, jnp.asarray(g)))
        u, v, x = (
            np.asarray(pb.mirror_step(problem, jnp.asarray(w), weight=weight, mirror=mirror).params)
            for mirror in (pb.KLMirror(), pb.ReverseKLMirror(), pb.EuclideanMirror())
        )
        # The gradient of ρ in u plus g/λ must be constant over the coordinates.
        forward.append(float(np.ptp(np.log(u / w) + g / weight)))
        reverse.append(float(np.ptp(-w / v + g / weight)))
        softmax = w * np.exp(-g / weight)
        closed.append(distance(u, softmax / softmax.sum()))
        plain.append(distance(x, w - g / weight))
        moved.append(distance(v, u))
    return Measured(
        (
            at_most(
                "KL(u || w): gradient of ρ is -g/λ on the simplex, largest error",
                max(forward),
                1e-12,
            ),
            at_most("it is the closed form w exp(-g/λ), normalised", max(closed), 1e-13),
            at_most(
                "KL(w || u): gradient of ρ is -g/λ on the simplex, largest error",
                max(reverse),
                1e-10,
            ),
            at_most("squared distance: it is gradient descent", max(plain), 1e-14),
            at_least(
                "the two directions of KL give different steps: smallest difference",
                min(moved),
                1e-3,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="mirror-descent",
    source="lecture",
    place="Approximation 1",
    quotation="Closed form solutions for many ρ of interest (e.g. KL divergence)",
    statement=(
        "With the cost linearised the proximal point satisfies ∇ρ(u, w) = -∇J(w)/λ. There are "
        "closed forms, as for KL; for squared distance it is gradient descent."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
