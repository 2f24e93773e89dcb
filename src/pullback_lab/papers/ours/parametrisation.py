r"""Where the Fisher matrix of the *model* is singular, natural gradient flow depends on the
parametrisation, whatever the inverse.

Invariance, \(J\dot w = -F^{+}\nabla_\beta L\), needs \((J^\top FJ)^+ = J^+F^+J^{+\top}\), and that
needs a regular \(F\) (besides an onto \(J\)). For N < D logits the Fisher matrix of \(\beta\) has
rank N: the training logits follow the same curve at every depth, \(\beta\) does not, and
generalisation with it.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import Diagonal, Logistic

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from ._diagonal_flows import flow, velocity

LATE = 20.0


def layers(beta: np.ndarray, depth: int, rng: np.random.Generator) -> np.ndarray:
    """Weights of any depth, unequal, with a given product."""
    weights = np.abs(beta) ** (1 / depth) * np.exp(0.2 * rng.standard_normal((depth, len(beta))))
    weights[0] *= beta / np.prod(weights, axis=0)
    return weights


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The same β(0), three depths; N < D, then N > D."""
    seeds = max(budget.seeds, 5 if budget.full else 2)
    logits = np.zeros((seeds, 2))
    coefficients = np.zeros((seeds, 2))
    shown = {}
    check = 0.0
    regular = 0.0
    for seed in range(seeds):
        rng = generator(jax.random.fold_in(key, seed))
        x = rng.standard_normal((4, 12))
        beta = 0.2 * rng.standard_normal(12)
        y = np.sign(x @ rng.standard_normal(12))
        plain = np.asarray(Logistic().flow(*map(jnp.asarray, (beta, x, y)), LATE))
        wide = rng.standard_normal((20, 4))
        labels = rng.choice([-1.0, 1.0], 20)
        start = rng.standard_normal(4)
        for i, depth in enumerate((2, 3)):
            weights = layers(beta, depth, rng)
            deep = np.prod(flow(weights, x, y, LATE, rtol=1e-7), axis=0)
            logits[seed, i] = distance(x @ deep, x @ plain)
            coefficients[seed, i] = distance(deep, plain)
            shown[f"depth_{depth}"] = deep
            if seed == 0:
                regular = max(regular, _pushforward(layers(start, depth, rng), wide, labels))
                ours = Diagonal(depth).natural_gradient(*map(jnp.asarray, (weights, x, y)))
                check = max(check, distance(-np.asarray(ours), velocity(weights, y[:, None] * x)))
    rows = (
        at_most(
            "N < D: training logits at depth 2, 3 against depth 1, t = 20, largest relative "
            "difference",
            logits.max(),
            1e-5,
        ),
        at_least(
            "N < D: β at depth 2 against depth 1, least relative difference",
            coefficients[:, 0].min(),
            0.1,
        ),
        at_least(
            "N < D: β at depth 3 against depth 1, least relative difference",
            coefficients[:, 1].min(),
            0.1,
        ),
        at_most(
            "N > D: velocity of β at depth 2, 3 against depth 1, largest relative difference",
            regular,
            1e-8,
            Role.CONTROL,
        ),
        at_most(
            "the field that is integrated against Diagonal.natural_gradient, largest relative "
            "difference",
            check,
            1e-8,
            Role.CONTROL,
        ),
    )
    return Measured(rows, {"depth_1": plain, **shown})


def _pushforward(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """How far the velocity of β in a network is from that of the linear model."""
    network = Diagonal(len(weights))
    (w, x_, y_) = map(jnp.asarray, (weights, x, y))
    moved = np.sum(np.asarray(network.cofactors(w) * network.natural_gradient(w, x_, y_)), axis=0)
    return distance(moved, np.asarray(Logistic().natural_gradient(network.product(w), x_, y_)))


def draw(data: Mapping[str, Any]) -> Any:
    """The coefficients at the end, by depth."""
    drawing, axes = open_figure(size=(6.0, 4.0))
    for i, colour in enumerate((COLOURS[0], COLOURS[1], COLOURS[2])):
        beta = data[f"depth_{i + 1}"]
        axes.bar(
            np.arange(len(beta)) + 0.27 * (i - 1),
            beta,
            width=0.25,
            color=colour,
            label=f"L = {i + 1}",
        )
    axes.set(
        xlabel="coefficient", ylabel="β", title="Same start, same logits: N = 4 < D = 12, t = 20"
    )
    axes.legend()
    return drawing


CLAIM = Claim(
    name="parametrisation",
    source="ours",
    place="after section 2.3 of Kerekes et al.",
    statement=(
        "Where the Fisher matrix of the model is singular (N < D), natural gradient flow with "
        "the Moore-Penrose inverse moves the training logits alike at every depth but the "
        "coefficients differently: it is not independent of the parametrisation."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
