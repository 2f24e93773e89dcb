r"""Section 5.2, first question: stochastic gradients.

The source analyses flows, "which is not a meaningful limit in SGD". Its reason, as we read it: in
the limit of small steps nothing is left of the batches. With a gradient \(g_B\) of a batch drawn
anew for every step \(\eta\), a run to a fixed time adds \(t/\eta\) independent errors of size
\(\eta\): it is at a distance \(O(\sqrt\eta)\) from the flow of the mean field, and the mean of
\(g_B\), or of \(F^+g_B\), is the field of all data.

This holds for the Euclidean gradient, and for the natural one as long as the Fisher matrix is that
of all data. If it is that of the batch, the mean \(\mathbb E\,F_B^+g_B\) is another field, and the
limit keeps the batches: see the claim `batch-fisher`.
"""

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._numbers import generator
from ._batches import COLUMNS, SAMPLES, STEPS, deviations, euclidean_end, natural_end, order
from ._logistic import separable

ENDS = {"Euclidean": euclidean_end, "Fisher of all data": natural_end}


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Descent in batches of 2 of 8 samples."""
    count = max(budget.seeds, 5) if budget.full else 2
    found = {name: np.zeros((count, len(STEPS))) for name in ENDS}
    for seed in range(count):
        place = jax.random.fold_in(key, seed)
        x, y = separable(generator(place), SAMPLES, COLUMNS)
        for name, end in ENDS.items():
            found[name][seed] = deviations(name, x, y, place, end(x, y))
    return Measured(_rows(found), found)


def _rows(found: dict[str, np.ndarray]) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    first, last = STEPS
    return (
        *(
            at_most(
                f"{name}: distance of runs from the flow of all data at t = 1, {first} to {last} "
                "steps: order in the step, largest |order - 1/2|",
                max(abs(order(deviation) - 0.5) for deviation in values),
                0.2,
            )
            for name, values in found.items()
        ),
        *(
            at_least(
                f"{name}: the batches are felt in {first} steps, distance, least",
                values[:, 0].min(),
                0.02,
                Role.CONTROL,
            )
            for name, values in found.items()
        ),
    )


CLAIM = Claim(
    name="depth-stochastic",
    source="depth",
    place="section 5.2, first question",
    quotation=(
        "we analysed only full-batch gradient descent. This allowed us to prove properties of "
        "gradient flow, i. e. in the limit of infinitesimally small learning rates, which is not "
        "a meaningful limit in SGD."
    ),
    statement=(
        "In the limit of small steps nothing is left of the noise of batches: stochastic descent, "
        "Euclidean or with the Fisher matrix of all data, tends to the flow of all data."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    remark=(
        "The limit exists, and is the flow that the source analyses. It is another one if the "
        "Fisher matrix is that of the batch, as it is in practice: then small steps keep the "
        "batches, and the limit direction is a mean of interpolants (`batch-fisher`)."
    ),
)
