"""That natural gradient descent does no better than chance with fewer samples than dimensions,
which the text concludes from the left panel of Figure 4.

With the Moore-Penrose inverse its direction is that of least squares (Theorem 3 and after), and
that is better than chance by a formula (`ours/peak.py`). What a solver that assumes full rank would
give is in `ours/full_rank_solver.py`.
"""

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._numbers import generator
from ._figure_flows import accuracy, natural_flow, sample_task
from ._figure_sparse import LATER, seeds

RATIOS = (0.25, 0.5, 0.75)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Accuracies in closed form."""
    dimension, support, count = (1000, 20, seeds(budget, 5)) if budget.full else (120, 6, 4)
    found = np.zeros((len(RATIOS), count))
    least = np.zeros((len(RATIOS), count))
    for i, ratio in enumerate(RATIOS):
        for seed in range(count):
            task = sample_task(
                generator(jax.random.fold_in(key, 100 * i + seed)),
                round(ratio * dimension),
                dimension,
                support,
            )
            found[i, seed] = accuracy(natural_flow(task, LATER), task.truth)
            least[i, seed] = accuracy(np.linalg.pinv(task.x) @ task.y, task.truth)
    mean = found.mean(axis=1)
    rows = (
        *(
            at_most(f"N = {ratio:g} D: |accuracy - 1/2|, mean over seeds", abs(m - 0.5), 0.05)
            for ratio, m in zip(RATIOS, mean, strict=True)
        ),
        at_most(
            "natural gradient flow against least squares: largest difference",
            np.abs(found - least).max(),
            1e-6,
            Role.CONTROL,
        ),
        at_least("smallest accuracy of a single run", found.min(), 0.5, Role.CONTROL),
    )
    return Measured(rows, {"ratios": np.array(RATIOS), "natural": found})


CLAIM = Claim(
    name="depth-chance",
    source="depth",
    place="section 3.1, on Figure 4",
    quotation="completely fails to generalize when N < D",
    statement=(
        "For N < D natural gradient descent with the Fisher matrix of the training data does no "
        "better than chance."
    ),
    verdict=Verdict.FAILS,
    run=run,
)
