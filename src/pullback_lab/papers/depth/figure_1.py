r"""Figure 1: two parameter spaces, one hypothesis space; two Euclidean and two natural
trajectories. In the hypothesis space the Euclidean ones end at different optima, the natural ones
coincide.

The source draws an illustration; here it is computed. Hypotheses \(\beta\in\mathbb R^2\) with the
Euclidean metric, the loss \(\tfrac12(a\cdot\beta - 1)^2\), whose optima are a line, and two
parametrisations

\[ \beta = (w_1,\ w_2 - \tfrac35 w_1^2), \qquad \beta = (v_1,\ \tfrac13\sinh 3v_2) . \]

The natural flow goes straight to the nearest optimum. What makes it independent of the
parametrisation is that the metric is nonsingular on the hypotheses. With the metric that only sees
\(a\cdot\beta\), the Fisher matrix of the one training sample, the natural flows with the
Moore-Penrose inverse end at different optima too (with one sample they follow the curves of the
Euclidean flows): the control.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.integrate import solve_ivp

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance

SLOPE = np.array([1.0, 0.7])
START = np.array([-0.9, -0.6])
END = 12.0
TIMES = np.linspace(0.0, END, 400)


def sheared(w: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """The first parametrisation."""
    return jnp.stack([w[0], w[1] - 0.6 * w[0] ** 2])


def stretched(v: Float[Array, " 2"]) -> Float[Array, " 2"]:
    """The second parametrisation."""
    return jnp.stack([v[0], jnp.sinh(3 * v[1]) / 3])


def either(params: dict) -> Float[Array, " 2"]:
    """Both parametrisations in one program."""
    return jnp.where(params["space"] == 0, sheared(params["point"]), stretched(params["point"]))


STARTS = {
    "W1": np.array([START[0], START[1] + 0.6 * START[0] ** 2]),
    "W2": np.array([START[0], np.arcsinh(3 * START[1]) / 3]),
}
"""The parameters of the start in both spaces."""
MODELS = {"W1": sheared, "W2": stretched}


def loss(beta: Float[Array, " 2"]) -> Float[Array, ""]:
    """Half the squared residual of one observation."""
    return (jnp.asarray(SLOPE) @ beta - 1.0) ** 2 / 2


def blind_end(model: Callable, start: np.ndarray) -> np.ndarray:
    """Where the natural flow ends, Moore-Penrose, in the metric aaᵀ that sees the observation only:
    ẇ = -(aᵀJ)⁺(a·β - 1).
    """
    compute = jax.jit(lambda w: (jax.jacfwd(model)(w), model(w)))

    def field(t, w):
        j, beta = (np.asarray(v) for v in compute(jnp.asarray(w)))
        return -np.linalg.pinv((SLOPE @ j)[None])[:, 0] * (SLOPE @ beta - 1)

    end = solve_ivp(field, (0.0, END), start, rtol=1e-7, atol=1e-9).y[:, -1]
    return np.asarray(model(jnp.asarray(end)))


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Both flows in both spaces."""
    data = {}
    ends = {}
    images = {}
    problem = pb.Composite(either, loss=loss)
    for index, (name, start) in enumerate(STARTS.items()):
        for kind, flow in (("EGD", pb.EuclideanFlow()), ("NGD", pb.NaturalFlow())):
            params = {"point": jnp.asarray(start), "space": jnp.asarray(index)}
            path = np.asarray(pb.flow(problem, params, t1=END, ts=TIMES, kind=flow).saved["point"])
            data[f"{name}|{kind}"] = path
            data[f"H|{name}|{kind}"] = images[name, kind] = np.asarray(
                jax.vmap(MODELS[name])(jnp.asarray(path))
            )
            ends[name, kind] = images[name, kind][-1]
        ends[name, "blind"] = blind_end(MODELS[name], start)
    nearest = START + SLOPE * (1 - SLOPE @ START) / (SLOPE @ SLOPE)
    line = START + (1 - np.exp(-(SLOPE @ SLOPE) * TIMES))[:, None] * (nearest - START)
    rows = (
        at_most(
            "natural, both spaces: largest distance of the trajectories of hypotheses",
            distance(images["W1", "NGD"], images["W2", "NGD"]),
            1e-7,
        ),
        at_most(
            "natural: against the straight line to the nearest optimum",
            distance(images["W1", "NGD"], line),
            1e-7,
        ),
        at_least(
            "Euclidean: distance of the two optima",
            np.linalg.norm(ends["W1", "EGD"] - ends["W2", "EGD"]),
            0.2,
        ),
        at_most(
            "control: all are optima, largest loss",
            max(float(loss(jnp.asarray(e))) for e in ends.values()),
            1e-8,
            Role.CONTROL,
        ),
        at_least(
            "control: a metric that sees a·β only, distance of the two natural optima",
            np.linalg.norm(ends["W1", "blind"] - ends["W2", "blind"]),
            0.1,
            Role.CONTROL,
        ),
    )
    return Measured(rows, data)


def draw(data: Mapping[str, Any]) -> Any:
    """Two parameter spaces and the hypotheses."""
    fig, axes = open_figure(columns=3, size=(3.6, 3.6))
    colours = {"EGD": COLOURS[1], "NGD": COLOURS[0]}
    styles = {"W1": "-", "W2": "--"}
    maps = {
        "W1": lambda w: np.stack([w[0], w[1] - 0.6 * w[0] ** 2]),
        "W2": lambda v: np.stack([v[0], np.sinh(3 * v[1]) / 3]),
        "H": lambda b: b,
    }
    for ax, space in zip(axes, ("W1", "W2", "H"), strict=True):
        keys = [k for k in data if k.startswith(f"{space}|")]
        points = np.concatenate([np.asarray(data[k]) for k in keys])
        centre = (points.max(axis=0) + points.min(axis=0)) / 2
        half = 0.7 * np.ptp(points, axis=0).max()
        sides = [np.linspace(c - half, c + half, 200) for c in centre]
        residual = np.tensordot(SLOPE, maps[space](np.stack(np.meshgrid(*sides))), axes=1) - 1
        ax.contour(
            *sides,
            np.log10(residual**2 / 2 + 1e-3),
            levels=12,
            cmap="Greys",
            linewidths=0.6,
            alpha=0.6,
        )
        ax.contour(*sides, residual, levels=[0.0], colors="0.2", linewidths=1.5)
        for k in keys:
            origin, kind = k.split("|")[-2:]
            path = np.asarray(data[k])
            name = (
                ("NGD in both" if kind == "NGD" else f"EGD in {origin}") if space == "H" else kind
            )
            # The natural paths coincide in H: the second is drawn thin and light on the first.
            over = (
                {"color": "w", "lw": 1.2}
                if k == "H|W2|NGD"
                else {"color": colours[kind], "lw": 3 if space == "H" and origin == "W1" else 2}
            )
            ax.plot(*path.T, ls=styles[origin], label=None if k == "H|W2|NGD" else name, **over)
            ax.plot(*path[-1], "o", color=colours[kind], ms=5)
        ax.plot(*np.asarray(data[keys[0]])[0], "k*", ms=10)
        ax.set(
            title={
                "W1": r"parameters $\mathcal{W}_1$",
                "W2": r"parameters $\mathcal{W}_2$",
                "H": r"hypotheses $\mathcal{H}$",
            }[space],
            xlabel="first coordinate",
            ylabel="second coordinate",
        )
        ax.legend(frameon=True, framealpha=0.8, fontsize=8, loc="best")
    return fig


CLAIM = Claim(
    name="depth-figure-1",
    source="depth",
    place="Figure 1",
    quotation="EGD finds different optima, but NGD finds the same",
    statement=(
        "Mapped to the hypotheses, Euclidean trajectories of two parameter spaces find different "
        "optima; natural ones find the same."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
