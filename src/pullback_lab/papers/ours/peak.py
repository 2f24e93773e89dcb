r"""Why natural gradient descent is at chance at N = D: the peak of least squares.

For N ≤ D natural gradient flow (Moore-Penrose, from zero) has the direction of \(X^+y\). For
standard normal inputs and labels \(y = \mathrm{sign}(x\cdot\beta_\star)\), write \(y = c\,x\cdot b
+ \text{noise}\), \(c^2 = 2/\pi\), noise of variance \(\sigma^2 = 1 - c^2\). With \(\alpha = N/D\),
for large D

\[ \cos = \frac{c\,\alpha}{\sqrt{c^2\alpha + \sigma^2\alpha/(1 - \alpha)}}\ (\alpha < 1), \qquad
\cos = \frac{c}{\sqrt{c^2 + \sigma^2/(\alpha - 1)}}\ (\alpha > 1,\ \text{least squares}), \]

zero at α = 1 from both sides: the noise is amplified by the smallest singular values of X, not
forgotten for want of data.

*At N = D, for finite D.* The cotangent of the angle is \(\rho\,h/\sqrt D\), \(\rho^2\) of the
distribution \(\chi^2_2\) and \(h = \mathrm{sign}(\cos\phi)\,(c\cos\phi + \sigma\sin\phi)/\sigma\)
with \(\phi\) uniform (docs, "Results"). So the accuracy is above 1/2 by \(a/\sqrt D\) on average,
with a standard deviation of at most \(b/\sqrt D\),

\[ a = \frac{2}{\pi^{3/2}\sqrt{\pi - 2}} = 0.336, \qquad b^2 = \frac{1}{\pi(\pi - 2)} - a^2 =
0.407^2 . \]
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import generator
from ..depth._figure_flows import accuracy, natural_flow, sample_task

RATIOS = np.array([0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.5])
ABOVE = 2 / np.pi**1.5 / np.sqrt(np.pi - 2)
"""a: the mean accuracy at N = D, less 1/2, times √D."""
SPREAD = np.sqrt(1 / (np.pi * (np.pi - 2)) - ABOVE**2)
"""b: its standard deviation times √D, at most."""


def chance(dimension: int, seeds: int) -> float:
    """How far a mean over seeds at N = D may be from 1/2: the mean and three standard errors."""
    return (ABOVE + 3 * SPREAD / np.sqrt(seeds)) / np.sqrt(dimension)


def scaling(rng: np.random.Generator, dimension: int, seeds: int) -> float:
    """The mean accuracy of least squares at N = D, less 1/2, times √D."""
    tasks = (sample_task(rng, dimension, dimension, 5) for _ in range(seeds))
    found = [accuracy(np.linalg.solve(task.x, task.y), task.truth) for task in tasks]
    return float((np.mean(found) - 0.5) * np.sqrt(dimension))


def theory(ratio: np.ndarray) -> np.ndarray:
    """The accuracy of least squares, D large."""
    c2 = 2 / np.pi
    noise = (1 - c2) / np.abs(1 - ratio)
    cosine = np.where(ratio < 1, np.sqrt(c2 * ratio / (c2 + noise)), np.sqrt(c2 / (c2 + noise)))
    return 1 - np.arccos(cosine) / np.pi


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Accuracy of natural gradient flow and of least squares, around N = D."""
    dimension, seeds = (400, max(budget.seeds, 5)) if budget.full else (120, max(budget.seeds, 8))
    natural = np.zeros((len(RATIOS), seeds))
    least = np.zeros((len(RATIOS), seeds))
    for i, ratio in enumerate(RATIOS):
        for seed in range(seeds):
            task = sample_task(
                generator(jax.random.fold_in(key, 100 * i + seed)),
                round(ratio * dimension),
                dimension,
                10,
            )
            least[i, seed] = accuracy(np.linalg.lstsq(task.x, task.y, rcond=None)[0], task.truth)
            natural[i, seed] = accuracy(natural_flow(task, 30.0 if ratio <= 1 else 8.0), task.truth)
    below = RATIOS < 1
    at = np.flatnonzero(RATIOS == 1)[0]
    expected = theory(np.where(RATIOS == 1, 2, RATIOS))
    rows = (
        at_most(
            "N = D: |mean accuracy - 1/2|, against its bound at this D",
            abs(natural[at].mean() - 0.5),
            chance(dimension, seeds),
        ),
        *(
            at_most(
                f"N = D = {size}: mean accuracy above 1/2, times √D, off 0.336",
                abs(scaling(generator(jax.random.fold_in(key, 7000 + size)), size, 400) - ABOVE),
                3 * SPREAD / np.sqrt(400) + ABOVE / np.sqrt(size),  # and a correction of next order
            )
            for size in (40, 160)
        ),
        at_least(
            "N = D/2 and 1.5 D: accuracy, least", min(natural[1].mean(), natural[5].mean()), 0.6
        ),
        at_most(
            "N < D: natural gradient flow against least squares, largest difference",
            np.abs(natural - least)[below].max(),
            1e-6,
        ),
        at_most(
            "N < D: mean accuracy against the formula, largest difference",
            np.abs(natural.mean(axis=1) - expected)[below].max(),
            0.04,
        ),
        at_most(
            "N > D: least squares against the formula, largest difference",
            np.abs(least.mean(axis=1) - expected)[at + 1 :].max(),
            0.04,
            Role.CONTROL,
        ),
    )
    return Measured(
        rows, {"ratios": RATIOS, "natural": natural, "least_squares": least, "dimension": dimension}
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Accuracy over N/D: means over seeds with twice their standard errors, and the formula for
    large D. The two coincide for N < D, and both fall to chance at N = D.
    """
    drawing, axes = open_figure()
    # The two coincide for N < D: the natural flow is drawn wide, least squares on it.
    for name, colour, words, width, mark in (
        ("natural", "0.55", "natural gradient flow", 5.0, 11.0),
        ("least_squares", COLOURS[1], "least squares", 1.5, 5.0),
    ):
        axes.errorbar(
            data["ratios"],
            data[name].mean(axis=1),
            yerr=2 * data[name].std(axis=1, ddof=1) / np.sqrt(data[name].shape[1]),
            marker="o",
            markersize=mark,
            linewidth=width,
            color=colour,
            capsize=2,
            label=words,
        )
    for part in (np.linspace(0.05, 0.995, 200), np.linspace(1.005, 2.5, 200)):
        axes.plot(
            part, theory(part), "--", color=COLOURS[0], label="formula" if part[0] < 1 else None
        )
    axes.set(xlabel="N / D", ylabel="test accuracy", title=f"D = {data['dimension']}")
    axes.legend()
    return drawing


CLAIM = Claim(
    name="peak",
    source="ours",
    place="after Figure 4 of Kerekes et al.",
    statement=(
        "Natural gradient flow with the training Fisher (Moore-Penrose) is at chance at N = D "
        "only, up to 0.336/√D on average, as the peak of least squares predicts; below and above "
        "it generalises."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
