r"""One manifold for all flows of a diagonal network: the metric chooses the logits, depth and start
choose the manifold.

Both the Euclidean flow and the natural flow (Moore-Penrose) of \(\beta = w_1 \odot \cdots \odot
w_L\) move in the row space of the Jacobian of the training logits, \(\dot w_l = c_l \odot
X^\top\nu\). So each coordinate of w is a function of one number, \(m = X^\top\!\int\nu\), and with
the entropy \(\psi_j'' = 1/\sum_l c_{lj}^2\)

\[ \nabla\psi(\beta_t) - \nabla\psi(\beta_0) = m(t) \in \mathrm{range}(X^\top) : \]

\(\beta_t\) is the Bregman projection of \(\beta_0\) on \(\{\beta : X\beta = X\beta_t\}\). The proof
and its hypotheses are in the docs, "Results". Here the flows are integrated with the fields of
`pullback.linear.Diagonal`, and \(\psi\) is computed from the initial weights alone, by quadrature.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.integrate import solve_ivp

from pullback.linear import Diagonal, hyperbolic_projection

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from ..depth._figure_flows import cofactors
from ._entropy import entropy, project

DEPTHS = (2, 3, 4)
FLOWS = ("natural", "Euclidean")
LATE = {"natural": 6.0, "Euclidean": 2000.0}
COLUMNS = 12
RTOL = 1e-12


def fields(depth: int) -> dict[str, Callable]:
    """The natural gradient and the gradient of the library, in the layers."""
    network = Diagonal(depth)
    return {
        "natural": jax.jit(network.natural_gradient),
        "Euclidean": jax.jit(network.gradient),
    }


def follow(
    field: Callable, weights: np.ndarray, x: np.ndarray, y: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """The layers at some times, in the clock log(1 + t)."""
    data = jnp.asarray(x), jnp.asarray(y)

    def velocity(clock, flat):
        return -np.exp(clock) * np.asarray(field(flat.reshape(weights.shape), *data)).ravel()

    clock = np.log1p(times)
    end = solve_ivp(
        velocity,
        (0, clock[-1]),
        weights.ravel(),
        method="DOP853",
        rtol=RTOL,
        atol=1e-2 * RTOL,
        t_eval=clock,
    )
    return end.y.T.reshape(-1, *weights.shape)


def by_least_squares(weights: np.ndarray, x: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """β at the end of the Euclidean flow of half the squared error, another loss, on logits."""

    def velocity(clock, flat):
        w = flat.reshape(weights.shape)
        return np.exp(clock) * (cofactors(w) * (x.T @ (logits - x @ np.prod(w, axis=0)))).ravel()

    # One sample less can be reached only slowly: the clock runs to t = e¹².
    end = solve_ivp(velocity, (0, 12.0), weights.ravel(), method="LSODA", rtol=1e-11, atol=1e-12)
    return np.prod(end.y[:, -1].reshape(weights.shape), axis=0)


def outside(x: np.ndarray, change: np.ndarray) -> float:
    """The fraction of a vector outside the range of Xᵀ."""
    return distance(x.T @ np.linalg.lstsq(x.T, change, rcond=None)[0], change)


def sample(rng: np.random.Generator, dependent: bool) -> tuple[np.ndarray, np.ndarray]:
    """Four inputs and random labels, or these and two combinations of them."""
    x = rng.standard_normal((4, COLUMNS))
    y = rng.choice([-1.0, 1.0], 4)
    if not dependent:
        return x, y
    combined = rng.uniform(0.2, 0.8, (2, 4)) @ (y[:, None] * x)
    return np.vstack([x, combined]), np.append(y, [1.0, 1.0])


class Found(NamedTuple):
    """What is measured of one flow."""

    outside: float
    plain: float
    projected: float
    closed: float
    other_loss: float


def measure(depth: int, kind: str, field: Callable, rng: np.random.Generator, dependent: bool):
    """One flow from random weights."""
    x, y = sample(rng, dependent)
    weights = 0.5 * rng.standard_normal((depth, COLUMNS))
    psi = entropy(weights)
    start = np.prod(weights, axis=0)
    end = np.prod(follow(field, weights, x, y, np.array([LATE[kind]]))[-1], axis=0)
    closed = 0.0
    if depth == 2 and not dependent:
        x_, s, beta, kappa = map(jnp.asarray, (x, x @ end, start, psi.mu[0]))
        closed = distance(hyperbolic_projection(x_, s, beta, kappa), end)
    return Found(
        outside(x, psi.gradient(end) - psi.gradient(start)),
        outside(x, end - start),
        distance(project(psi, x, x @ end, start), end),
        closed,
        0.0 if dependent else distance(by_least_squares(weights, x, x @ end), end),
    )


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Depths 2, 3 and 4, both flows, independent and dependent inputs."""
    seeds = max(budget.seeds, 20 if budget.full else 4)
    found = {}
    for depth in DEPTHS:
        ours = fields(depth)
        for kind in FLOWS:
            found[depth, kind] = [
                measure(
                    depth,
                    kind,
                    ours[kind],
                    generator(jax.random.fold_in(key, 100 * depth + seed)),
                    dependent=seed % 2 == 1,
                )
                for seed in range(seeds)
            ]
    return Measured(_rows(found), {**_shown(found), **_plane()})


def _shown(found: dict[tuple[int, str], list[Found]]) -> dict[str, np.ndarray]:
    """The two fractions of each flow."""
    return {
        f"{what}|{depth}|{kind}": np.array([getattr(one, what) for one in several])
        for (depth, kind), several in found.items()
        for what in ("outside", "plain")
    }


def _rows(found: dict[tuple[int, str], list[Found]]) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    largest = lambda what, some: max(getattr(one, what) for key in some for one in found[key])
    rows = [
        at_most(
            f"{kind} flow, L = {depth}: ∇ψ(β_t) - ∇ψ(β₀) outside the range of Xᵀ, largest fraction",
            largest("outside", [(depth, kind)]),
            1e-10,  # the tolerance of the integration, times the growth of errors
        )
        for kind in FLOWS
        for depth in DEPTHS
    ]
    return (
        *rows,
        at_most(
            "β_t against the Bregman projection of β₀ on its own logits: largest distance",
            largest("projected", found),
            1e-9,
        ),
        at_most(
            "Euclidean flow of another loss, squared error, to the logits of β_t: largest distance",
            largest("other_loss", found),
            1e-6,
        ),
        at_most(
            "L = 2, independent rows: β_t against hyperbolic_projection, largest distance",
            largest("closed", found),
            1e-9,
        ),
        at_least(
            "β_t - β₀ itself outside the range of Xᵀ, least fraction",
            min(one.plain for several in found.values() for one in several),
            0.05,
            Role.CONTROL,
        ),
    )


def _plane() -> dict[str, np.ndarray]:
    """One sample in the plane: the curves by depth, and both flows on them."""
    x, y = np.array([[1.0, 2.0]]), np.array([1.0])
    start = np.array([0.6, -0.2])
    shown = {"start": start}
    times = {
        "natural": np.array([0.5, 1.5, 3.0, 4.5]),
        "Euclidean": np.array([0.2, 0.7, 3.0, 16.0]),
    }
    for depth in DEPTHS:
        weights = np.abs(start) ** (1 / depth) * np.geomspace(0.6, 1 / 0.6, depth)[:, None]
        weights[0] *= np.sign(start)
        psi = entropy(weights)
        levels = np.linspace(0.2, 7.0, 70)
        shown[f"curve|{depth}"] = np.stack(
            [project(psi, x, np.array([level]), start) for level in levels]
        )
        for kind, field in fields(depth).items():
            path = follow(field, weights, x, y, times[kind])
            shown[f"path|{depth}|{kind}"] = np.prod(path, axis=1)
    return shown


def draw(data: Mapping[str, Any]) -> Any:
    """Left: one sample, two coefficients. Each depth has its curve, computed as projections of the
    start; the Euclidean and the natural flow of that depth both stay on it. Right: what part of
    the change lies outside the range of Xᵀ, of β and of ∇ψ(β), for all flows.
    """
    drawing, (left, right) = open_figure(columns=2, size=(5.2, 4.2))
    for i, depth in enumerate(DEPTHS):
        left.plot(*np.asarray(data[f"curve|{depth}"]).T, color=COLOURS[i], label=f"L = {depth}")
        for kind, marker, size in (("natural", "o", 7), ("Euclidean", "x", 6)):
            left.plot(
                *np.asarray(data[f"path|{depth}|{kind}"]).T,
                marker,
                color=COLOURS[i],
                mfc="white",
                ms=size,
                label=f"{kind} flow" if depth == DEPTHS[-1] else None,
            )
    left.plot(*np.asarray(data["start"]), "k*", ms=11, label="start")
    for level in range(1, 8):
        ends = np.array([0.3, 5.5])
        left.plot(ends, (level - ends) / 2, color="0.85", lw=0.8, zorder=0)
    left.set(xlabel="β₁", ylabel="β₂", title="one sample x = (1, 2); grey: equal logits")
    left.set(xlim=(0.3, 5.5), ylim=(-0.35, 1.4))
    left.legend(fontsize=8)
    for i, depth in enumerate(DEPTHS):
        for kind, marker, side in (("natural", "o", -0.12), ("Euclidean", "x", 0.12)):
            for what, colour in (("plain", "0.5"), ("outside", COLOURS[i])):
                values = np.asarray(data[f"{what}|{depth}|{kind}"])
                right.semilogy(np.full(len(values), depth + side), values, marker, color=colour)
    right.axhline(1e-10, color="0.7", ls=":", lw=1)
    right.text(2.5, 1e-2, "of β", color="0.4", ha="center")
    right.text(2.5, 3e-12, "of ∇ψ(β)", ha="center")
    right.set(
        xlabel="depth L (circles: natural flow, crosses: Euclidean flow)",
        ylabel="fraction of the change outside range Xᵀ",
        title="12 coefficients, 4 or 6 samples",
        xticks=DEPTHS,
        ylim=(1e-16, 10),
    )
    return drawing


CLAIM = Claim(
    name="one-manifold",
    source="ours",
    place="after section 2.3 of Kerekes et al.; proof in the docs, Results",
    statement=(
        "For diagonal networks of any depth the Euclidean and the natural flow (Moore-Penrose) "
        "move on one manifold, of the dimension of the rank of X, which depth and start determine: "
        "β(t) is the Bregman projection of β(0) on the coefficients with the logits of β(t), in "
        "the separable entropy ψ'' = 1/Σ c_l². The metric and the loss choose the logits only."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
    key_number=("natural flow, L = 4: ∇ψ(β_t) - ∇ψ(β₀) outside the range of Xᵀ, largest fraction"),
)
