r"""Ordinary least squares has the invariance of the natural flow: with \(\beta = X^+y\), \(\beta' =
(XA^\top)^+y\),

\[ N < D:\ X\beta = XA^\top\beta', \qquad\qquad N \ge D,\ X \text{ of full rank}:\ A^\top\beta' =
\beta . \]

Both hold. The proof for \(N < D\) says \(X\beta = y\), for which \(X\) must have full row rank, an
assumption the statement does not make; the conclusion needs it not, as the fitted values are the
projection of \(y\) on the range of \(X\), which is that of \(XA^\top\).
"""

import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import l2_interpolant

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Wide, wide and rank deficient, and tall data."""
    rng = generator(key)
    wide = []
    deficient = []
    tall = []
    residual = []
    coefficients = []
    library = []
    for _ in range(max(budget.seeds, 5)):
        a = rng.standard_normal((9, 9)) + np.eye(9)
        y = rng.choice([-1.0, 1.0], 6)
        x = rng.standard_normal((6, 9))
        low = rng.standard_normal((6, 4)) @ rng.standard_normal((4, 9))
        for data, errors in ((x, wide), (low, deficient)):
            fit = lambda z, y=y: np.linalg.lstsq(z, y, rcond=1e-10)[0]
            errors.append(distance(data @ a.T @ fit(data @ a.T), data @ fit(data)))
        residual.append(distance(low @ np.linalg.pinv(low, rcond=1e-10) @ y, y))
        coefficients.append(distance(a.T @ np.linalg.pinv(x @ a.T) @ y, np.linalg.pinv(x) @ y))
        wide_x, signs = x, y
        x = rng.standard_normal((20, 9))
        y = rng.choice([-1.0, 1.0], 20)
        library += [
            distance(l2_interpolant(z, labels), np.linalg.pinv(z) @ labels)
            for z, labels in ((wide_x, signs), (x, y))
        ]
        tall.append(
            distance(
                a.T @ np.linalg.lstsq(x @ a.T, y, rcond=None)[0],
                np.linalg.lstsq(x, y, rcond=None)[0],
            )
        )
    rows = (
        at_most("N < D: fitted values on X and on XAᵀ", max(wide), 1e-11),
        at_most("N < D, X of rank 4 of 6: the same", max(deficient), 1e-9),
        at_most("N ≥ D: Aᵀβ' and β", max(tall), 1e-11),
        at_most(
            "the library's l2_interpolant is X⁺y, both cases", max(library), 1e-11, Role.CONTROL
        ),
        at_least(
            "control, rank 4 of 6: Xβ is not y, off by, median",
            np.median(residual),
            0.1,
            Role.CONTROL,
        ),
        at_least(
            "control, N < D: the coefficients are not carried over, off by, median",
            np.median(coefficients),
            0.1,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-ols",
    source="depth",
    place="appendix G",
    quotation=(
        "We show the same transformation invariance property for OLS that we showed in Theorem 1,2 "
        "for NGF."
    ),
    statement=(
        "Ordinary least squares is invariant under invertible maps of the data: the fitted "
        "values if N < D, the coefficients if N ≥ D."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
