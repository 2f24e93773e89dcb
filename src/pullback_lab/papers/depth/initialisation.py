r"""Depth favours low rank before any training: a product of \(L\) Gaussian matrices is effectively
of low rank, the more so the larger \(L\).

The effective rank of \(\beta = W_1\cdots W_L\) is \(\exp(-\sum_i p_i\log p_i)\), \(p_i =
\sigma_i/\sum_j\sigma_j\). The logarithms of the singular values spread in proportion to \(L\), so
it falls, towards 1.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import effective_rank

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import generator
from ._products import gaussian

DEPTHS = (1, 2, 3, 4, 6)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Random products of five depths."""
    rng = generator(key)
    size, draws = (100, 40 * budget.seeds) if budget.full else (30, 100)
    ranks = {}
    spectra = {}
    for depth in DEPTHS:
        products = [
            np.linalg.multi_dot([*gaussian(rng, [size] * (depth + 1)), np.eye(size)])
            for _ in range(draws)
        ]
        ranks[depth] = np.asarray(jax.vmap(effective_rank)(jnp.asarray(np.stack(products))))
        values = np.stack([np.linalg.svd(b, compute_uv=False) for b in products])
        spectra[depth] = np.mean(values / values[:, :1], axis=0)
    low = np.array([np.mean(ranks[d] <= size / 2) for d in DEPTHS])
    means = np.array([ranks[d].mean() for d in DEPTHS])
    rows = (
        at_most(
            "mean effective rank: largest increase from one depth to the next",
            np.diff(means).max(),
            -1e-9,
        ),
        at_least(
            "fraction of products of effective rank ≤ D/2: smallest change with depth",
            np.diff(low).min(),
            0.0,
        ),
        at_least("that fraction at six factors, less that at one", low[-1] - low[0], 0.9),
        at_least(
            "control: effective rank of one Gaussian matrix, over D",
            means[0] / size,
            0.7,
            Role.CONTROL,
        ),
    )
    return Measured(
        rows,
        {
            "depths": np.array(DEPTHS),
            "ranks": np.stack([ranks[d] for d in DEPTHS]),
            "spectra": np.stack([spectra[d] for d in DEPTHS]),
        },
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Mean spectra, and effective ranks over depth."""
    fig, axes = open_figure(columns=2, size=(4.2, 3.4))
    for i, (depth, values) in enumerate(zip(data["depths"], data["spectra"], strict=True)):
        axes[0].plot(
            np.arange(1, len(values) + 1), values, color=COLOURS[i], lw=1.3, label=f"L = {depth}"
        )
    axes[0].set(
        yscale="log",
        ylim=(1e-6, 2),
        xlabel="index",
        ylabel=r"$\sigma_i/\sigma_1$, mean",
        title="spectra of random products",
    )
    axes[0].legend(frameon=False, fontsize=8)
    ranks = np.asarray(data["ranks"])
    axes[1].errorbar(
        data["depths"],
        ranks.mean(axis=1),
        yerr=ranks.std(axis=1),
        color=COLOURS[0],
        marker="o",
        capsize=3,
    )
    axes[1].set(
        xlabel="factors L",
        ylabel="effective rank",
        ylim=(0, None),
        title=f"D = {np.shape(data['spectra'])[1]}",
    )
    return fig


CLAIM = Claim(
    name="depth-initialisation",
    source="depth",
    place="section 5.2, third question",
    quotation=(
        "their product β will be effectively low-rank with an increasing probability as L increases"
    ),
    statement=(
        "A product of isotropic Gaussian matrices is effectively of low rank, with a probability "
        "that increases with the number of factors."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
