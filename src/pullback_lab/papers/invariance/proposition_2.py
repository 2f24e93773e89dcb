r"""Proposition 2 and Remark 3. Nothing but zero is parametrisation independent. With

\[ f(\theta) = \theta^3 + \xi^* \ \text{(coordinate by coordinate)}, \qquad \psi = \varphi \circ f,
\qquad \psi(0) = \varphi(\xi^*), \qquad \mathrm df_0 = 0, \]

\(\mathrm d\psi_0 = 0\): whatever a representation says at \(\theta = 0\), pushed forward it is
zero, and so it would have to be zero at \(\xi^*\). \(f\) is a homeomorphism, but its inverse has no
derivative at \(\xi^*\): Theorem 2 is not contradicted.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import generator
from ._curved import METRIC, PARAMETERS, loss, phi, point

POINTS = 4
SMALL = 1e-3


def cube(theta: Float[Array, " d"], centre: Float[Array, " d"]) -> Float[Array, " d"]:
    """f(θ) = θ³ + ξ*."""
    return theta**3 + centre


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Four representations at some points."""
    rng = generator(key)
    there = []
    here = []
    library = []
    grows = []
    quotient = []
    problem = pb.Composite(phi, loss=loss, metric=METRIC)
    jacobian = jax.jit(jax.jacfwd(phi))
    cubic = jax.jit(lambda theta, centre: jax.jacfwd(lambda t: phi(cube(t, centre)))(theta))
    for _ in range(POINTS * budget.seeds):
        xi = point(rng)
        j = np.asarray(jacobian(xi))
        ng = pb.natural_gradient(problem, jnp.asarray(xi))
        damped = pb.natural_gradient(problem, jnp.asarray(xi), inverse=pb.Tikhonov(0.1))
        representations = (ng.vector, damped.vector, ng.covector, np.ones(PARAMETERS))
        here += [float(np.linalg.norm(j @ np.asarray(vector))) for vector in representations]
        flat = np.asarray(cubic(jnp.zeros(PARAMETERS), jnp.asarray(xi)))
        there.append(float(np.abs(flat).max()))
        line = np.asarray(cube(jnp.linspace(-2, 2, 101)[:, None], jnp.asarray(xi)[None]))
        grows.append(float(np.diff(line, axis=0).min()))
        near = np.asarray(cube(jnp.full(PARAMETERS, SMALL), jnp.asarray(xi))) - xi
        quotient.append(float(SMALL / np.abs(near).max()))
    found = pb.check_invariance(
        problem,
        jnp.asarray(point(rng)),
        reparametrisation=pb.Affine(jnp.eye(PARAMETERS), jnp.zeros(PARAMETERS)),
        counts=(),
    )
    library.append(abs(found.independence - 1))
    return Measured(
        (
            at_most("dψ at θ = 0, so whatever is pushed forward: largest entry", max(there), 0.0),
            at_least(
                "natural, damped and plain gradient and a constant vector, pushed forward at ξ*: "
                "smallest norm",
                min(here),
                0.01,
            ),
            at_most(
                "check_invariance: relative discrepancy for Definition 4 is 1, off by",
                max(library),
                1e-12,
            ),
            at_least(
                "Remark 3: f is one to one, coordinates grow on a grid from -2 to 2: by at least",
                min(grows),
                1e-6,
                Role.CONTROL,
            ),
            at_least(
                "Remark 3: the difference quotient |θ|/|f(θ) - ξ*| of f⁻¹, θ = 1e-3: smallest",
                min(quotient),
                1e5,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="proposition-2",
    source="invariance",
    place="Proposition 2 (Appendix A.1) and Remark 3",
    quotation=(
        "No non-trivial representation of a vector can be parametrisation independent in the sense "
        "of Definition 4."
    ),
    statement=(
        "Parametrisation independence (Definition 4) is too much to ask: a representation that "
        "has it is zero on every model."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
