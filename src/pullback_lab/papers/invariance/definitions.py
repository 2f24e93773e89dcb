r"""Definitions 4, 5 and 6, and Remark 1. A representation \(\mathcal O\) of a vector on the model
is parametrisation independent (4) if

\[ \mathrm d\psi_\theta\,\mathcal O(\psi, \theta) = \mathrm d\varphi_\xi\,\mathcal O(\varphi, \xi)
\quad\text{wherever}\quad \psi(\theta) = \varphi(\xi) , \]

reparametrisation invariant (5) if the same holds where \(\psi = \varphi \circ f\), \(\xi =
f(\theta)\), with a diffeomorphism \(f\), and invariant on the parameters (6) if \(\mathrm
df_\theta\,\mathcal O(\psi, \theta) = \mathcal O(\varphi, \xi)\).

If the model is a manifold and parametrisations are charts, \(f = \varphi^{-1}\circ\psi\) always
exists and the three are one. Here: a chart of three coordinates, others made from it, vectors that
are invariant and one, the plain gradient, that is not.
"""

import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import distance, generator
from ._curved import INNER, METRIC, loss, outer
from .theorem_2 import Composition, change, jacobian

TRIALS = 6


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Charts of a model of dimension three."""
    rng = generator(key)
    rows = []
    problem = pb.Composite(outer, loss=loss, metric=METRIC)
    for _ in range(TRIALS * budget.seeds):
        theta, f = change(rng, rng.standard_normal(INNER), 0.8)
        old = pb.natural_gradient(problem, f(theta))
        new = pb.natural_gradient(_in(f), theta)
        j = np.asarray(jacobian(outer, f(theta)))
        big_f = np.asarray(jacobian(f, theta))
        chain = np.asarray(jacobian(Composition(outer, f), theta))
        w = rng.standard_normal(INNER)
        rows.append(
            {
                "model": distance(new.pushforward, old.pushforward),
                "parameters": distance(big_f @ np.asarray(new.vector), old.vector),
                "implies": distance(chain @ w, j @ (big_f @ w)),
                "plain model": distance(
                    chain @ np.asarray(new.covector), j @ np.asarray(old.covector)
                ),
                "plain parameters": distance(big_f @ np.asarray(new.covector), old.covector),
            }
        )
    worst = lambda name: max(row[name] for row in rows)
    least = lambda name: min(row[name] for row in rows)
    return Measured(
        (
            at_most(
                "natural gradient, on the model (4 and 5): largest difference",
                worst("model"),
                1e-11,
            ),
            at_most("natural gradient, on the parameters (6)", worst("parameters"), 1e-11),
            at_most(
                "vectors that agree on the parameters agree on the model: 6 implies 5",
                worst("implies"),
                1e-13,
            ),
            at_least(
                "the plain gradient differs on the model, smallest",
                least("plain model"),
                0.02,
                Role.CONTROL,
            ),
            at_least(
                "and on the parameters, smallest", least("plain parameters"), 0.02, Role.CONTROL
            ),
        )
    )


def _in(f) -> pb.Composite:
    return pb.Composite(Composition(outer, f), loss=loss, metric=METRIC)


CLAIM = Claim(
    name="definitions",
    source="invariance",
    place="Definitions 4, 5, 6 and Remark 1",
    quotation=(
        "reparametrisation invariance on the parameter space implies reparametrisation invariance "
        "on the model"
    ),
    statement=(
        "Invariance on the parameters implies invariance on the model. If the model is a "
        "manifold and parametrisations are diffeomorphisms on it, the three notions are one, and "
        "the natural parameter gradient satisfies it."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
