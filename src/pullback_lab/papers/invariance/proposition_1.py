r"""Proposition 1. Where the model is a manifold, the images of the points in which \(\varphi\) is
not proper have measure zero (Sard).

This cannot be decided by computing, but it can be refuted or illustrated. On the plane, with \(t
\mapsto \varphi_2(t)\) that folds or rests:

| | not proper in the parameters | image |
|---|---|---|
| \((s, t^3)\) | the line \(t = 0\) | a line |
| \((s, r(t))\) | \(|t| \le \tfrac12\), where \(r\) rests: *positive* measure | still a line |
| \((s, t^2 - \tfrac14 s)\) | the line \(t = 0\), a fold | a line |

An image is covered with boxes of side \(b\): the area they cover is \(O(b)\) for a line, and tends
to that of the image if it has one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure

SIDES = (0.2, 0.1, 0.05)


def rest(t: Float[Array, ""]) -> Float[Array, ""]:
    """A smooth function that is zero on [-1/2, 1/2] and increasing outside."""
    over = jnp.maximum(jnp.abs(t) - 0.5, 0.0)
    return jnp.sign(t) * over**3


MODELS: dict[str, Callable] = {
    "cube": lambda x: jnp.stack([x[0], x[1] ** 3]),
    "at rest": lambda x: jnp.stack([x[0], rest(x[1])]),
    "fold": lambda x: jnp.stack([x[0], x[1] ** 2 - x[0] / 4]),
}


def look(model: Callable, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of a grid on [-3/2, 3/2]², and whether the model is not proper there."""
    side = np.linspace(-1.5, 1.5, points)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    least = lambda x: jnp.linalg.svd(jax.jacfwd(model)(x), compute_uv=False)[-1]
    images, smallest = jax.jit(jax.vmap(lambda x: (model(x), least(x))))(jnp.asarray(grid))
    return np.asarray(images), np.asarray(smallest) < 1e-12


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
        images, improper = look(model, 901 if budget.full else 601)
        bad, whole = (
            [area(points, side) for side in SIDES] for points in (images[improper], images)
        )
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
    return Measured(tuple(rows), data)


def draw(data: Mapping[str, Any]) -> Any:
    """Area covered by boxes against their side, both logarithmic: for the images of improper points
    it falls with slope 1, for all points it stays.
    """
    figure, axes = open_figure(size=(7.0, 3.8))
    for name, colour, marker in zip(MODELS, COLOURS, "os^", strict=False):
        axes.loglog(
            data["side"],
            data[f"{name}, improper points"],
            marker=marker,
            color=colour,
            label=f"{name}, improper points",
        )
        axes.loglog(
            data["side"],
            data[f"{name}, all points"],
            marker=marker,
            ls=":",
            color=colour,
            label=f"{name}, all points",
        )
    axes.set(
        xlabel="side of the boxes",
        ylabel="area covered",
        title="Images of improper points have no area",
    )
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
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
        "Sard; here it is tried on three maps of the plane.)"
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
