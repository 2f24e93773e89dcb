r"""Three approximations of the proximal point \(u_\star = \arg\min J(u) + \lambda\rho(u, w)\), and
how far they are from it as \(\lambda \to \infty\):

| | \(J\) to order | \(\rho\) to order | \(\|u - u_\star\|\) | if \(\rho\) is quadratic |
|---|---|---|---|---|
| mirror descent | 1 | exact | \(O(\lambda^{-2})\) | \(O(\lambda^{-2})\) |
| natural gradient | 1 | 2 | \(O(\lambda^{-2})\) | \(O(\lambda^{-2})\) |
| damped Newton | 2 | 2 | \(O(\lambda^{-2})\) | \(O(\lambda^{-3})\) |

A step is \(O(\lambda^{-1})\) long, so that \(\lambda\) times the cubic term of \(\rho\) is
\(O(\lambda^{-2})\), as is the quadratic term of \(J\): to expand \(J\) further and \(\rho\) no
further gains no order.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance
from ._problem import FISHER, LABELS, PARAMS, PLAIN, X, cost, flat, logits

WEIGHTS = (400.0, 800.0, 1600.0, 3200.0)
SHORT = 20.0
"""The parameters are this much stiffer than the outputs: weights are divided by it if the distance
is theirs.
"""


def divergence(u: dict, w: dict) -> Any:
    """The mean of KL(p_u || p_w) over the inputs."""
    a = logits(u, X)
    b = logits(w, X)
    p = jax.nn.sigmoid(a)
    log_ratio = p * (jax.nn.log_sigmoid(a) - jax.nn.log_sigmoid(b)) + (1 - p) * (
        jax.nn.log_sigmoid(-a) - jax.nn.log_sigmoid(-b)
    )
    return jnp.mean(log_ratio)


def distances() -> dict[str, np.ndarray]:
    """How far each approximation is from the proximal point, for each weight."""
    found: dict[str, list[float]] = {
        name: []
        for name in ("mirror", "natural", "newton", "quadratic gradient", "quadratic newton")
    }
    start = flat(PARAMS)
    for weight in WEIGHTS:
        batch = (X, LABELS)
        exact = flat(pb.proximal_step(FISHER, PARAMS, batch, weight=weight, rtol=1e-10).params)
        mirror = pb.mirror_step(
            PLAIN, PARAMS, weight=weight, mirror=pb.DivergenceMirror(divergence)
        )
        found["mirror"].append(float(np.linalg.norm(flat(mirror.params) - exact)))
        found["natural"].append(
            float(
                np.linalg.norm(
                    flat(pb.linearised_proximal_step(FISHER, PARAMS, batch, weight=weight).params)
                    - exact
                )
            )
        )
        found["newton"].append(
            float(
                np.linalg.norm(
                    flat(pb.damped_newton_step(FISHER, PARAMS, batch, weight=weight).params) - exact
                )
            )
        )
        short = weight / SHORT
        exact = flat(pb.proximal_step(PLAIN, PARAMS, weight=short, rtol=1e-13).params)
        gradient = start - flat(jax.grad(cost)(PARAMS)) / short
        found["quadratic gradient"].append(float(np.linalg.norm(gradient - exact)))
        found["quadratic newton"].append(
            float(
                np.linalg.norm(
                    flat(pb.damped_newton_step(PLAIN, PARAMS, weight=short).params) - exact
                )
            )
        )
    return {name: np.asarray(values) for name, values in found.items()}


def order(errors: np.ndarray) -> float:
    """The order in 1/λ when λ doubles, extrapolated."""
    slopes = np.diff(np.log(errors)) / np.log(0.5)
    return float(2 * slopes[-1] - slopes[-2])


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Approximations 1 and 2."""
    found = distances()
    step = np.linalg.norm(
        flat(pb.linearised_proximal_step(FISHER, PARAMS, (X, LABELS), weight=WEIGHTS[-1]).params)
        - flat(PARAMS)
    )
    return Measured(
        (
            at_most(
                "natural gradient: order in 1/λ of the distance from the proximal point, |order "
                "- 2|",
                abs(order(found["natural"]) - 2),
                0.05,
            ),
            at_most("mirror descent: |order - 2|", abs(order(found["mirror"]) - 2), 0.05),
            at_most(
                "squared distance, gradient descent: |order - 2|",
                abs(order(found["quadratic gradient"]) - 2),
                0.1,
            ),
            at_most(
                "the distance relative to the step, at the largest λ",
                found["natural"][-1] / step,
                0.1,
                Role.CONTROL,
            ),
        )
    )


def rule(problem: pb.Composite, weight: float) -> float:
    """The relative error of the library's damped Newton step against (H + λG)⁻¹∇J, dense."""
    start, unravel = ravel_pytree(PARAMS)
    near = lambda u: divergence(unravel(u), PARAMS)
    slope, curvature, metric = jax.jit(
        lambda u: (
            jax.grad(lambda v: cost(unravel(v)))(u),
            jax.hessian(lambda v: cost(unravel(v)))(u),
            jax.hessian(near)(u),
        )
    )(start)
    g = np.asarray(metric) if problem is FISHER else np.eye(start.size)
    expected = np.linalg.solve(np.asarray(curvature) + weight * g, np.asarray(slope))
    batch = (X, LABELS) if problem is FISHER else None
    step = pb.damped_newton_step(problem, PARAMS, batch, weight=weight)
    return distance(flat(PARAMS) - flat(step.params), expected)


def run_newton(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Approximation 3: its rule, then its order."""
    found = distances()
    rows = (
        at_most("ρ = KL: the step is (H + λG)⁻¹∇J, relative error", rule(FISHER, WEIGHTS[0]), 1e-9),
        at_most("ρ quadratic: it is (H + λI)⁻¹∇J", rule(PLAIN, WEIGHTS[0] / SHORT), 1e-9),
        at_most(
            "damped Newton, ρ = KL: order in 1/λ, |order - 2|",
            abs(order(found["newton"]) - 2),
            0.05,
            Role.CONTROL,
        ),
        at_least(
            "damped Newton, ρ quadratic: order",
            order(found["quadratic newton"]),
            2.9,
            Role.CONTROL,
        ),
        at_most(
            "natural gradient: |order - 2|", abs(order(found["natural"]) - 2), 0.05, Role.CONTROL
        ),
    )
    return Measured(rows, {"weights": np.asarray(WEIGHTS), **found})


def draw(data: Mapping[str, Any]) -> Any:
    """Distance from the proximal point against 1/λ, both logarithmic: slope 2 for all three
    approximations with KL, slope 3 for damped Newton with a quadratic.
    """
    figure, axes = open_figure(size=(7.4, 4.2))
    labels = {
        "mirror": "mirror descent, KL",
        "natural": "natural gradient, KL",
        "newton": "damped Newton, KL",
        "quadratic gradient": "gradient descent, squared distance",
        "quadratic newton": "damped Newton, squared distance",
    }
    h = data["weights"][0] / data["weights"]
    for (name, label), colour, marker in zip(labels.items(), COLOURS, "osD^v", strict=False):
        slope = order(data[name])
        style = "--" if name.startswith("quadratic") else "-"
        axes.loglog(
            h,
            data[name],
            style,
            marker=marker,
            color=colour,
            ms=5,
            label=f"{label}: order {slope:.2f}",
        )
    low = min(float(data[name].min()) for name in labels)
    for slope in (2, 3):
        guide = low * (h / h[-1]) ** slope / 2
        axes.loglog(h, guide, color="0.6", ls=":", lw=1)
        axes.annotate(
            f"slope {slope}", (h[0], guide[0]), fontsize=8, color="0.4", ha="right", va="bottom"
        )
    axes.set(
        xlabel="1/λ, relative to the largest",
        ylabel="distance from the proximal point",
        title="Orders of the three approximations",
    )
    axes.set_xticks(h, [f"{one:g}" for one in h])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


CLAIMS = (
    Claim(
        name="proximal-natural",
        source="lecture",
        place="Approximations 1 and 2",
        quotation=(
            "Then we take the first-order Taylor approximation to J and second-order Taylor "
            "approximation to ρ"
        ),
        statement=(
            "Linearise the cost, and the proximal point becomes mirror descent; expand the "
            "divergence to second order as well, and it becomes the natural gradient step. As λ "
            "goes to infinity both are the proximal point to first order in the step."
        ),
        verdict=Verdict.HOLDS,
        run=run,
    ),
    Claim(
        name="proximal-newton",
        source="lecture",
        place="Approximation 3",
        quotation="Approximation 3: Second-order Taylor approximations to both J and ρ",
        statement=(
            "Second-order Taylor expansions of both cost and divergence give the step "
            "(H + λG)⁻¹∇J, the damped Newton step if the divergence is squared distance."
        ),
        verdict=Verdict.HOLDS,
        run=run_newton,
        remark=(
            "There is no gain in order over the natural gradient unless the divergence is "
            "quadratic: the cubic term of the divergence is of the same order as the quadratic "
            "term of the cost. With KL the order is 2, as for the natural gradient; with squared "
            "distance it is 3."
        ),
        draw=draw,
    ),
)
