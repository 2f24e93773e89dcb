r"""In a singular point of the model the result depends on the parametrisation, even if the Fisher
matrix is not degenerate and nothing is overparametrised: the crossing of a curve, run through by
\(\varphi\) and by \(\varphi \circ f\) with \(f(\xi_1) = \xi_2\).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._numbers import generator
from ..invariance.figure_eight import phi, psi, pushforward


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The figure eight."""
    gaps = []
    lines = []
    for c in generator(key).standard_normal((5 * budget.seeds, 2)):
        first = pushforward(phi, 0.0, c)
        second = pushforward(psi, 0.0, c)
        gaps.append(float(np.linalg.norm(first - second) / np.linalg.norm(c)))
        lines.append(
            max(abs(first @ [1.0, -2.0]), abs(second @ [1.0, 2.0]))
        )  # on the line of (2, 1), on that of (-2, 1)
    grams = [
        float(pb.pullback(pb.Composite(f, loss=jnp.sum), jnp.zeros(1)).matrix()[0, 0])
        for f in (phi, psi)
    ]
    proper = [pb.examine(pb.Composite(f, loss=jnp.sum), jnp.zeros(1)).proper for f in (phi, psi)]
    found = pb.examine(pb.Composite(phi, loss=jnp.sum), jnp.zeros(1), other=jnp.array([np.pi]))
    singular = found.meeting is not None and found.meeting.singular
    return Measured(
        (
            at_least("the two results differ, relative to |dL|: smallest", min(gaps), 0.79),
            at_most("each is on the tangent of its own branch: off by", max(lines), 1e-13),
            at_least("neither Fisher matrix is degenerate: smallest", min(grams), 1.0),
            equals("parametrisations that examine finds proper there", sum(proper), 2),
            equals("examine calls the crossing a singular point", int(singular), 1, Role.CONTROL),
        )
    )


CLAIM = Claim(
    name="singular-point",
    source="abstract",
    place="Gradient in singular points",
    quotation=(
        "even for a non-degenerate FIM the procedure for calculating the gradient described in "
        "Theorem 1 gives a result that is parametrisation-dependent"
    ),
    statement=(
        "In singular points of the model the natural gradient depends on the parametrisation "
        "even if the Fisher matrix is not degenerate and the model is not overparametrised."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
