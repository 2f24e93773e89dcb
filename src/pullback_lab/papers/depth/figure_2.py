r"""Figure 2: which separator of eight points in the plane (`_toy`) is found. Euclidean flow with
one layer: that of largest \(\ell_2\) margin (A). With \(L\) diagonal layers: largest \(\ell_{2/L}\)
margin, here along the first axis (B). Natural gradient: the same at any depth, and neither of the
two (C, D).

The limits come from `pullback.linear`: 21.8° for one layer, 0° for two and three (\(\ell_1\) and
\(\ell_{2/3}\)), and the linear program of `limit_direction`. Euclidean directions settle like
\(1/\log t\), so that flow is followed to \(t = 10^{100}\) in logarithmic time. The natural flow is
followed by the library, natural gradient *descent* by NumPy, step 0.02.

**A caveat.** The layers must differ at the start. With \(w_1 = w_2\) a coefficient of two layers is
a square and cannot change its sign: at zero \(J\) loses a row, the natural flow ends there in
finite time (the library stops and reports it), and the descent goes astray; the separator of the
linear program has \(\beta_2 < 0\) and is not found. In floating point this is not even reliable:
near zero the steps are so large that rounding makes the layers differ, and with steps of 0.005,
0.002 and 0.001 the descent then passed, where with 0.02 and 0.01 it ended at 41° and 47°. Here
equal layers are kept equal.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb
from pullback.linear import l1_margin, l2_margin, lp_margin

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most, equals
from .._figure import COLOURS, open_figure
from ._logistic import STACKED, batch, follow, phi
from ._margins import limit
from ._toy import SIGNED, X, Y, degrees
from .singular_fisher import layers

START = np.array([0.05, 0.05])
LATE = np.concatenate([[1.0, 10.0], np.geomspace(100.0, 1e100, 30)])
TIMES = np.linspace(50 / 32, 50.0, 32)


def stacked(rows: np.ndarray) -> dict:
    """Layers filled up to three."""
    full = np.concatenate([rows, np.ones((3 - len(rows), 2))])
    return {"layers": jnp.asarray(full), "depth": jnp.asarray(len(rows))}


def descend(rows: np.ndarray, step: float, end: float, equal: bool = False) -> np.ndarray:
    """Natural gradient descent of a diagonal network: the coefficients, after each step."""
    path = []
    for _ in range(round(end / step)):
        beta = np.prod(rows, axis=0)
        u = SIGNED @ beta
        j = np.hstack(
            [np.diag(np.prod(np.delete(rows, i, axis=0), axis=0)) for i in range(len(rows))]
        )
        weight = np.exp((u.min() - u) / 2) * phi(u)
        delta = np.linalg.lstsq(
            weight[:, None] * (SIGNED @ j), weight * (1 + np.exp(-u)), rcond=1e-12
        )[0]
        rows = rows + step * delta.reshape(rows.shape)
        rows = np.broadcast_to(rows.mean(axis=0), rows.shape) if equal else rows
        path.append(np.prod(rows, axis=0))
    return np.array(path)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Euclidean flows, natural flows and natural descents of one, two and three layers."""
    step = 0.002 if budget.full else 0.02
    euclidean = {}
    natural = {}
    descent = {}
    for depth in (1, 2, 3):
        start = layers(START, depth)
        options = {"clock": pb.LogTime(), "rtol": 1e-6, "atol": 1e-8, "max_steps": 20_000}
        path = follow(STACKED, stacked(start), X, Y, LATE, pb.EuclideanFlow(), **options)["layers"]
        euclidean[depth] = np.prod(np.asarray(path)[:, :depth], axis=1)
        path = follow(STACKED, stacked(start), X, Y, TIMES, pb.NaturalFlow(solver=pb.solver.SVD()))[
            "layers"
        ]
        natural[depth] = np.prod(np.asarray(path)[:, :depth], axis=1)
        descent[depth] = descend(start, step, 50.0)
    equal = np.sqrt(np.stack([START, START]))
    stuck = pb.flow(
        STACKED,
        stacked(equal),
        batch(X, Y),
        t1=50.0,
        ts=TIMES,
        kind=pb.NaturalFlow(solver=pb.solver.SVD()),
        throw=False,
    )
    jumped = degrees(descend(equal, step, 50.0, equal=True)[-1])
    limits = {
        "l2": np.asarray(l2_margin(X, Y)),
        "l1": np.asarray(l1_margin(X, Y)),
        "l2/3": np.asarray(lp_margin(X, Y, 2 / 3)),
        "LP": limit(X, Y, START),
    }
    angle = {name: float(degrees(v)) for name, v in limits.items()}
    ngd = np.array([degrees(descent[d][-1]) for d in (1, 2, 3)])
    ngf = np.array([degrees(natural[d][-1]) for d in (1, 2, 3)])
    egf = {d: float(degrees(euclidean[d][-1])) for d in (1, 2, 3)}
    stopped = bool(stuck.result == pb.RESULTS.rank_changed)
    rows = _rows(angle, egf, ngf, ngd, stopped, float(jumped))
    data = {f"EGF|{d}": euclidean[d] for d in euclidean} | {f"NGD|{d}": descent[d] for d in descent}
    return Measured(rows, {**data, "late": LATE, "step": step, **limits})


def _rows(
    angle: dict[str, float],
    egf: dict[int, float],
    ngf: np.ndarray,
    ngd: np.ndarray,
    stopped: bool,
    jumped: float,
) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    return (
        at_most(
            "A: EGF, L = 1, t = 1e100: off the largest l2 margin, degrees",
            abs(egf[1] - angle["l2"]),
            0.5,
        ),
        at_most(
            "B: EGF, L = 3, t = 1e100: off the largest l_{2/3} margin, degrees",
            abs(egf[3] - angle["l2/3"]),
            2.0,
        ),
        at_most(
            "EGF, L = 2, t = 1e100: off the largest l1 margin, degrees",
            abs(egf[2] - angle["l1"]),
            8.0,
        ),
        at_most("C, D: NGD, L = 1, 2, 3, t = 50: range of the three, degrees", np.ptp(ngd), 0.05),
        at_least(
            "C, D: NGD off both EGD separators, degrees",
            min(abs(ngd - angle["l2"]).min(), abs(ngd - egf[3]).min()),
            2.0,
        ),
        at_most("NGF, L = 1, 2, 3: range of the three, degrees", np.ptp(ngf), 1e-4, Role.CONTROL),
        at_most(
            "NGD (NumPy) and NGF (library), degrees", np.abs(ngd - ngf).max(), 0.05, Role.CONTROL
        ),
        at_most(
            "NGF, t = 50: off the linear program, degrees",
            np.abs(ngf - angle["LP"]).max(),
            1.0,
            Role.CONTROL,
        ),
        at_most(
            "EGF, L = 2: between one and three layers, off the axis less that of L = 1",
            abs(egf[2]) - abs(egf[1]),
            0.0,
            Role.CONTROL,
        ),
        equals(
            "w1 = w2, NGF: stopped where J loses a row",
            stopped,
            True,
            Role.CONTROL,
        ),
        at_least(
            "w1 = w2, NGD: off the linear program, degrees",
            abs(jumped - angle["LP"]),
            2.0,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """The points and the separators on their way: EGD with one and three layers, NGD with one and
    three.
    """
    fig, axes = open_figure(columns=4, size=(3.0, 3.4))
    panels = (
        ("EGF", 1, "l2", r"$\ell_2$ margin"),
        ("EGF", 3, "l2/3", r"$\ell_{2/3}$ margin"),
        ("NGD", 1, "LP", "linear program"),
        ("NGD", 3, "LP", "linear program"),
    )
    for letter, ax, (kind, depth, goal, name) in zip("ABCD", axes, panels, strict=True):
        path = np.asarray(data[f"{kind}|{depth}"])
        picks = np.unique(np.geomspace(1, len(path), 12).astype(int) - 1)
        for k, i in enumerate(picks):
            _separator(ax, path[i], color=COLOURS[0], lw=0.8, alpha=0.15 + 0.4 * k / len(picks))
        _separator(ax, path[-1], color=COLOURS[0], lw=2.2, label="found")
        _separator(ax, np.asarray(data[goal]), color="k", lw=1, ls="--", label=name)
        for label, marker, colour in ((1.0, "o", COLOURS[1]), (-1.0, "s", COLOURS[2])):
            ax.plot(*X[Y == label].T, marker, color=colour, ms=5, mec="w")
        ends = float(degrees(path[-1]))
        ax.set(xlim=(-4.2, 4.2), ylim=(-4.2, 4.2), aspect="equal", xticks=[], yticks=[])
        ax.set_title(
            f"{letter}: {'EGD' if kind == 'EGF' else 'NGD'}, L = {depth}, {ends:.1f}°", fontsize=10
        )
        ax.legend(frameon=True, framealpha=0.9, fontsize=7, loc="lower right")
    return fig


def _separator(ax, beta: np.ndarray, **style) -> None:
    along = np.array([-beta[1], beta[0]]) / np.linalg.norm(beta) * 8
    ax.plot([-along[0], along[0]], [-along[1], along[1]], **style)


CLAIM = Claim(
    name="depth-figure-2",
    source="depth",
    place="Figure 2 and Experiment 1, section 3.1",
    quotation=(
        "EGD reaches different optima depending on parametrization ... NGD converges to the same "
        "optimum irrespective of the parametrization"
    ),
    statement=(
        "On separable points of a plane EGD finds the largest l2 margin with one layer and the "
        "sparse separator with several; NGD finds the same separator at any depth, different "
        "from both."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
    key_number="C, D: NGD, L = 1, 2, 3, t = 50: range of the three, degrees",
)
