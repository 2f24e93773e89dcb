r"""Proposition 1. Where the model is a manifold, the images of the points in which \(\varphi\) is
not proper have measure zero (Sard).

This cannot be decided by computing, but it can be refuted or illustrated. Three maps onto the
plane, so that Smooth(M) is all of it, with \(t \mapsto \varphi_2(t)\) that rests or folds:

| | not proper in the parameters | image |
|---|---|---|
| \((s, t^3)\) | the line \(t = 0\) | a line |
| \((s, r(t))\) | \(|t| \le \tfrac12\), where \(r\) rests: *positive* measure | still a line |
| \((s, t^3 + st)\), Whitney's | the parabola \(s = -3t^2\), folds | the cusp \(4s^3 + 27y^2 = 0\) |

A fold onto a half plane, \((s, t^2)\), is no example: its improper points go to the edge of the
model, which is not in Smooth(M).

An image is covered with boxes of side \(b\): the area they cover is \(O(b)\) for a line, and tends
to that of the image if it has one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._figure import COLOURS, open_figure

SIDES = (0.2, 0.1, 0.05)


def rest(t: Float[Array, ""]) -> Float[Array, ""]:
    """A smooth function that is zero on [-1/2, 1/2] and increasing outside."""
    over = jnp.maximum(jnp.abs(t) - 0.5, 0.0)
    return jnp.sign(t) * over**3


MODELS: dict[str, Callable] = {
    "cube": lambda x: jnp.stack([x[0], x[1] ** 3]),
    "at rest": lambda x: jnp.stack([x[0], rest(x[1])]),
    "Whitney": lambda x: jnp.stack([x[0], x[1] ** 3 + x[0] * x[1]]),
}


FORMULAS = {"cube": "$(s, t^3)$", "at rest": "$(s, r(t))$", "Whitney": "$(s, t^3 + st)$"}


@eqx.filter_jit
def _evaluate(model: Callable, grid: Float[Array, "n 2"]) -> tuple[Array, Array, Array]:
    """Images, determinants and smallest singular values."""

    def one(x):
        j = jax.jacfwd(model)(x)
        det = j[0, 0] * j[1, 1] - j[0, 1] * j[1, 0]
        size = jnp.sum(j**2)  # s₁² + s₂², where s₁s₂ = |det|
        largest = jnp.sqrt((size + jnp.sqrt(jnp.maximum(size**2 - 4 * det**2, 0.0))) / 2)
        return model(x), det, jnp.abs(det) / largest

    return jax.vmap(one)(grid)


def look(model: Callable, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images of a grid on [-3/2, 3/2]², whether the model is not proper there, and images of more
    improper points: where the determinant changes its sign along s, by bisection.
    """
    side = np.linspace(-1.5, 1.5, points)
    grid = np.stack(np.meshgrid(side, side), axis=-1)
    images, det, least = (np.asarray(x) for x in _evaluate(model, jnp.asarray(grid.reshape(-1, 2))))
    det = det.reshape(points, points)
    row, column = np.nonzero(det[:, :-1] * det[:, 1:] < 0)
    low, high, sign = grid[row, column], grid[row, column + 1], np.sign(det[row, column])
    for _ in range(50 if len(row) else 0):
        middle = (low + high) / 2
        same = (np.sign(np.asarray(_evaluate(model, jnp.asarray(middle))[1])) == sign)[:, None]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    roots = np.asarray(jax.vmap(model)(jnp.asarray(low))) if len(row) else np.zeros((0, 2))
    improper = least < 1e-12
    return images, improper, np.concatenate([images[improper], roots])


def decided() -> dict[str, int]:
    """How `examine` decides at improper and at proper points of the three maps: the number of wrong
    decisions; and how many improper points it calls proper if it looks at near points only.
    """
    at = {
        "cube": ([[0.5, 0.0], [-1.0, 0.0]], [[0.5, 1.0], [0.0, -0.5]]),
        "at rest": ([[0.5, 0.25], [-1.0, -0.125]], [[0.5, 1.0], [0.0, -1.25]]),
        "Whitney": ([[-0.75, 0.5], [-0.1875, -0.25]], [[0.5, 0.5], [-0.75, 1.0]]),
    }
    wrong, near = 0, 0
    for name, kinds in at.items():
        problem = pb.Composite(MODELS[name], loss=jnp.sum)
        for kind, points in zip((False, True), kinds, strict=True):
            for point in points:
                found = pb.examine(problem, jnp.asarray(point), radius=1.0, nearby=16)
                wrong += found.proper is not kind
                if name == "at rest" and not kind:
                    near += pb.examine(problem, jnp.asarray(point), radius=1e-3).proper
    return {"wrong": wrong, "near": near}


def area(points: np.ndarray, side: float) -> float:
    """The area of the boxes that cover some points."""
    # The lattice is shifted, so that no line of the examples runs between two rows of boxes.
    return len(np.unique(np.floor(points / side + 0.3).astype(int), axis=0)) * side**2


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Three maps of the plane."""
    rows = []
    data = {"side": np.asarray(SIDES)}
    order = lambda areas: float(np.log(areas[0] / areas[-1]) / np.log(SIDES[0] / SIDES[-1]))
    for name, model in MODELS.items():
        images, improper, critical = look(model, 901 if budget.full else 601)
        bad, whole = ([area(points, side) for side in SIDES] for points in (critical, images))
        rows.append(
            at_most(
                f"{name}: area of the image of improper points, in the side of the boxes: |order "
                "- 1|",
                abs(order(bad) - 1),
                0.15,
            )
        )
        rows.append(
            at_most(
                f"{name}: area of the whole image, |order|", abs(order(whole)), 0.15, Role.CONTROL
            )
        )
        if name == "at rest":
            rows.append(
                at_least(
                    "at rest: fraction of the parameters that are improper",
                    improper.mean(),
                    0.33,
                    Role.CONTROL,
                )
            )
        data |= {
            f"{name}, improper points": np.asarray(bad),
            f"{name}, all points": np.asarray(whole),
        }
    found = decided()
    rows += [
        equals(
            "examine, nearby points at distance 1: wrong decisions on proper, of 12",
            found["wrong"],
            0,
        ),
        equals(
            "at distance 0.001: improper points of the map at rest that it calls proper, of 2",
            found["near"],
            2,
            Role.CONTROL,
        ),
    ]
    return Measured(tuple(rows), data)


def draw(data: Mapping[str, Any]) -> Any:
    """One panel for each map: area covered by boxes against their side, both logarithmic. For the
    images of improper points it falls with slope 1, for all points it stays.
    """
    figure, axes = open_figure(columns=3, size=(3.4, 3.2))
    for ax, name in zip(axes, MODELS, strict=True):
        for kind, colour, style in (
            ("all points", COLOURS[0], "o:"),
            ("improper points", COLOURS[1], "s-"),
        ):
            ax.loglog(data["side"], data[f"{name}, {kind}"], style, color=colour, label=kind)
        ax.set(xlabel="side of the boxes", title=FORMULAS[name], ylim=(0.1, 40))
        ax.set_xticks(data["side"], [f"{side:g}" for side in data["side"]])
        ax.minorticks_off()
    for ax in axes[1:]:
        ax.tick_params(labelleft=False)  # those of the first panel
    axes[0].set(ylabel="area covered by the images")
    axes[1].legend(frameon=False, loc="center")
    return figure


CLAIM = Claim(
    name="proposition-1",
    source="invariance",
    place="Proposition 1, (41)",
    quotation=(
        "the image of the set of points for which φ is not proper has measure zero in Smooth(M)"
    ),
    statement=(
        "The images of the points in which the parametrisation is not proper have measure zero "
        "in the smooth part of the model, even if those points themselves do not. (A theorem of "
        "Sard; here it is tried on three maps onto the plane.)"
    ),
    verdict=Verdict.HOLDS,
    run=run,
    remark=(
        "Where the improper points have inner points, a test of the rank at near points alone "
        "cannot tell them: `examine` needs a radius that reaches beyond."
    ),
    draw=draw,
)
