r"""Fewer samples than columns: the logits of the natural flow do not change when the data are
transformed.

\[ N < D,\quad X \text{ of full rank},\quad A \text{ invertible},\quad X\beta_0 = XA^\top\beta'_0
\quad\Longrightarrow\quad X\beta_t = XA^\top\beta'_t . \]

\(J = X\) is onto, so \(\dot s = -F(s)^{-1}\nabla L(s)\) has no \(X\) in it. The flows on \(X\) and
on \(XA^\top\) are followed by the library and compared with each other and with the closed form
(68). "Equivalent initial conditions" need only mean equal logits.

It is the logits that are invariant. The coefficients are not, \(A^\top\beta'_t \ne \beta_t\), as
\(F\) is singular and the gauge decides (`singular_fisher`); nor are the logits of the Euclidean
flow.
"""

import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._logistic import WIDE, gradient, interpolating_logits, natural_flow, separable

TIMES = np.linspace(0.0, 8.0, 9)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Flows on data, on transformed data, and on transformed data from another start with the same
    logits.
    """
    rng = generator(key)
    errors = {name: [] for name in ("same", "other", "closed", "beta", "euclidean")}
    for _ in range(budget.seeds):
        x, y = separable(rng, *WIDE)
        columns = WIDE[1]
        a = rng.standard_normal((columns, columns)) + np.eye(columns)
        start = 0.5 * rng.standard_normal(columns)
        moved = np.linalg.solve(a.T, start)
        z = x @ a.T
        # Another start with the same logits: add what X Aᵀ does not see.
        shifted = moved + (np.eye(columns) - np.linalg.pinv(z) @ z) @ rng.standard_normal(columns)
        beta, other, third = (
            natural_flow(data, y, b, TIMES) for data, b in ((x, start), (z, moved), (z, shifted))
        )
        s = beta @ x.T
        errors["same"].append(distance(other @ z.T, s))
        errors["other"].append(distance(third @ z.T, s))
        errors["closed"].append(distance(s, interpolating_logits(x @ start, y, TIMES)))
        errors["beta"].append(distance(other[-1] @ a, beta[-1]))
        errors["euclidean"].append(distance(z @ gradient(z, y, moved), x @ gradient(x, y, start)))
    rows = (
        at_most("logits on X and on XAᵀ, t ≤ 8: largest difference", max(errors["same"]), 1e-7),
        at_most("from another start with the same logits", max(errors["other"]), 1e-7),
        at_most("both against the closed form (68)", max(errors["closed"]), 1e-7, Role.CONTROL),
        at_least(
            "control: the coefficients are not carried over, Aᵀβ' and β differ by",
            min(errors["beta"]),
            1e-2,
            Role.CONTROL,
        ),
        at_least(
            "control: the Euclidean flow moves the logits differently from the start, by",
            min(errors["euclidean"]),
            1e-2,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-theorem-1",
    source="depth",
    place="Theorem 1 and appendix C.1",
    quotation=(
        "Then Xβ = XAᵀβ' (with the assumption that β and β' have equivalent initial conditions)."
    ),
    statement=(
        "With N < D and X of full rank, the logits of the natural flow are the same on X and on "
        "XAᵀ, A invertible."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
