r"""Section 2.2: what Euclidean flow in products of matrices completes a matrix to, compared with
the completion of least nuclear norm (Arora et al. 2019).

With many observations both are the truth. With few, the flow trades a larger nuclear norm for a
smaller effective rank (the exponential of the entropy of the singular values), and more so with
more factors. The trade needs small initial weights: at depth 2 the product must start at entries of
about 1e-6; from 1e-3 the rest of the start is still in the singular values.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import effective_rank, minimum_nuclear_norm

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from ._figure_factors import euclidean_flow, initial, sample_task

CASES = ((2, 1e-6), (2, 1e-3), (3, 1e-3), (4, 1e-3))
"""(depth, standard deviation of the entries of the initial product)."""
NAMES = tuple(f"L = {depth} from {scale:g}" for depth, scale in CASES)


def nuclear(beta: np.ndarray) -> float:
    """The sum of the singular values."""
    return float(np.linalg.norm(beta, "nuc"))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Few and many observations of a matrix of low rank."""
    size, rank, few, many, seeds = (
        (60, 3, 510, 1200, max(budget.seeds, 8)) if budget.full else (20, 2, 110, 260, 6)
    )
    shape = (len(CASES), 2, seeds)
    apart, norms, ranks, fits = (np.zeros(shape) for _ in range(4))
    convex, gaps = np.zeros((2, seeds)), []
    for k, observed in enumerate((few, many)):
        for seed in range(seeds):
            rng = generator(jax.random.fold_in(key, 1000 * k + seed))
            task = sample_task(rng, size, rank, observed)
            found, gap = minimum_nuclear_norm(jnp.asarray(task.truth), jnp.asarray(task.mask))
            least = np.asarray(found)
            gaps.append(float(gap))
            convex[k, seed] = float(effective_rank(found))
            for i, (depth, scale) in enumerate(CASES):
                end = euclidean_flow(task, initial(rng, size, depth, scale), 4000)
                apart[i, k, seed] = distance(end.beta, least)
                norms[i, k, seed] = nuclear(end.beta) / nuclear(least)
                ranks[i, k, seed] = float(effective_rank(jnp.asarray(end.beta)))
                fits[i, k, seed] = end.fit
    data = {"norms": norms[:, 0], "ranks": ranks[:, 0], "convex": convex[0], "size": size}
    data |= {"rank": rank, "observed": few}
    return Measured(_rows(apart, norms, ranks, convex, fits, gaps), data)


def surely(difference: np.ndarray) -> float:
    """The mean over seeds less twice its standard error: positive if the sign is sure."""
    return float(difference.mean() - 2 * difference.std(ddof=1) / np.sqrt(difference.size))


def _rows(apart, norms, ranks, convex, fits, gaps) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    few = [0, 2, 3]  # depth 2 from the small start, depths 3 and 4
    sure = "mean less 2 standard errors"
    return (
        at_most(
            "many observations: distance of the flow from the completion of least nuclear norm, "
            "median, largest over depths",
            np.median(apart[few, 1], axis=-1).max(),
            0.05,
        ),
        *(
            at_least(
                f"few: effective rank of the least nuclear norm less that of {NAMES[i]}, {sure}",
                surely(convex[0] - ranks[i, 0]),
                0.0,
            )
            for i in few
        ),
        *(
            at_least(
                f"few: nuclear norm of {NAMES[i]} over the least, less 1, {sure}",
                surely(norms[i, 0] - 1),
                0.0,
            )
            for i in few
        ),
        *(
            at_least(
                f"few, from 1e-3: effective rank at L = 2 less that at L = {i + 1}, {sure}",
                surely(ranks[1, 0] - ranks[i, 0]),
                0.0,
            )
            for i in (2, 3)
        ),
        at_most(
            "duality gap of the least nuclear norm, largest, relative",
            max(gaps),
            2e-4,
            Role.CONTROL,
        ),
        at_most(
            "error on the observed entries at the end, few observations, largest",
            fits[:, 0].max(),
            0.1,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Few observations: effective rank against nuclear norm over the least one. The star is the
    completion of least nuclear norm, on average; each mark is a Euclidean flow. Deeper products are
    further to the left and higher: less rank, more norm.
    """
    drawing, axes = open_figure(size=(6.0, 4.2))
    markers = ("o", "s", "^", "D")
    for i, name in enumerate(NAMES):
        axes.plot(
            data["ranks"][i], data["norms"][i], markers[i], color=COLOURS[i], label=name, alpha=0.85
        )
    axes.plot(np.mean(data["convex"]), 1.0, "k*", ms=13, label="least nuclear norm")
    axes.axvline(data["rank"], color="0.7", ls=":", lw=1)
    axes.set(
        xlabel="effective rank",
        ylabel="nuclear norm over the least",
        title=f"D = {data['size']}, rank {data['rank']}, {data['observed']} observations",
    )
    axes.legend(fontsize=8)
    return drawing


CLAIM = Claim(
    name="depth-low-rank",
    source="depth",
    place="section 2.2, on Arora et al. (2019)",
    quotation=(
        "Gradient descent preferred solutions with lower effective rank at the expense of higher "
        "nuclear norm ... the implicit regularization is towards low rank that becomes stronger as "
        "depth grows"
    ),
    statement=(
        "With many observations Euclidean descent in deep matrix factorisation tends to the "
        "completion of least nuclear norm; with few it prefers a lower effective rank at the "
        "expense of a higher nuclear norm, the more so the deeper."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    keys=18,
    draw=draw,
    remark=(
        "The initial weights must be small. At depth 2 and from entries of 1e-3 of the initial "
        "product the effective rank is still above that of the least nuclear norm. Between depths "
        "3 and 4 the effective ranks, both near the true one, do not differ beyond their error."
    ),
    key_number=(
        "few: effective rank of the least nuclear norm less that of L = 3 from 0.001, "
        "mean less 2 standard errors"
    ),
)
