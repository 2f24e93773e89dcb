r"""Where the natural flow goes when there are more samples than columns, which the source leaves
open (its Theorem 3 needs \(N < D\)).

Let \(u_i = \tilde x_i\cdot\beta_t\). By \(\nabla L(\beta_t) = e^{-t}\nabla L(\beta_0)\)
(`newton_flow`), \(\tilde X^\top a(t) = \tilde X^\top q\) with \(a_i(t) = e^{t}\varphi(-u_i(t)) \ge
0\) and \(q_i = \varphi(-u_i(0)) > 0\). If \(\beta_t/t \to v\), then \(a_i \to 0\) where \(\tilde
x_i\cdot v > 1\) and \(a_i \to \infty\), impossible, where \(\tilde x_i\cdot v < 1\). So \(v\) is
feasible and \(a_\infty\) a multiplier for

\[ v = \arg\min_v\ \textstyle\sum_i q_i\,\tilde x_i\cdot v \quad\text{subject to}\quad \tilde
x_i\cdot v \ge 1 , \]

a linear program. It is invariant under invertible maps of the data, as Theorem 2 demands; from
\(\beta_0 = 0\) all \(q_i\) are equal; for \(N \le D\) all constraints are active and it is the
interpolant of the labels. It need not be the largest \(\ell_2\) margin, though on small random sets
it often is near. The flow gets there like \(1/t\), once \(t\) is large against the inverse of the
least slack \(\tilde x_i\cdot v - 1\) of the other samples: \(\beta_t = tv + d + o(1)\) with
\(d = -\tilde X_A^{-1}\log a\) for the active rows and their multipliers. The other samples
leave \(\beta_t/t - v\) a term \(e^{-t\,\text{slack}}\), and the order is measured where it is
\(e^{-20}\).

If the program has several optima, the flow still has a limit, the lexicographic one: among the
optima the least margin of the samples that are not active in all of them is largest, and so on
(`pullback.linear`, docs/results.md). `TIED` are four samples whose optima are a segment, from \((1,
-1)\) to \((1, 1)\).
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import Logistic, l2_margin

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import cosine, distance, generator
from ..depth import _toy
from ..depth._logistic import TALL, natural_flow, phi, separable
from ..depth._margins import limit, natural_margin

TIMES = np.array([5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0])
SAMPLES, COLUMNS = TALL
TIED = np.array([[1.0, 0.0], [3.0, 2.0], [2.0, -1.0], [4.0, -1.0]])
LIMIT = np.array([1.0, -1 / 3])
"""By hand: the second and the third sample tie at margin 7/3 there."""
ACTIVE = 1e-9
"""Slacks that are rounding."""


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Random problems, from zero and from elsewhere."""
    rng = generator(key)
    count = 6 * budget.seeds if budget.full else 4
    errors = []
    cosines = []
    orders = []
    constants = []
    invariance = []
    others = []
    for i in range(count):
        x, y = separable(rng, SAMPLES, COLUMNS)
        start = (i % 2) * rng.standard_normal(COLUMNS)
        v = limit(x, y, start)
        others.append(distance(natural_margin(x, y, phi(-y * (x @ start))), v))
        beta = natural_flow(x, y, start, TIMES)
        errors.append([distance(b / t, v) for b, t in zip(beta, TIMES, strict=True)])
        cosines.append(cosine(beta[-1], v))
        orders.append(_order(x, y, start, v))
        constants.append(_constant(x, y, start, v))
        a = rng.standard_normal((COLUMNS, COLUMNS)) + np.eye(COLUMNS)
        moved = limit(x @ a.T, y, np.linalg.solve(a.T, start))
        invariance.append(distance(a.T @ moved, v))
    errors = np.array(errors)
    wide, labels = separable(rng, COLUMNS, COLUMNS)
    there = Logistic().flow(jnp.zeros(2), jnp.asarray(TIED), jnp.ones(4), float(TIMES[-1]))
    tied = np.asarray(there) / TIMES[-1]
    rows = (
        at_most(
            "1 - cosine of β_t, t = 1280, and the linear program: largest", 1 - min(cosines), 1e-4
        ),
        at_most("|β_t/t - v|/|v| at t = 1280: largest", errors[:, -1].max(), 0.01),
        at_most(
            "order in 1/t from t to 2t, t = max(640, 20 / least slack), is 1: largest difference",
            np.abs(np.array(orders) - 1).max(),
            1e-6,
        ),
        at_most(
            "the constant: β_t - tv at that t against -X_A⁻¹ log a, a the multipliers: largest",
            max(constants),
            1e-6,
        ),
        at_most("the program is invariant, Aᵀv(XAᵀ) = v(X)", max(invariance), 1e-8),
        at_most(
            "N = D: it is X⁻¹y",
            distance(limit(wide, labels), np.linalg.solve(wide, labels)),
            1e-8,
        ),
        at_most("the program written out has this optimum", max(others), 1e-8),
        at_most("several optima: |β_t/t - v|/|v| at t = 1280", distance(tied, LIMIT), 0.01),
        at_most(
            "several optima: v is the lexicographic one",
            distance(limit(TIED, np.ones(4)), LIMIT),
            1e-12,
        ),
        at_least(
            "control, several optima: |β_t/t - (1, -1)| at t = 1280, another optimum",
            float(np.linalg.norm(tied - [1.0, -1.0])),
            0.5,
            Role.CONTROL,
        ),
        at_most(
            "control, the points of Figure 2: cosine of the program and the largest l2 margin",
            _other(),
            0.95,
            Role.CONTROL,
        ),
    )
    return Measured(rows, {"times": TIMES, "errors": errors})


def _order(x: np.ndarray, y: np.ndarray, start: np.ndarray, v: np.ndarray) -> float:
    """The order of the error in 1/t, once the samples that are not active count no more."""
    late = _late(x, y, v)
    error = lambda t: distance(_flow(x, y, start, t) / t, v)
    return float(np.log2(error(late) / error(2 * late)))


def _constant(x: np.ndarray, y: np.ndarray, start: np.ndarray, v: np.ndarray) -> float:
    """How far β_t - tv is from its limit d = -X_A⁻¹ log a, relative to it: a solves X_Aᵀ a = c."""
    signed = y[:, None] * x
    active = signed[np.abs(signed @ v - 1) <= ACTIVE]
    if len(active) != v.size:
        return np.inf  # not a vertex
    multipliers = np.linalg.solve(active.T, signed.T @ phi(-signed @ start))
    if min(multipliers) <= 0:
        return np.inf  # not an optimum
    late = _late(x, y, v)
    d = -np.linalg.solve(active, np.log(multipliers))
    return distance(_flow(x, y, start, late) - late * v, d)


def _late(x: np.ndarray, y: np.ndarray, v: np.ndarray) -> float:
    """A time at which samples that are not active weigh less than e⁻²⁰ of the others."""
    slack = y * (x @ v) - 1
    return max(640.0, 20 / np.min(slack[slack > ACTIVE]))


def _flow(x: np.ndarray, y: np.ndarray, start: np.ndarray, t: float) -> np.ndarray:
    """The natural flow in closed form: the loss underflows at such times."""
    return np.asarray(Logistic().flow(jnp.asarray(start), jnp.asarray(x), jnp.asarray(y), t))


def _other() -> float:
    return cosine(limit(_toy.X, _toy.Y), np.asarray(l2_margin(_toy.X, _toy.Y)))


def draw(data: Mapping[str, Any]) -> Any:
    """The distance from the limit over time."""
    fig, axes = open_figure()
    t = np.asarray(data["times"])
    axes.plot(t, np.asarray(data["errors"]).T, color=COLOURS[0], marker="o", ms=3, lw=1)
    axes.plot([], [], color=COLOURS[0], marker="o", ms=3, lw=1, label="random problems")
    axes.plot(t, 2 / t, color="k", ls="--", lw=1, label="slope -1")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="t",
        ylabel=r"$\|\beta_t/t - v\|\,/\,\|v\|$",
        title="natural flow against the linear program",
    )
    axes.legend(frameon=False)
    return fig


CLAIM = Claim(
    name="limit-direction",
    source="ours",
    place="after section 3 of Kerekes et al., the case N > D",
    statement=(
        "On separable data with N > D the natural flow tends to the solution of a linear "
        "program, min Σ q_i x̃_i·v with margins of at least 1, like 1/t once t is large against "
        "the inverse of the least slack; to the lexicographic one of its solutions, if it has "
        "several."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
