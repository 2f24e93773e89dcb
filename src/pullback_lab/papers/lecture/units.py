r"""Minutes or seconds. For linear regression \(y = wx\), with \(x' = 60x\) and \(w' = w/60\): the
gradient becomes \(60\,g\), the weight a sixtieth, and so a step of gradient descent, relative to
the weight, \(60^2 = 3600\) times as long. A natural gradient step stays the same function.

With two inputs in two units there is no step size, with whatever dimension, for which \(w - \alpha
g\) makes sense: if the unit of \(x_j\) becomes \(a\) times smaller, \(g_i\) over \(w_i\) grows by
\(a^{2\delta_{ij}}\), and \(\alpha\) would have to shrink for one weight and not for the other. The
natural gradient over the weight does not change. The library's types refuse the same update:
parameters minus a covector is a `TypeError`, parameters minus a vector is not.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._figure import COLOURS, open_figure
from .._numbers import generator

STEP = 0.2


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Durations in minutes and in seconds."""
    rng = generator(key)
    minutes = rng.uniform(0.0, 2.0, 30)
    y = 1.5 * minutes + 0.3 * rng.standard_normal(30)
    problem = pb.Composite(lambda w, x: w[0] * x, lambda z, y: (z - y) ** 2 / 2)
    gradients = {}
    changes = {}
    lines = {}
    for unit, factor in (("minutes", 1.0), ("seconds", 60.0)):
        ng = pb.natural_gradient(
            problem, jnp.asarray([0.5 / factor]), (jnp.asarray(factor * minutes), jnp.asarray(y))
        )
        gradients[unit] = float(ng.covector[0])
        for kind, vector in (("gradient", ng.covector), ("natural", ng.vector)):
            changes[kind, unit] = -STEP * float(vector[0]) * factor  # of the slope in y per minute
            lines[f"{kind} {unit}"] = 0.5 + changes[kind, unit]
    ratio = lambda kind: changes[kind, "seconds"] / changes[kind, "minutes"]
    gradient = gradients["seconds"] / gradients["minutes"]
    rows = (
        at_most(
            "the gradient is 3600 times as large: relative error", abs(gradient / 3600 - 1), 1e-12
        ),
        at_most(
            "the gradient is 60 times as large: relative error",
            abs(gradient / 60 - 1),
            1e-12,
            Role.CORRECTED,
        ),
        at_most(
            "the step of the function is 3600 times as long: relative error",
            abs(ratio("gradient") / 3600 - 1),
            1e-12,
            Role.CORRECTED,
        ),
        at_most(
            "the natural gradient step does not change: relative error",
            abs(ratio("natural") - 1),
            1e-12,
            Role.CORRECTED,
        ),
    )
    return Measured(
        rows,
        {
            "minutes": minutes,
            "y": y,
            "slopes": lines,
            "ratios": {kind: ratio(kind) for kind in ("gradient", "natural")},
        },
    )


def needed_powers(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """For each weight i and unit j, the power of that unit that a step size must have, so that its
    product with the gradient has the dimension of the weight; the same for the natural gradient.
    """
    x = jnp.asarray(rng.uniform(0.5, 2.0, (30, 2)))
    y = x @ jnp.asarray([1.5, -0.7]) + 0.3 * jnp.asarray(rng.standard_normal(30))
    problem = pb.Composite(lambda w, x: x @ w, lambda z, y: (z - y) ** 2 / 2)
    w = jnp.asarray(rng.uniform(0.5, 1.0, 2))
    before = pb.natural_gradient(problem, w, (x, y))
    found = {"gradient": np.zeros((2, 2)), "natural": np.zeros((2, 2)), "data": np.zeros((2, 2))}
    for unit in range(2):
        scale = jnp.ones(2).at[unit].set(60.0)
        units = pb.Units(scale)
        after = pb.natural_gradient(pb.reparametrise(problem, units), units.inverse(w), (x, y))
        rescaled = pb.natural_gradient(problem, w / scale, (x * scale[None, :], y))
        weight = np.log(np.asarray(units.inverse(w) / w))
        for kind, new, old in (
            ("gradient", after.covector, before.covector),
            ("natural", after.vector, before.vector),
            ("data", rescaled.covector, after.covector),
        ):
            change = np.log(np.abs(np.asarray(new / old)))
            found[kind][:, unit] = change / np.log(60.0)
            if kind != "data":
                found[kind][:, unit] = (weight - change) / np.log(60.0)
    return found


def refused(operations: dict[str, Callable]) -> int:
    """How many operations raise a `TypeError`."""
    count = 0
    for operation in operations.values():
        try:
            operation()
        except TypeError:
            count += 1
    return count


def run_dimensions(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Powers of two units, and sums and products of vectors and covectors."""
    powers = needed_powers(generator(key))
    problem = pb.Composite(lambda w, x: x @ w, lambda z, y: (z - y) ** 2 / 2)
    batch = (jnp.asarray([[1.0, 2.0], [0.5, -1.0], [0.3, 0.7]]), jnp.asarray([1.0, 0.0, 2.0]))
    w = jnp.asarray([0.4, 0.9])
    metric = pb.pullback(problem, w, batch)
    plain = pb.natural_gradient(problem, w, batch)
    covector = pb.CotangentVector(plain.covector)
    vector = metric.sharp(covector)
    nonsense: dict[str, Callable] = {
        "parameters minus a covector": lambda: w - 0.1 * covector,
        "vector plus covector": lambda: vector + covector,
        "covector paired with a covector": lambda: operator.matmul(covector, covector),
        "vector paired with a vector": lambda: vector @ vector,
        "sharp of a vector": lambda: metric.sharp(vector),
        "flat of a covector": lambda: metric.flat(covector),
    }
    sense: dict[str, Callable] = {
        "parameters minus a vector": lambda: w - 0.1 * vector,
        "covector paired with a vector": lambda: covector @ vector,
        "flat of a vector": lambda: metric.flat(vector) + covector,
    }
    moved = np.asarray(w - 0.1 * vector) - np.asarray(w - 0.1 * plain.vector)
    rows = (
        at_least(
            "power of a unit that a step size needs, largest difference between two weights",
            np.ptp(powers["gradient"], axis=0).max(),
            1.0,
        ),
        at_most(
            "it is -2 in the weight's own unit and 0 in the other: largest error",
            np.abs(powers["gradient"] + 2 * np.eye(2)).max(),
            1e-12,
        ),
        at_most(
            "natural gradient: power that a step size needs, largest",
            np.abs(powers["natural"]).max(),
            1e-10,
        ),
        equals("nonsensical operations that the types refuse, of 6", refused(nonsense), 6),
        equals("sensible ones that they refuse", refused(sense), 0),
        at_most(
            "the typed step is the natural gradient step: off by",
            np.abs(moved).max(),
            1e-13,
            Role.CONTROL,
        ),
        at_most(
            "Units of the weights are units of the data: largest error of a power",
            np.abs(powers["data"]).max(),
            1e-12,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


def draw(data: Mapping[str, Any]) -> Any:
    """Data and the fit after one step, in minutes and in seconds: far apart for gradient descent,
    one line for the natural gradient.
    """
    figure, axes = open_figure(columns=2, size=(5.0, 3.8))
    grid = np.linspace(0.0, 2.0, 50)
    for ax, kind in zip(axes, ("gradient", "natural"), strict=True):
        for unit, colour, style in (("minutes", COLOURS[0], "-"), ("seconds", COLOURS[1], "--")):
            ax.plot(
                grid,
                data["slopes"][f"{kind} {unit}"] * grid,
                style,
                color=colour,
                lw=2,
                label=f"one step in {unit}",
            )
        ax.plot(data["minutes"], data["y"], "k.", ms=4)
        ax.set(
            xlabel="duration (minutes)",
            ylabel="y",
            ylim=(-0.5, 4),
            title="gradient descent" if kind == "gradient" else "natural gradient",
        )
        ax.legend(frameon=False)
    return figure


UNITS = Claim(
    name="units",
    source="lecture",
    place="Vectors and covectors, units of linear regression",
    quotation="The gradient gets 3600 times larger!",
    statement=(
        "Change from minutes to seconds, and the gradient of linear regression gets 3600 times "
        "larger."
    ),
    verdict=Verdict.CORRECTED,
    stands=True,
    run=run,
    correction=(
        "The gradient gets 60 times larger and the weight 60 times smaller: it is the step of "
        "the function that gets 3600 times longer. (The figure of the slide is not in the text.)"
    ),
    draw=draw,
)

DIMENSIONS = Claim(
    name="dimensions",
    source="lecture",
    place="Vectors and covectors, bookkeeping devices",
    quotation=(
        "bookkeeping devices to prevent us from performing nonsensical operations, e.g. "
        "dimensional analysis, types in programming ... No consistent assignment of dimensions!"
    ),
    statement=(
        "No dimension of the step size makes gradient descent on linear regression consistent; "
        "the natural gradient has the dimension of the weights. Types of vectors and covectors "
        "prevent the nonsensical operations."
    ),
    verdict=Verdict.HOLDS,
    run=run_dimensions,
)
CLAIMS = (UNITS, DIMENSIONS)
