r"""At least as many samples as columns: the natural flow is carried over by the transformation of
the data,

\[ N \ge D,\quad X \text{ of full rank},\quad \beta_0 = A^\top\beta'_0 \quad\Longrightarrow\quad
A^\top\beta_t(XA^\top, y) = \beta_t(X, y), \]

because \(\nabla_{\beta'} = A\,\nabla_v\) and \(F(\beta') = A\,F(v)\,A^\top\) with \(v =
A^\top\beta'\), eq. (6). Hence the logits are the same too (the Conclusion), and scaling a column of
the data by \(a\) scales its coefficient by \(1/a\).

The library follows both flows; NumPy finds each point of them from one convex problem instead
(`_logistic.newton_flow`), without time steps. The theorem holds. In its proof eqs. (7) and (62)
lose a minus sign and the sketch ends with the wrong letter; see `typos`.
"""

import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._logistic import TALL, fisher, gradient, natural_flow, newton_flow, separable

TIMES = np.linspace(0.0, 6.0, 7)
SAMPLES, COLUMNS = TALL


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A general transformation, and one that scales columns."""
    rng = generator(key)
    errors = {
        name: [] for name in ("beta", "logits", "scaled", "newton", "covariance", "euclidean")
    }
    for _ in range(budget.seeds):
        x, y = separable(rng, SAMPLES, COLUMNS)
        start = 0.5 * rng.standard_normal(COLUMNS)
        beta = natural_flow(x, y, start, TIMES)
        a = rng.standard_normal((COLUMNS, COLUMNS)) + np.eye(COLUMNS)
        scale = np.exp(rng.standard_normal(COLUMNS))
        z = x @ a.T
        moved = np.linalg.solve(a.T, start)
        other = natural_flow(z, y, moved, TIMES)
        errors["beta"].append(distance(other @ a, beta))
        errors["logits"].append(distance(other @ z.T, beta @ x.T))
        errors["scaled"].append(
            distance(natural_flow(x * scale, y, start / scale, TIMES) * scale, beta)
        )
        errors["newton"].append(distance(beta[-1], newton_flow(x, y, start, TIMES[-1])))
        law = (
            distance(gradient(z, y, moved), a @ gradient(x, y, start)),
            distance(fisher(z, moved), a @ fisher(x, start) @ a.T),
        )
        errors["covariance"].append(max(law))
        errors["euclidean"].append(distance(a.T @ gradient(z, y, moved), gradient(x, y, start)))
    rows = (
        at_most("Aᵀβ' and β, t ≤ 6: largest difference", max(errors["beta"]), 1e-7),
        at_most("the Conclusion: logits on X and on XAᵀ", max(errors["logits"]), 1e-7),
        at_most("columns scaled by a, coefficients by 1/a", max(errors["scaled"]), 1e-7),
        at_most(
            "eq. (6): how gradient and Fisher matrix transform", max(errors["covariance"]), 1e-12
        ),
        at_most(
            "the library's flow against a convex problem, t = 6",
            max(errors["newton"]),
            1e-6,
            Role.CONTROL,
        ),
        at_least(
            "control: the Euclidean field is not carried over, it differs by",
            min(errors["euclidean"]),
            1e-2,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-theorem-2",
    source="depth",
    place="Theorem 2, its Conclusion, and appendix C.2",
    quotation=(
        "X has full rank and we consider NGF on the transformed data XAᵀ, then Aᵀβ_t(XAᵀ, y) = "
        "β_t(X, y)"
    ),
    statement=(
        "With N ≥ D and X of full rank, the natural flows on X and on XAᵀ correspond to each "
        "other: Aᵀβ' = β at all times."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
