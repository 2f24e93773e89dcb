r"""With the Moore-Penrose inverse and \(N < D\) the natural flow of the linear model tends to the
direction of least squares. Each step lies in the span of the samples, so

\[ \beta_t = \beta_0 + X^+\bigl(s(t) - s(0)\bigr), \qquad s(t) = t\,y + O(1)
\quad\Longrightarrow\quad \beta_t/t \to X^+y . \]

From \(\beta_0 = 0\) the direction is that of \(X^+y\) at all times; from elsewhere it gets there
like \(1/t\).

The formula \((X^\top X)^{-1}X^\top y\) of the source is for independent columns, as its appendix G
says; for \(N < D\), the case at hand, read \(X^+ y\). And it is the linear model that has this
limit: with two diagonal layers, the same Fisher metric and the same Moore-Penrose inverse, it is
another (`singular_fisher`).
"""

import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._numbers import cosine, distance, generator
from ._logistic import WIDE, interpolating_logits, natural_flow, separable

TIMES = np.array([1.0, 3.0, 10.0, 30.0, 100.0])
SAMPLES, COLUMNS = WIDE


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """From zero and from elsewhere."""
    rng = generator(key)
    zero = []
    there = []
    closed = []
    rank = []
    angles = []
    for _ in range(budget.seeds):
        x, y = separable(rng, SAMPLES, COLUMNS)
        ols = np.linalg.pinv(x) @ y
        start = 0.3 * rng.standard_normal(COLUMNS)
        straight, curved = (natural_flow(x, y, b, TIMES) for b in (np.zeros(COLUMNS), start))
        zero.append(max(1 - cosine(b, ols) for b in straight))
        angles.append([np.arccos(min(cosine(b, ols), 1.0)) for b in curved])
        exact = (
            start + (interpolating_logits(x @ start, y, TIMES) - x @ start) @ np.linalg.pinv(x).T
        )
        closed.append(distance(curved, exact))
        there.append(angles[-1][-2] / angles[-1][-1])
        rank.append(np.linalg.matrix_rank(x.T @ x))
    speed = TIMES[-1] / TIMES[-2]
    rows = (
        at_most("from β₀ = 0: 1 - cosine with X⁺y, all times", max(zero), 1e-12),
        at_most("from β₀ ≠ 0: angle at t = 100", max(a[-1] for a in angles), 0.05),
        at_most(
            f"and it falls like 1/t, from t = 30 to 100 by {speed:.2f}: largest relative "
            "difference",
            max(abs(r / speed - 1) for r in there),
            0.2,
        ),
        at_most("the flow is β₀ + X⁺(s(t) - s(0))", max(closed), 1e-7),
        equals("XᵀX has no inverse, N < D: its rank", max(rank), SAMPLES, Role.CONTROL),
        at_least("control: angle at t = 1", min(a[0] for a in angles), 0.05, Role.CONTROL),
    )
    return Measured(rows, {"times": TIMES, "angles": np.array(angles)})


CLAIM = Claim(
    name="depth-ols-direction",
    source="depth",
    place="section 3, after Theorem 3",
    quotation=(
        "if one uses the Moore-Penrose pseudoinverse to calculate the descent direction, i.e. Eqn. "
        "(5), then β_t converges in direction to the OLS parameter"
    ),
    statement=(
        "With N < D and the Moore-Penrose inverse, β_t converges in direction to the parameter of "
        "ordinary least squares, read as X⁺y."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    remark=(
        "The formula (XᵀX)⁻¹Xᵀy of section 3 is for independent columns (appendix G): XᵀX is "
        "singular for N < D. From zero the direction is exact at all times, from elsewhere it is "
        "reached like 1/t."
    ),
    key_number="from β₀ = 0: 1 - cosine with X⁺y, all times",
)
