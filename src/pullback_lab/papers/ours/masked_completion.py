r"""Matrix completion by natural gradient flow with the Fisher matrix of the *observed* entries:
deep products do complete the matrix.

"NGD completely fails to generalise" (Kerekes et al., section 4) is proved for the Fisher matrix of
all entries, the identity. Averaged over the training data, as the source has it elsewhere, the
Fisher matrix is the mask: then observed entries decay as \(e^{-t}\) at every depth, and the others
are left to the norm on the factors, as in `parametrisation`. From small initial weights, depths 3
and 4 come close to the truth.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.integrate import RK23

from pullback.linear import MatrixProduct, minimum_nuclear_norm

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import generator
from ..depth._figure_factors import (
    Completion,
    error,
    euclidean_flow,
    initial,
    product,
    sample_task,
)
from ..depth._figure_steps import descend
from ..depth._products import motion
from ..depth.low_rank import surely

CASES = ((2, 1e-3), (3, 1e-3), (4, 1e-3), (3, 0.1))
"""(depth, standard deviation of the entries of the initial product)."""
LATE = 5.0
STEP = 0.003
"""Of natural gradient descent with the Fisher matrix of all entries."""


def masked_flow(
    task: Completion, factors: list[np.ndarray], most: int, field: Any
) -> tuple[np.ndarray, float, float]:
    """β at the end, the time t reached, and the error on the observed entries over its e⁻ᵗ law."""
    shape = np.shape(factors)
    count = [0]
    truth = jnp.asarray(task.truth)

    def velocity(_, flat):
        count[0] += 1
        found = field(tuple(jnp.asarray(w) for w in flat.reshape(shape)), truth)
        return -np.concatenate([np.ravel(part) for part in found])

    solver = RK23(velocity, 0.0, np.ravel(factors), LATE, rtol=1e-5, atol=1e-7, first_step=1e-7)
    while solver.status == "running" and count[0] < most:
        solver.step()
    beta = product(solver.y.reshape(shape))
    start, end = (np.linalg.norm((b - task.truth)[task.mask]) for b in (product(factors), beta))
    return beta, float(solver.t), float(end / start * np.exp(solver.t))


def leak(task: Completion, factors: list[np.ndarray]) -> float:
    """The fraction of the motion in unobserved entries, with the Fisher matrix of all entries."""
    point = tuple(jnp.asarray(w) for w in factors)
    field = MatrixProduct(len(factors)).natural_gradient
    updates = field(point, jnp.asarray(task.truth), jnp.asarray(task.mask))
    moved = motion(factors, [np.asarray(part) for part in updates])
    return float(np.linalg.norm(moved[~task.mask]) / np.linalg.norm(moved))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Depths and initial weights."""
    size, rank, observed, seeds = (
        (40, 2, 640, max(budget.seeds, 5)) if budget.full else (16, 1, 110, max(budget.seeds, 4))
    )
    errors, decays, times = (np.zeros((len(CASES), seeds)) for _ in range(3))
    whole, nuclear = np.zeros(seeds), np.zeros(seeds)
    euclidean = np.zeros((3, seeds))
    leaks = []
    masks: list[np.ndarray] = []
    different = seeds if budget.full else 2  # each mask is compiled for each depth
    fields: dict[tuple[int, int], Any] = {}
    for seed in range(seeds):
        task = sample_task(generator(jax.random.fold_in(key, seed)), size, rank, observed)
        which = seed % different
        if seed < different:
            masks.append(task.mask)
            for depth in (2, 3, 4):
                fields[which, depth] = jax.jit(
                    functools.partial(
                        MatrixProduct(depth).masked_natural_gradient, mask=jnp.asarray(task.mask)
                    )
                )
        task = Completion(task.truth, masks[which])
        least, _ = minimum_nuclear_norm(jnp.asarray(task.truth), jnp.asarray(task.mask))
        nuclear[seed] = error(np.asarray(least), task)
        for i, (depth, scale) in enumerate(CASES):
            factors = initial(
                generator(jax.random.fold_in(key, 100 * (i + 1) + seed)), size, depth, scale
            )
            beta, times[i, seed], decays[i, seed] = masked_flow(
                task, factors, 4000, fields[which, depth]
            )
            errors[i, seed] = error(beta, task)
            if seed == 0:
                leaks.append(leak(task, factors))
            if i < 3:
                euclidean[i, seed] = error(euclidean_flow(task, factors, 4000).beta, task)
            if (depth, scale) == CASES[0]:
                whole[seed] = error(descend("minimum norm", task, factors, STEP).beta, task)
    data = {"size": size, "rank": rank, "observed": observed}
    return Measured(
        _rows(errors, decays, times, whole, leaks),
        {"errors": errors, "whole": whole, "nuclear": nuclear, "euclidean": euclidean} | data,
    )


def _rows(errors, decays, times, whole, leaks) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    mean = errors.mean(axis=1)
    return (
        at_most(
            "Fisher of the observed entries, depth 3, small weights: error on the others",
            mean[1],
            0.3,
        ),
        at_most("depth 2, small weights: error on the others", mean[0], 0.8),
        *(
            at_least(
                f"depth {i + 2} is better: log of the errors at depth 2 over depth {i + 2}, "
                "mean less 2 standard errors",
                surely(np.log(errors[0] / errors[i])),
                0.0,
            )
            for i in (1, 2)
        ),
        at_least(
            "depth 3: error from large initial weights over that from small ones",
            mean[3] / mean[1],
            1.5,
        ),
        at_most(
            "observed entries decay as exp(-t) at every depth: largest |ratio - 1|",
            np.abs(decays - 1).max(),
            0.05,
            Role.CONTROL,
        ),
        at_least(
            "fraction of the flows that reach t = 5 within the bound on evaluations",
            np.mean(times > LATE - 1e-9),
            1.0,
            Role.CONTROL,
        ),
        at_most(
            "Fisher of all entries: fraction of the motion in the others, at the start, largest",
            max(leaks),
            1e-6,
            Role.CONTROL,
        ),
        at_least(
            f"Fisher of all entries, depth 2, steps of {STEP}: error on the others, least",
            whole.min(),
            0.9,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Error on the entries that are not observed, each mark a seed, lines through the means.
    Natural flow with the Fisher matrix of the observed entries improves with depth, as Euclidean
    flow does. With that of all entries (black) it stays at 1. Dashed: the least nuclear norm.
    """
    drawing, axes = open_figure(size=(6.0, 4.2))
    lines = (
        ("natural flow, Fisher of the observed", data["errors"][:3], COLOURS[1], "o", -0.06),
        ("Euclidean flow", data["euclidean"], COLOURS[0], "s", 0.06),
    )
    for name, values, colour, marker, side in lines:
        depths = np.arange(2, 5) + side
        axes.plot(depths, values.mean(axis=1), color=colour, label=name)
        axes.plot(depths, values, marker, color=colour, ms=4)
    axes.plot(np.full(len(data["whole"]), 2.0), data["whole"], "kD", ms=4)
    axes.plot([], [], "kD", ms=4, label="natural descent, Fisher of all entries")
    large = data["errors"][3]
    axes.plot(
        np.full(len(large), 3.0), large, "x", color=COLOURS[3], label="as circles, initial 0.1"
    )
    axes.axhline(
        np.mean(data["nuclear"]), color=COLOURS[2], ls="--", label="least nuclear norm, mean"
    )
    title = f"D = {data['size']}, rank {data['rank']}, {data['observed']} observations"
    axes.set(xlabel="depth L", ylabel="relative error, unobserved entries", yscale="log")
    axes.set(xticks=(2, 3, 4), title=title, ylim=(None, 4))
    axes.legend(fontsize=7, loc="lower left")
    return drawing


CLAIM = Claim(
    name="masked-completion",
    source="ours",
    place="after section 4 of Kerekes et al.",
    statement=(
        "With the Fisher matrix of the observed entries and the Moore-Penrose inverse, natural "
        "gradient flow in products of matrices from small weights does generalise to entries "
        "that are not observed, better with three or four factors than with two."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    keys=19,
    draw=draw,
)
