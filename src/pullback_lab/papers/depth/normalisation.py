r"""How fast the natural flow runs depends on where \(1/N\) stands. The source sums the loss,
section 2.3, and averages the Fisher matrix, eqs. (2) and (36); its theorems and algorithms (10),
(19), (54) sum both.

\[ \bigl(\tfrac1N \textstyle\sum_i f_i\bigr)^{-1} \sum_i g_i = N\,\bigl(\sum_i f_i\bigr)^{-1}\sum_i
g_i : \]

taken as written the flow (3) runs \(N\) times as fast and the logits tend to \(N\,t\,y\), not to
\(t\,y\) as Figure 4 and section 3.1 have it. The curve is the same.

**Corrected.** One measure for the loss and the metric. In the library there is only one; the
mixture has to be built on purpose, by a loss that returns a sum.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.integrate import solve_ivp

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_most
from .._numbers import distance, generator
from ._logistic import (
    WIDE,
    batch,
    fisher,
    gradient,
    interpolating_logits,
    logits,
    natural_flow,
    separable,
)

(SAMPLES, COLUMNS) = WIDE
END = 6.0


def summed(s: Float[Array, " N"], targets: Float[Array, " N"]) -> Float[Array, ""]:
    """The loss of section 2.3: a sum, a scalar, which no measure averages again."""
    return jnp.sum(jax.nn.softplus((1 - 2 * targets) * s))


MIXED = pb.Composite(logits, loss=summed, metric=pb.metric.Bernoulli(), measure=pb.Mean())
BOTH_SUMMED = pb.Composite(logits, metric=pb.metric.Bernoulli(), measure=pb.Sum())


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Three choices of the measures."""
    rng = generator(key)
    x, y = separable(rng, SAMPLES, COLUMNS)
    start = 0.3 * rng.standard_normal(COLUMNS)
    data = batch(x, y)
    s0 = x @ start
    mixed, summed_both = (
        np.asarray(
            pb.natural_gradient(problem, jnp.asarray(start), data, solver=pb.solver.SVD()).vector
        )
        for problem in (MIXED, BOTH_SUMMED)
    )
    as_written = lambda t, b: (
        -np.linalg.pinv(fisher(x, b) / SAMPLES, rcond=1e-9) @ gradient(x, y, b)
    )
    end = x @ solve_ivp(as_written, (0.0, END / SAMPLES), start, rtol=1e-9, atol=1e-11).y[:, -1]
    expected = interpolating_logits(s0, y, END)
    rate = float(np.mean((end - s0) * y) / (END / SAMPLES))
    rows = (
        at_most(
            "as written: speed of the margins under the flow (3) is 1, off by", abs(rate - 1), 0.5
        ),
        at_most(
            "as written: natural gradient over that with both summed is N = 8, off by",
            np.abs(mixed / summed_both - SAMPLES).max(),
            1e-9,
            Role.CORRECTED,
        ),
        at_most(
            "as written: the logits at t = 6/N are those of the closed form at t = 6",
            distance(end, expected),
            1e-6,
            Role.CORRECTED,
        ),
        at_most(
            "one measure for both: the logits at t = 6",
            distance(x @ natural_flow(x, y, start, np.array([END]))[0], expected),
            1e-7,
            Role.CORRECTED,
        ),
        at_most(
            "the mixture in NumPy", distance(-as_written(0.0, start), mixed), 1e-9, Role.CONTROL
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-normalisation",
    source="depth",
    place="section 2.3, eqs. (2) and (36), against eqs. (10), (19), (54) and Figure 4",
    quotation="is the average Fisher information matrix",
    statement=(
        "With the loss summed over the samples and the Fisher matrix averaged, the logits of the "
        "natural flow converge to t·y."
    ),
    verdict=Verdict.CORRECTED,
    stands=True,
    run=run,
    correction=(
        "As written the flow runs N times as fast, s → N t y. Loss and Fisher matrix must share "
        "one measure; then s → t y."
    ),
    key_number="as written: speed of the margins under the flow (3) is 1, off by",
)
