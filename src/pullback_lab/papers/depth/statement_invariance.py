r"""The natural flow does not depend on the parametrisation. If \(\theta = P(w)\) with Jacobian
\(J\), then \(F(w) = J^\top F(\theta)J\) and the proof rests on

\[ (J^\top F J)^+ = J^+ F^{-1} (J^\top)^+, \qquad J\,J^+ = I, \qquad (J^\top)^+ J^\top = JJ^+ = I .
\]

**Corrected.** All three need \(J\) of full *row* rank (at least as many parameters \(w\) as
\(\theta\)) and \(F(\theta)\) nonsingular. "Full rank" is not enough: if \(J\) has full column rank
only, the parameters reach only a submanifold and \(\dot\theta\) is the projection of the natural
gradient on it; if \(F\) is singular, the law fails too, and only \(F\dot\theta\) is invariant.

The library follows the flow in five parameters \(w\) of three coordinates \(\theta\), for a curved
metric and a nonlinear \(P\); NumPy and SciPy follow it in \(\theta\) and try the law.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.integrate import solve_ivp

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator

TIMES = np.linspace(0.0, 2.0, 9)
TARGET = np.array([0.7, -0.4, 0.2])


def curved(theta: Float[Array, " 3"]) -> Float[Array, "3 3"]:
    """A metric that depends on the point, positive definite."""
    v = jnp.stack([jnp.sin(theta[1]), theta[2], 1.0 + theta[0]])
    return jnp.eye(3) + jnp.outer(v, v)


def loss(theta: Float[Array, " 3"]) -> Float[Array, ""]:
    """A loss with one minimum."""
    d = theta - jnp.asarray(TARGET)
    return jnp.sum(d**2) / 2 + d[0] * d[1] / 3


def wide(w: Float[Array, " 5"]) -> Float[Array, " 3"]:
    """Five parameters on three coordinates, onto."""
    return jnp.stack([w[0] + w[3] * w[4], jnp.sinh(w[1]) + w[3], w[2] + w[0] ** 2 / 4 + w[4]])


def narrow(w: Float[Array, " 2"]) -> Float[Array, " 3"]:
    """Two parameters on three coordinates: J has full rank, but is not onto."""
    return jnp.stack([w[0], w[1], w[0] * w[1]])


def problem(model) -> pb.Composite:
    """The problem in some parameters."""
    return pb.Composite(model, loss=loss, metric=pb.metric.Riemannian(curved))


def law(j: np.ndarray, f: np.ndarray) -> float:
    """How far (JᵀFJ)⁺ is from J⁺F⁺(Jᵀ)⁺."""
    inverse = lambda m: np.linalg.pinv(m, rcond=1e-10)
    return distance(inverse(j) @ inverse(f) @ inverse(j.T), inverse(j.T @ f @ j))


def laws(rng: np.random.Generator, count: int) -> tuple[list[float], list[float], list[float]]:
    """The errors of the law: J of full row rank, J of full column rank, F singular."""
    rows_full = []
    columns_full = []
    singular = []
    for _ in range(count):
        root = rng.standard_normal((3, 3))
        rows_full.append(law(rng.standard_normal((3, 5)), root @ root.T + np.eye(3)))
        columns_full.append(law(rng.standard_normal((5, 3)), np.cov(rng.standard_normal((5, 9)))))
        singular.append(law(rng.standard_normal((3, 5)), root[:, :2] @ root[:, :2].T))
    return rows_full, columns_full, singular


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Flows, then the law for random matrices."""
    rng = generator(key)
    w = jnp.asarray(0.4 * rng.standard_normal(5))
    there = jax.vmap(wide)(
        pb.flow(problem(wide), w, t1=TIMES[-1], ts=TIMES, rtol=1e-9, atol=1e-11).saved
    )
    field = jax.jit(lambda theta: (curved(theta), jax.grad(loss)(theta)))
    natural = lambda t, theta: -np.linalg.solve(*(np.asarray(x) for x in field(jnp.asarray(theta))))
    direct = solve_ivp(
        natural, (0.0, TIMES[-1]), np.asarray(wide(w)), t_eval=TIMES, rtol=1e-10, atol=1e-12
    ).y.T
    j = np.asarray(jax.jacfwd(wide)(w))
    c = np.asarray(jax.grad(loss)(wide(w)))
    euclidean = distance(j @ j.T @ c, c)

    v = jnp.asarray([0.3, -0.5])
    ng = pb.natural_gradient(problem(narrow), v)
    f, c, j = (
        np.asarray(x) for x in (curved(narrow(v)), jax.grad(loss)(narrow(v)), jax.jacfwd(narrow)(v))
    )
    ambient = np.linalg.solve(f, c)
    projected = j @ np.linalg.solve(j.T @ f @ j, j.T @ f @ ambient)
    rows_full, columns_full, singular = laws(rng, 5 * budget.seeds)
    rows = (
        at_most(
            "J onto, flow in w and in θ: largest difference",
            distance(there, direct),
            1e-7,
            Role.CORRECTED,
        ),
        at_most(
            "J onto, F nonsingular: the law (JᵀFJ)⁺ = J⁺F⁻¹(Jᵀ)⁺",
            max(rows_full),
            1e-10,
            Role.CORRECTED,
        ),
        at_most(
            "J of full column rank only: θ̇ against the natural gradient in θ",
            distance(ng.pushforward, ambient),
            1e-6,
        ),
        at_most("the same: the law", min(columns_full), 1e-6),
        at_most(
            "what θ̇ is then: the projection on the range of J",
            distance(ng.pushforward, projected),
            1e-12,
            Role.CORRECTED,
        ),
        at_least(
            "control, J onto and F singular: the law is off by", min(singular), 1e-3, Role.CONTROL
        ),
        at_least("control: the Euclidean fields differ by", euclidean, 1e-2, Role.CONTROL),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-invariance",
    source="depth",
    place="section 2.3, Statement, and appendix E",
    quotation="Assume that (1) the Jacobian ... and (2) F(θ_t) are both full rank for all t.",
    statement=(
        "If the Jacobian of θ = P(w) and F(θ) have full rank, then natural flow in w is natural "
        "flow in θ."
    ),
    verdict=Verdict.CORRECTED,
    stands=True,
    run=run,
    correction=(
        "Full row rank. With full column rank only, θ moves by the projection of the natural "
        "gradient on the range of J."
    ),
    key_number="J onto, flow in w and in θ: largest difference",
)
