r"""Other singular points than a crossing. The extended abstract of van Oostrum and Ay leaves them
open: "only one type of singularity has been discussed". Each point below is a singular point of the
model; what the natural parameter gradient does there differs.

| point | curve or surface | rank there | natural parameter gradient on the model |
|---|---|---|---|
| crossing | \((\sin 2t, \sin t)\) | 1 | one for each branch |
| tacnode | \((\sin t, \sin^2t\cos t)\) | 1 | the same on both branches: independent again |
| cusp | \((t^2, t^3)\) | 0 | zero, though its limit along the curve is \((c_1, 0)\) |
| pinch point | \((uv, u, v^2)\) | 1 of 2 | on a line; near it the limit depends on the way |
| dead unit | \(a\tanh bx\), at \(a = 0\) | 1 of 2 | one for each \(b\): a continuum of spans |

So independence needs equal spans, not a smooth point (Theorem 1 of the paper speaks of spans). At
the tacnode both branches have the tangent \((1, 0)\): the two natural gradients agree, and steps
along them separate at second order in the step, where at the crossing they separate at first. At
the cusp every smooth parametrisation has rank zero, so that independence holds and is empty; the
natural gradient of the curve has a limit, which is the projection on the tangent of the cusp. At
the pinch point (Whitney's umbrella) it has none. In a network the point is the zero function, with
a hidden unit whose outgoing weight is zero, and its incoming weight decides the span.

`examine(other=)` finds the crossing and the dead unit, whose spans differ; it does not find the
tacnode, whose spans are equal: equal spans do not make a point smooth.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most, equals
from .._figure import COLOURS, arrow, open_figure
from .._numbers import distance, generator

INPUTS = jnp.asarray(np.linspace(-2.0, 2.0, 7))
STEPS = (1e-2, 5e-3, 2.5e-3)
NEAR = 1e-4


def crossing(t: Float[Array, " 1"]) -> Float[Array, " 2"]:
    """The figure eight, through the origin at 0 and π."""
    return jnp.concatenate([jnp.sin(2 * t), jnp.sin(t)])


def tacnode(t: Float[Array, " 1"]) -> Float[Array, " 2"]:
    """Two branches that touch in the origin, at 0 and π."""
    return jnp.concatenate([jnp.sin(t), jnp.sin(t) ** 2 * jnp.cos(t)])


def cusp(t: Float[Array, " 1"]) -> Float[Array, " 2"]:
    """y² = x³."""
    return jnp.concatenate([t**2, t**3])


def faster_cusp(t: Float[Array, " 1"]) -> Float[Array, " 2"]:
    """The cusp after a change of its parameter."""
    return cusp(jnp.sinh(2 * t))


def wide_cusp(t: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """The cusp in two parameters."""
    return cusp(t[:1] + 3 * t[1:])


CUSPS = ((cusp, 1), (faster_cusp, 1), (wide_cusp, 2))


def pinch(x: Float[Array, " 2"]) -> Float[Array, " 3"]:
    """Whitney's umbrella."""
    return jnp.stack([x[0] * x[1], x[0], x[1] ** 2])


def unit(x: Float[Array, " 2"]) -> Float[Array, " 7"]:
    """One hidden unit, evaluated at seven inputs."""
    return x[0] * jnp.tanh(x[1] * INPUTS)


def pushforward(model: Callable, at: Any, differential: np.ndarray) -> np.ndarray:
    """The natural parameter gradient on the model, for a linear function on the outputs."""
    problem = pb.Composite(model, loss=eqx.Partial(jnp.vdot, jnp.asarray(differential)))
    found = pb.natural_gradient(problem, jnp.asarray(at), throw=False)
    return np.asarray(found.pushforward)


def separation(model: Callable) -> float:
    """The order in h of the distance between the images of steps of length h from 0 and from π,
    along the natural gradient of x + y.
    """
    gaps = []
    for h in STEPS:
        ends = []
        for at in (0.0, np.pi):
            problem = pb.Composite(model, loss=jnp.sum)
            ng = pb.natural_gradient(problem, jnp.array([at]))
            direction = ng.vector / jnp.linalg.norm(ng.pushforward)
            ends.append(np.asarray(model(jnp.array([at]) - h * direction)))
        gaps.append(float(np.linalg.norm(ends[0] - ends[1])))
    return float(np.log2(gaps[-2] / gaps[-1]))


def branches(model: Callable, radius: float, low: float, high: float) -> int:
    """How often a curve meets a small circle around the origin: twice if it is smooth there."""
    grid = jnp.linspace(low, high, 40001)[:, None]
    inside = np.linalg.norm(np.asarray(jax.vmap(model)(grid)), axis=1) < radius
    return int(np.sum(inside[1:] != inside[:-1]))


def _off(found: Any, expected: Any, c: np.ndarray) -> float:
    """The norm of a difference relative to that of the differential."""
    return float(np.linalg.norm(np.asarray(found) - np.asarray(expected)) / np.linalg.norm(c))


def _touching(c: np.ndarray) -> dict[str, float]:
    """The differences of the natural gradients of two branches, for one differential."""
    gap = lambda model: _off(pushforward(model, [0.0], c), pushforward(model, [np.pi], c), c)
    return {"crossing": gap(crossing), "tacnode": gap(tacnode)}


def _at_cusp(c: np.ndarray) -> dict[str, float]:
    """The natural gradient in the cusp, in three parametrisations, and beside it."""
    zero = [pushforward(model, np.zeros(size), c) for model, size in CUSPS]
    beside = [_off(pushforward(cusp, [t], c), [c[0], 0.0], c) for t in (NEAR, -NEAR)]
    return {"cusp": float(np.abs(zero).max()), "limit": max(beside)}


def _at_pinch(c: np.ndarray) -> dict[str, float]:
    """The natural gradient in the pinch point, and its limits on two ways to it."""
    at = pushforward(pinch, [0.0, 0.0], c)
    along_u = pushforward(pinch, [NEAR, 0.0], c)
    along_v = pushforward(pinch, [0.0, NEAR], c)
    return {
        "pinch": _off(at, [0.0, c[1], 0.0], c),
        "ways": max(_off(along_u, [c[0], c[1], 0.0], c), _off(along_v, [0.0, c[1], c[2]], c)),
        "gap": float(np.linalg.norm(along_u - along_v) / np.linalg.norm(c[[0, 2]])),
    }


def _dead(rng: np.random.Generator) -> dict[str, float]:
    """The natural gradient at two parameters of the zero function."""
    c = rng.standard_normal(INPUTS.size)
    errors, found = [], []
    for b in (0.5, 2.0):
        feature = np.tanh(b * np.asarray(INPUTS))
        found.append(pushforward(unit, [0.0, b], c))
        errors.append(distance(found[-1], feature * (feature @ c) / (feature @ feature)))
    return {
        "unit": max(errors),
        "apart": float(np.linalg.norm(found[0] - found[1]) / max(map(np.linalg.norm, found))),
    }


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Every point with random differentials."""
    rng = generator(key)
    found = [
        _touching(rng.standard_normal(2))
        | _at_cusp(rng.standard_normal(2))
        | _at_pinch(rng.standard_normal(3))
        | _dead(rng)
        for _ in range(5 * budget.seeds)
    ]
    worst = lambda name: max(one[name] for one in found)
    least = lambda name: min(one[name] for one in found)
    curves = {}
    for name, model, low, high in (
        ("crossing", crossing, -0.8, 3.9),
        ("tacnode", tacnode, -0.8, 3.9),
        ("cusp", cusp, -0.8, 0.8),
    ):
        curves[name] = np.asarray(jax.vmap(model)(jnp.linspace(low, high, 400)[:, None]))
    rows = (
        at_most(
            "tacnode: both branches have one natural gradient, off by", worst("tacnode"), 1e-14
        ),
        at_most(
            "steps along them separate at second order: |order - 2|",
            abs(separation(tacnode) - 2),
            0.05,
        ),
        at_most(
            "cusp: the natural gradient is zero, in three parametrisations", worst("cusp"), 1e-14
        ),
        at_most("beside it, its limit is (c₁, 0): relative error", worst("limit"), 1e-3),
        at_most("pinch point: it is (0, c₂, 0), relative error", worst("pinch"), 1e-13),
        at_most(
            "beside it, (c₁, c₂, 0) on one way and (0, c₂, c₃) on another: error",
            worst("ways"),
            1e-3,
        ),
        at_least("so there is no limit: the two differ by, relative", least("gap"), 0.99),
        at_most("dead unit: the projection on tanh bx, for b = 1/2 and 2", worst("unit"), 1e-13),
        at_least("the two differ by, relative, at most", worst("apart"), 0.1),
        *_kinds(least("crossing")),
    )
    return Measured(rows, {"curves": curves})


def _kinds(gap: float) -> tuple[Row, ...]:
    """What `examine` finds, and that the points are singular."""
    look = lambda model, first, second: pb.examine(
        pb.Composite(model, loss=jnp.sum), jnp.asarray(first), other=jnp.asarray(second)
    )
    meeting = {
        "crossing": look(crossing, [0.0], [np.pi]).meeting,
        "tacnode": look(tacnode, [0.0], [np.pi]).meeting,
        "unit": look(unit, [0.0, 0.5], [0.0, 2.0]).meeting,
    }
    singular = {name: int(one is not None and one.singular) for name, one in meeting.items()}
    improper = [
        pb.examine(pb.Composite(model, loss=jnp.sum), jnp.zeros(size)).proper
        for model, size in ((cusp, 1), (pinch, 2))
    ]
    return (
        equals(
            "examine finds crossing and dead unit by their spans",
            singular["crossing"] + singular["unit"],
            2,
        ),
        equals("and not the tacnode", singular["tacnode"], 0),
        equals("cusp and pinch point: parametrisations that are proper there", sum(improper), 0),
        equals(
            "a small circle meets the tacnode, a smooth curve would twice",
            branches(tacnode, 0.05, -0.7, 3.8),
            4,
            Role.CONTROL,
        ),
        at_least("crossing: the two natural gradients differ by", gap, 0.79, Role.CONTROL),
        at_most(
            "and steps along them separate at first order: |order - 1|",
            abs(separation(crossing) - 1),
            0.05,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Three curves with a singular point in the origin, and for dL = (0.8, 0.75) the natural
    gradients there: two at a crossing, one at a tacnode, zero at a cusp, where its limit is dashed.
    """
    figure, axes = open_figure(columns=3, size=(3.7, 3.4))
    c = np.array([0.8, 0.75])
    models = {"crossing": crossing, "tacnode": tacnode, "cusp": cusp}
    for ax, (name, model) in zip(axes, models.items(), strict=True):
        ax.plot(*np.asarray(data["curves"][name]).T, color="0.6", lw=1.5, zorder=1)
        arrow(ax, (0, 0), c, "black", "ambient gradient")
        if name == "cusp":
            ax.plot(0, 0, "o", color=COLOURS[0], ms=7, label="natural gradient: 0")
            ax.plot([0, c[0]], [0, 0], "--", color=COLOURS[1], lw=2, label="its limit")
        else:
            widths = (0.02, 0.009)
            for at, colour, width in zip((0.0, np.pi), COLOURS, widths, strict=False):
                label = f"at t = {'π' if at else 0}"
                arrow(ax, (0, 0), pushforward(model, [at], c), colour, label, width)
        ax.set(xlabel="x", ylabel="y", aspect="equal", title=name)
        ax.set(xlim=(-1.1, 1.1), ylim=(-0.8, 1.05))
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False, fontsize=8)
    return figure


CLAIM = Claim(
    name="singularities",
    source="ours",
    place="after the conclusion of van Oostrum and Ay",
    statement=(
        "Where two branches of a model touch, the natural parameter gradient is the same on both, "
        "though the point is singular; in a cusp it is zero, and has a limit; in a pinch point it "
        "has none; in a dead hidden unit there is one for each incoming weight. Equal spans "
        "decide, not whether the point is smooth."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
