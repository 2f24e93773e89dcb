r"""Appendix A.3. The natural parameter gradient depends on the parametrisation, on the parameters
only:

\[ \varphi(\xi) = (\xi_1 + \xi_2, 0), \qquad f(\theta) = (2\theta_1, \theta_2), \qquad L(x, y) =
x^2, \qquad \theta = (1, 1), \ \xi = (2, 1). \]

The solution of \(G(\xi)y = \nabla_\xi L\) of least norm is \(y_\Xi = (3, 3)\). In the other
parameters the natural gradient is \((2.4, 1.2)\), which is \(y_\Theta = (4.8, 1.2)\) in the old
ones. Both move the model by \((6, 0)\).

The same is measured on random maps \(\varphi(\xi) = U\,\mathrm{diag}(1, 10^{-3})\,V^\top\xi\) of
four parameters, whose solution of least norm \(V\,\mathrm{diag}(1, 10^3)\,U^\top\mathrm dL\)
needs no inverse: there the rank, 2, has to be found.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_most
from .._numbers import distance, generator
from ._diagrams import draw_different

XI = np.array([2.0, 1.0])
THETA = np.array([1.0, 1.0])
TANGENT = np.diag([2.0, 1.0])
SINGULAR = np.array([1.0, 1e-3])
"""The singular values of the random maps."""


def phi(xi: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """The model."""
    return jnp.stack([xi[0] + xi[1], jnp.zeros(())])


def psi(theta: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """The model in other parameters."""
    return phi(jnp.asarray(TANGENT) @ theta)


def loss(z: Float[Array, " 2"]) -> Float[Array, ""]:
    """x²."""
    return z[0] ** 2


def least_norm(rng: np.random.Generator) -> float:
    """The error of the natural gradient on a random linear model of four parameters, against the
    solution of least norm from the factors of the map.
    """
    u, v = (np.linalg.qr(rng.standard_normal((n, 2)))[0] for n in (2, 4))
    c = rng.standard_normal(2)
    problem = pb.Composite(
        eqx.Partial(jnp.matmul, jnp.asarray(u * SINGULAR @ v.T)),
        loss=eqx.Partial(jnp.vdot, jnp.asarray(c)),
    )
    return distance(pb.natural_gradient(problem, jnp.zeros(4)).vector, v @ (u.T @ c / SINGULAR))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Both parametrisations, and the gauge that turns one into the other."""
    first = pb.Composite(phi, loss=loss)
    second = pb.Composite(psi, loss=loss)
    old = pb.natural_gradient(first, jnp.asarray(XI))
    new = pb.natural_gradient(second, jnp.asarray(THETA))
    gauge = jnp.asarray(np.linalg.inv(TANGENT @ TANGENT.T))
    gauged = pb.natural_gradient(first, jnp.asarray(XI), inverse=pb.MoorePenrose(gauge=gauge))
    g_old, g_new = jax.jit(
        lambda a, b: (pb.pullback(first, a).matrix(), pb.pullback(second, b).matrix())
    )(jnp.asarray(XI), jnp.asarray(THETA))
    mapped = TANGENT @ np.asarray(new.vector)
    rng = generator(key)
    random = max(least_norm(rng) for _ in range(5 * budget.seeds))
    gradients = max(_off(old.covector, [6, 6]), _off(new.covector, [12, 6]))
    return Measured(
        (
            at_most("y_Ξ = (3, 3), (67): off by", _off(old.vector, [3, 3]), 1e-14),
            at_most("y_Θ = (4.8, 1.2), (68): off by", _off(mapped, [4.8, 1.2]), 1e-14),
            at_most(
                "the difference, (1.8, -1.8), moves the model by",
                _off(old.pushforward, new.pushforward),
                1e-14,
            ),
            at_most("G(ξ) = (1 1; 1 1): off by", _off(g_old, [[1, 1], [1, 1]]), 1e-14),
            at_most("G(θ) = (4 2; 2 1): off by", _off(g_new, [[4, 2], [2, 1]]), 1e-14),
            at_most("gradients (6, 6) and (12, 6): off by", gradients, 1e-14),
            at_most(
                "natural gradient in θ is (2.4, 1.2): off by", _off(new.vector, [2.4, 1.2]), 1e-14
            ),
            at_most(
                "random maps, singular values 1 and 0.001: off the solution of least norm",
                random,
                1e-9,
            ),
            at_most(
                "in the gauge diag(1/4, 1) that in ξ is (4.8, 1.2): off by",
                _off(gauged.vector, [4.8, 1.2]),
                1e-14,
                Role.CONTROL,
            ),
        ),
        {
            "theta": THETA,
            "xi": XI,
            "on theta": np.asarray(new.vector),
            "y_theta": mapped,
            "y_xi": np.asarray(old.vector),
            "pushed": np.stack([np.asarray(ng.pushforward) for ng in (new, old)]),
        },
    )


def _off(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


CLAIM = Claim(
    name="minimum-norm",
    source="invariance",
    place="Appendix A.3, (57) to (71), and Figure 6",
    quotation="Evidently we have y_Ξ ≠ y_Θ.",
    statement=(
        "Two parametrisations of a line by two numbers: the natural gradients (3, 3) and (4.8, "
        "1.2) differ on the parameters and move the model alike."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw_different,
)
