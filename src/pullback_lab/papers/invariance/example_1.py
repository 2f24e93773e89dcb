r"""Example 1. A point where the model is smooth and two parametrisations are not proper. The
paper's example is a drawing; here is one in numbers:

\[ \varphi(s, t) = (s, t^3), \qquad \psi(s, t) = (-t^3, s) \ \text{(rotated by a right angle)},
\qquad \varphi(0) = \psi(0) = 0. \]

Both are onto the plane, so that 0 is a smooth point of the model; the spans there are the two axes.
For \(\mathrm dL = c\) the natural gradient is \(c\), and the natural parameter gradients on the
model are \((c_1, 0)\) and \((0, c_2)\).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._numbers import generator
from ._diagrams import draw_projection

DIFFERENTIAL = np.array([0.8, 0.6])
SMALL = 1e-9


def phi(xi: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """The plane, with the second coordinate slowed down at 0."""
    return jnp.stack([xi[0], xi[1] ** 3])


def psi(theta: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """The same, rotated by a right angle."""
    return jnp.stack([-(theta[1] ** 3), theta[0]])


def inverse(z: np.ndarray) -> np.ndarray:
    """φ⁻¹, by cube roots."""
    return np.stack([z[..., 0], np.cbrt(z[..., 1])], axis=-1)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Both parametrisations in the origin."""
    rng = generator(key)
    errors = []
    gaps = []
    for c in (DIFFERENTIAL, *rng.standard_normal((5 * budget.seeds, 2))):
        loss = eqx.Partial(jnp.vdot, jnp.asarray(c))
        first, second = (
            np.asarray(pb.natural_gradient(pb.Composite(f, loss=loss), jnp.zeros(2)).pushforward)
            for f in (phi, psi)
        )
        errors.append(max(np.abs(first - [c[0], 0]).max(), np.abs(second - [0, c[1]]).max()))
        gaps.append(float(abs(np.linalg.norm(first - second) - np.linalg.norm(c))))
    spans = [np.asarray(jax.jacfwd(f)(jnp.zeros(2))) for f in (phi, psi)]
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 9), np.linspace(-1, 1, 9)), axis=-1).reshape(
        -1, 2
    )
    onto = np.abs(np.asarray(jax.vmap(phi)(jnp.asarray(inverse(grid)))) - grid).max()
    moved = inverse(np.asarray(psi(jnp.asarray([SMALL, 0.0])))) - inverse(
        np.asarray(psi(jnp.zeros(2)))
    )
    proper = [
        pb.examine(pb.Composite(f, loss=jnp.sum), jnp.zeros(2), radius=0.1).proper
        for f in (phi, psi)
    ]
    elsewhere = [
        pb.examine(pb.Composite(f, loss=jnp.sum), jnp.ones(2), radius=0.1).proper
        for f in (phi, psi)
    ]
    rows = (
        at_most(
            "the natural parameter gradients are (c₁, 0) and (0, c₂), the projections of the "
            "natural gradient: off by",
            max(errors),
            1e-14,
        ),
        at_most("they differ by |c|, so that they agree for dL = 0 only: off by", max(gaps), 1e-13),
        equals(
            "dimension of the sum of the two spans",
            np.linalg.matrix_rank(np.concatenate(spans, axis=1)),
            2,
        ),
        equals(
            "of each alone, both counted",
            sum(int(np.linalg.matrix_rank(span)) for span in spans),
            2,
        ),
        equals("parametrisations that examine finds proper there", sum(proper), 0),
        equals("and at (1, 1)", sum(elsewhere), 2, Role.CONTROL),
        at_most(
            "φ is onto the plane near 0: largest error of φ(φ⁻¹(z))", onto, 1e-15, Role.CONTROL
        ),
        at_least(
            "no diffeomorphism: difference quotient of φ⁻¹∘ψ in 0, step 1e-9",
            np.linalg.norm(moved) / SMALL,
            1e5,
            Role.CONTROL,
        ),
    )
    loss = eqx.Partial(jnp.vdot, jnp.asarray(DIFFERENTIAL))
    projected = [
        np.asarray(pb.natural_gradient(pb.Composite(f, loss=loss), jnp.zeros(2)).pushforward)
        for f in (phi, psi)
    ]
    directions = [np.linalg.svd(span)[0][:, 0] for span in spans]
    return Measured(
        rows,
        {
            "gradient": DIFFERENTIAL,
            "spans": np.stack(directions),
            "projected": np.stack(projected),
        },
    )


CLAIM = Claim(
    name="example-1",
    source="invariance",
    place="Example 1, Figures 3 and 4",
    quotation=(
        "for non-singular points, we can construct two parametrisations that give different "
        "natural parameter gradients on the same point of the model"
    ),
    statement=(
        "Also in a smooth point of the model two parametrisations that are not proper have "
        "different natural parameter gradients: the projections of the natural gradient on two "
        "spans that intersect in zero only."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw_projection,
)
