r"""Minutes or seconds. For linear regression \(y = wx\), with \(x' = 60x\) and \(w' = w/60\): the
gradient becomes \(60\,g\), the weight a sixtieth, and so a step of gradient descent, relative to
the weight, \(60^2 = 3600\) times as long. A natural gradient step stays the same function.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_most
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


CLAIM = Claim(
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
