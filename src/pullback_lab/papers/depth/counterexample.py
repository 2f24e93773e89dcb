r"""The largest \(\ell_2\) margin is not invariant under maps of the data. The example: one sample
\(x = (2, -3)\), \(y = 1\), and \(A = \begin{pmatrix}1 & 2\\ -1 & 0\end{pmatrix}\), so that \(Ax =
(-4, -2)\).

**Corrected.** The vector of least norm with \(x\cdot\beta \ge 1\) is \(x/\lVert x\rVert^2\):

\[ \beta^*(X, y) = (2, -3)/13, \qquad \beta^*(XA^\top, y) = (-4, -2)/20 = (-\tfrac15, -\tfrac1{10}),
\qquad A^\top\beta^*(XA^\top, y) = (-0.1, -0.4). \]

The source's \((0, -\tfrac13)\) and \((-\tfrac14, 0)\) are feasible but longer; they are the
solutions of least \(\ell_1\) norm. The conclusion survives, and with it that no norm which knows
nothing of the data can describe the natural flow.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.optimize import minimize

from pullback.linear import l1_margin, l2_margin

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance

A = np.array([[1.0, 2.0], [-1.0, 0.0]])
X = np.array([[2.0, -3.0]])
Y = np.array([1.0])
PRINTED = np.array([0.0, -1 / 3]), np.array([-1 / 4, 0.0])
RIGHT = np.array([2.0, -3.0]) / 13, np.array([-1 / 5, -1 / 10])


def least(x: np.ndarray) -> np.ndarray:
    """The vector of least Euclidean norm with a margin of 1, by a general solver."""
    constraint = {"type": "ineq", "fun": lambda b: x @ b - 1}
    return minimize(
        lambda b: b @ b / 2,
        x,
        jac=lambda b: b,
        constraints=constraint,
        method="SLSQP",
        options={"ftol": 1e-15},
    ).x


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Both data sets, by three solvers."""
    sets = X, X @ A.T
    dual = [np.asarray(l2_margin(x, Y)) for x in sets]
    general = [least(x[0]) for x in sets]
    one = [np.asarray(l1_margin(x, Y)) for x in sets]
    gap = lambda some, others: max(distance(a, b) for a, b in zip(some, others, strict=True))
    rows = (
        at_most("the printed argmins against the largest l2 margin", gap(PRINTED, dual), 1e-6),
        at_most(
            "printed: length over the least length, less 1",
            max(np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(PRINTED, dual, strict=True))
            - 1,
            1e-6,
        ),
        at_most(
            "(2, -3)/13 and (-1/5, -1/10) against non-negative least squares",
            gap(RIGHT, dual),
            1e-12,
            Role.CORRECTED,
        ),
        at_most("and against SLSQP", gap(RIGHT, general), 1e-6, Role.CORRECTED),
        at_most(
            "Aᵀβ* of the second is (-0.1, -0.4)",
            distance(A.T @ dual[1], [-0.1, -0.4]),
            1e-12,
            Role.CORRECTED,
        ),
        at_least(
            "which differs from the first: the margin is not invariant",
            distance(A.T @ dual[1], dual[0]),
            0.5,
            Role.CORRECTED,
        ),
        at_most(
            "the printed argmins are those of least l1 norm", gap(PRINTED, one), 1e-12, Role.CONTROL
        ),
    )
    data = {
        "x": np.stack([s[0] for s in sets]),
        "printed": np.stack(PRINTED),
        "right": np.stack(dual),
    }
    return Measured(rows, data)


def draw(data: Mapping[str, Any]) -> Any:
    """Both planes of parameters: the line of margin 1, the balls that touch it, the two argmins."""
    fig, axes = open_figure(columns=2, size=(3.8, 3.8))
    angle = np.linspace(0, 2 * np.pi, 200)
    for ax, x, printed, right, name in zip(
        axes, data["x"], data["printed"], data["right"], ("$X$", r"$XA^\top$"), strict=True
    ):
        radius = np.linalg.norm(right)
        size = 0.5
        along = np.array([-x[1], x[0]]) / np.linalg.norm(x)
        line = right[:, None] + along[:, None] * np.array([-2.0, 2.0])
        ax.plot(*line, color="0.3", lw=1.2, label=r"$x\cdot\beta = 1$")
        ax.plot(
            radius * np.cos(angle),
            radius * np.sin(angle),
            color=COLOURS[0],
            lw=1,
            ls="--",
            label=r"$\ell_2$ ball",
        )
        c = np.abs(printed).sum()
        ax.plot(
            [c, 0, -c, 0, c],
            [0, c, 0, -c, 0],
            color=COLOURS[1],
            lw=1,
            ls=":",
            label=r"$\ell_1$ ball",
        )
        ax.plot(*right, "o", color=COLOURS[0], label="right argmin")
        ax.plot(*printed, "s", color=COLOURS[1], label="printed argmin")
        ax.set(
            xlim=(-size, size),
            ylim=(-size, size),
            xlabel=r"$\beta_1$",
            ylabel=r"$\beta_2$",
            title=f"data {name}",
            aspect="equal",
        )
    axes[1].legend(frameon=False, fontsize=8, loc="upper right")
    return fig


CLAIM = Claim(
    name="depth-counterexample",
    source="depth",
    place="appendix D",
    quotation="the l2 large margin classifier does not have the invariance property",
    statement=(
        "For x = (2, -3) the largest l2 margin is at (0, -1/3), for Ax = (-4, -2) at (-1/4, 0); "
        "so it is not invariant."
    ),
    verdict=Verdict.CORRECTED,
    stands=True,
    run=run,
    correction=(
        "The argmins are (2, -3)/13 and (-1/5, -1/10); those printed are of least l1 norm. The "
        "conclusion survives."
    ),
    draw=draw,
    key_number="the printed argmins against the largest l2 margin",
)
