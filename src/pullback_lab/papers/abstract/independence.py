r"""Theorem 1 of the abstract, and the paragraphs after it. In a smooth point of the model, two
*proper* parametrisations, whatever their numbers of parameters and whether or not a diffeomorphism
relates them, lead to one natural gradient with any generalised inverse.

The model is the image of `outer`, a surface of dimension three. It is parametrised by six numbers,
by four, and by three. On the parameters the vectors of the first two cannot even be compared; for
\(\tilde\varphi = \varphi \circ f\) they can, and differ by \(\Delta\) with \(\mathrm
d\varphi\,\Delta = 0\).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._inverses import random_inverse
from .._numbers import distance, generator
from ..invariance._curved import METRIC, inner, loss, matrix, outer, phi, point
from ..invariance.theorem_2 import comparisons, worst

POINTS = 4
INVERSES = 10


def other(theta: Float[Array, " 4"]) -> Float[Array, " 5"]:
    """The same model in four parameters."""
    return outer(jnp.stack([theta[0] + theta[1], jnp.sinh(theta[2]), theta[3] ** 3 + theta[3]]))


def root(value: float) -> float:
    """The real t with t³ + t = value, by Cardano."""
    half = value / 2
    disc = np.sqrt(value**2 / 4 + 1 / 27)
    return float(np.cbrt(half + disc) + np.cbrt(half - disc))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Three parametrisations of a model at the same points of it."""
    rng = generator(key)
    apart = []
    meet = []
    ranks = []
    jacobians = {
        "six": jax.jit(jax.jacfwd(phi)),
        "four": jax.jit(jax.jacfwd(other)),
        "three": jax.jit(jax.jacfwd(outer)),
    }
    for _ in range(POINTS * budget.seeds):
        xi = point(rng)
        u = np.asarray(inner(jnp.asarray(xi)))
        split = rng.uniform(-1, 1)
        theta = np.array([split, u[0] - split, np.arcsinh(u[1]), root(u[2])])
        z = np.asarray(outer(jnp.asarray(u)))
        meet.append(float(np.abs(np.asarray(other(jnp.asarray(theta))) - z).max()))
        m = np.asarray(matrix(jnp.asarray(z)))
        c = np.asarray(jax.grad(loss)(jnp.asarray(z)))
        ju = np.asarray(jacobians["three"](jnp.asarray(u)))
        expected = ju @ np.linalg.solve(ju.T @ m @ ju, ju.T @ c)
        for name, at in (("six", xi), ("four", theta)):
            j = np.asarray(jacobians[name](jnp.asarray(at)))
            ranks.append(int(np.linalg.matrix_rank(j)))
            apart += [
                distance(j @ (random_inverse(rng, j.T @ m @ j) @ (j.T @ c)), expected)
                for _ in range(INVERSES)
            ]
        six = pb.natural_gradient(
            pb.Composite(phi, loss=loss, metric=METRIC), jnp.asarray(xi)
        ).pushforward
        four = pb.natural_gradient(
            pb.Composite(other, loss=loss, metric=METRIC), jnp.asarray(theta)
        ).pushforward
        apart.append(distance(six, four))
    found = comparisons(Budget(budget.full, 1), key)["nonlinear"]
    return Measured(
        (
            at_most(
                f"six and four parameters, {INVERSES} random inverses each: largest distance "
                "from the gradient in three",
                max(apart),
                1e-10,
            ),
            at_most("φ̃ = φ∘f: what dφ sees of Δ, (6): largest", worst(found, "unseen"), 1e-11),
            at_least("Δ itself: smallest", min(one["parameters"] for one in found), 0.02),
            equals(
                "points in which a parametrisation is not proper",
                sum(rank != 3 for rank in ranks),
                0,
                Role.CONTROL,
            ),
            at_most("the parametrisations meet: largest distance", max(meet), 1e-13, Role.CONTROL),
        )
    )


CLAIM = Claim(
    name="independence",
    source="abstract",
    place="Theorem 1, (4) to (6)",
    quotation="the MP inverse preserves the parameter independence in overparametrised models",
    statement=(
        "In smooth points of the model, proper parametrisations lead to one natural gradient "
        "with any generalised inverse: overparametrisation does not affect parametrisation "
        "independence. What depends on the parametrisation, on the parameters, disappears on the "
        "model."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
