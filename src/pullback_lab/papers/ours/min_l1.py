r"""Natural gradient flow with the Moore-Penrose inverse on a diagonal network of depth 2, N < D:
not least squares, but the interpolant of the labels of least \(\ell_1\) norm, as the initial
weights shrink.

The flow is the Bregman projection in the hyperbolic entropy on \(\{X\beta = s(t)\}\) (derived in
`pullback.linear`). Depth 1 gives the interpolant of least \(\ell_2\) norm. So the inductive bias
that Euclidean descent gets from depth is there in natural gradient descent too, where the Fisher
matrix of the model is singular.

*How fast.* From \(\beta_0 = 0\) and imbalance \(\kappa\) in all coordinates, with S the least
\(\ell_1\) norm of an interpolant of the logits and \(4S > eD\kappa\),

\[ \lVert\beta\rVert_1/S - 1 \le \frac{\log D}{\log(4S/(eD\kappa))} , \]

logarithmic in the initial weights; the proof is in the docs, "Results". The direction is reached
much earlier where the least-norm interpolant is unique by a margin, and not earlier where it is
nearly not.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import Diagonal, hyperbolic_projection, l1_interpolant

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import cosine, distance, generator
from ._diagonal_flows import flow

SCALES = np.array([1e0, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32])
"""Of the imbalance |w1² - w2²|, with β(0) = 0."""
LATE = 40.0


def outside_range(x: np.ndarray, vector: np.ndarray) -> float:
    """The fraction of a vector that is outside the range of Xᵀ."""
    inside = x.T @ np.linalg.lstsq(x.T, vector, rcond=None)[0]
    return float(np.linalg.norm(vector - inside) / np.linalg.norm(vector))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """An integrated flow against the projection, then the projection for smaller and smaller
    weights.
    """
    seeds = max(budget.seeds, 5 if budget.full else 2)
    near, far, excess, allowed = (np.zeros((seeds, len(SCALES))) for _ in range(4))
    apart = []
    outside = []
    projection = []
    for seed in range(seeds):
        rng = generator(jax.random.fold_in(key, seed))
        x = rng.standard_normal((4, 12))
        y = rng.choice([-1.0, 1.0], 4)
        weights = 0.3 * rng.standard_normal((2, 12))
        end = flow(weights, x, y, 6.0)
        apart.append(
            distance(
                np.asarray(Diagonal(2).flow(*map(jnp.asarray, (weights, x, y)), 6.0)),
                np.prod(end, axis=0),
            )
        )
        kappa = np.abs(weights[0] ** 2 - weights[1] ** 2)
        dual = lambda w, kappa=kappa: np.arcsinh(2 * np.prod(w, axis=0) / kappa) / 2
        change = dual(end) - dual(weights)
        outside.append(outside_range(x, change))
        least = np.asarray(l1_interpolant(jnp.asarray(x), jnp.asarray(y)))
        ordinary = np.linalg.pinv(x) @ y
        for i, scale in enumerate(SCALES):
            beta = np.asarray(
                hyperbolic_projection(
                    jnp.asarray(x), jnp.asarray(LATE * y), jnp.zeros(12), jnp.full(12, scale)
                )
            )
            missed = distance(x @ beta, LATE * y)
            projection.append(max(missed, outside_range(x, np.arcsinh(2 * beta / scale))))
            near[seed, i] = 1 - cosine(beta, least)
            far[seed, i] = 1 - cosine(beta, ordinary)
            norm = LATE * np.abs(least).sum()
            excess[seed, i] = np.abs(beta).sum() / norm - 1
            allowed[seed, i] = np.log(12) / np.log(4 * norm / (np.e * 12 * scale))
    rows = _rows(apart, outside, projection, excess, allowed, near, far)
    return Measured(
        rows, {"scales": SCALES, "l1": near, "l2": far, "excess": excess, "bound": allowed}
    )


def _rows(
    apart: list[float],
    outside: list[float],
    projection: list[float],
    excess: np.ndarray,
    allowed: np.ndarray,
    near: np.ndarray,
    far: np.ndarray,
) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    turn = near[:, -1] / near[:, 0]
    return (
        at_most(
            "integrated flow against the Bregman projection at t = 6, largest relative difference",
            max(apart),
            1e-5,
        ),
        at_most(
            "change of the dual coordinates outside the range of Xᵀ, largest fraction",
            max(outside),
            1e-6,
        ),
        at_most(
            "the projections interpolate, their dual coordinates in the range of Xᵀ: off by",
            max(projection),
            1e-8,
            Role.CONTROL,
        ),
        at_most(
            "l1 norm beyond the least, fraction of the bound log D / log(4S/(eDκ)), all κ: largest",
            np.where(allowed > 0, excess / allowed, np.inf).max(),
            1.0,
        ),
        at_most(
            "l1 norm beyond the least: at κ = 1e-32 over that at κ = 1, largest",
            (excess[:, -1] / excess[:, 0]).max(),
            0.3,
        ),
        at_most(
            "1 - cosine with the least l1 interpolant: at κ = 1e-32 over that at κ = 1, median",
            np.median(turn),
            0.5,
        ),
        at_most(
            "the same, largest (slow where the least l1 interpolant is nearly not unique)",
            turn.max(),
            1.0,
            Role.CONTROL,
        ),
        at_least(
            "1 - cosine with the least l2 interpolant (least squares), smallest weights: least",
            far[:, -1].min(),
            0.02,
        ),
        at_most(
            "1 - cosine with least squares at the largest weights: largest",
            far[:, 0].max(),
            0.5,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Left: which interpolant the flow is near, over the size of the initial weights. Right: the
    l1 norm beyond the least, for each data set, and the bound (dashed).
    """
    drawing, (axes, right) = open_figure(columns=2)
    for excess, bound in zip(data["excess"], data["bound"], strict=True):
        right.semilogx(data["scales"], excess, marker="o", color=COLOURS[1])
        right.semilogx(data["scales"], bound, "--", color=COLOURS[0])
    right.set(
        xlabel="|w1² - w2²| at the start",
        ylabel="l1 norm beyond the least, relative",
        yscale="log",
        title="dashed: log D / log(4S/(eDκ))",
    )
    for name, colour, words in (
        ("l1", COLOURS[1], "least l1 interpolant"),
        ("l2", COLOURS[0], "least l2 interpolant"),
    ):
        axes.loglog(
            data["scales"],
            np.maximum(data[name].mean(axis=0), 1e-17),
            marker="o",
            color=colour,
            label=words,
        )
    axes.set(
        xlabel="|w1² - w2²| at the start",
        ylabel="1 - cosine",
        title="Diagonal network of depth 2, NGF, N = 4 < D = 12",
    )
    axes.legend()
    return drawing


CLAIM = Claim(
    name="min-l1",
    source="ours",
    place="after Theorem 3 of Kerekes et al.",
    statement=(
        "For N < D natural gradient flow (Moore-Penrose) on a diagonal network of depth 2 is a "
        "Bregman projection in the hyperbolic entropy; as the initial weights shrink it tends to "
        "the interpolant of the labels of least l1 norm, not to least squares."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
