r"""Fewer samples than columns: the logits of the natural flow grow like \(t\,y\).

\[ N < D:\qquad s_i(t) = y_i\log\bigl(e^{t + c_i} - 1\bigr), \quad c_i = \log(1 + e^{y_i s_i(0)}),
\qquad s(t) = t\,y + y\odot c + O(e^{-t}). \]

All margins tend to the same value in proportion: every sample is a support vector, where the
Euclidean flow, which tends to the largest margin, keeps a few. The flow of the library is compared
with the closed form, far into saturation (logits of 300, where \(\varphi(-u) < 10^{-130}\)), and
started at the wrong side of some samples.

The theorem holds, with the measure of the loss and of the Fisher matrix the same; see
`normalisation`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import l2_margin

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator
from ._logistic import WIDE, interpolating_logits, natural_flow, separable

END = 300.0
SAMPLES, COLUMNS = WIDE


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The flow to t = 300."""
    rng = generator(key)
    times = np.concatenate([[0.0], np.geomspace(0.1, END, 30)])
    exact = []
    slope = []
    ratio = []
    curves = None
    for _ in range(budget.seeds):
        x, y = separable(rng, SAMPLES, COLUMNS)
        start = 0.4 * rng.standard_normal(COLUMNS)
        s = natural_flow(x, y, start, times) @ x.T
        closed = interpolating_logits(x @ start, y, times)
        exact.append(distance(s, closed))
        slope.append(np.abs((s[-1] - s[-2]) / (times[-1] - times[-2]) - y).max())
        ratio.append(np.abs(s[-1] / END - y).max())
        curves = s * y
    rows = (
        at_most("logits against the closed form, t ≤ 300", max(exact), 1e-7),
        at_most("slope of the logits at the end against y", max(slope), 1e-7),
        at_most("|s/t - y| at t = 300", max(ratio), 0.05),
        at_least(
            "control, N = 30, D = 40: samples that are no support vectors of the largest margin",
            _idle(rng),
            1,
            Role.CONTROL,
        ),
    )
    return Measured(rows, {"times": times, "margins": curves})


def _idle(rng: np.random.Generator) -> int:
    x, y = separable(rng, 30, 40)
    return int(np.sum(y * (x @ np.asarray(l2_margin(x, y))) > 1 + 1e-6))


def draw(data: Mapping[str, Any]) -> Any:
    """The margins of all samples over time, on the line t."""
    fig, axes = open_figure(columns=2, size=(4.2, 3.4))
    t = np.asarray(data["times"])
    margins = np.asarray(data["margins"])
    near = t <= 10
    axes[0].plot(t[near], margins[near], color=COLOURS[0], lw=1)
    axes[0].plot(t[near], t[near], color="k", ls="--", lw=1, label="t")
    axes[0].set(xlabel="t", ylabel=r"$y_i s_i(t)$", title="margins of all samples")
    axes[0].legend(frameon=False)
    axes[1].plot(t[1:], np.abs(margins[1:] / t[1:, None] - 1), color=COLOURS[0], lw=1)
    axes[1].plot(t[1:], 1 / t[1:], color="k", ls="--", lw=1, label="1/t")
    axes[1].set(
        xscale="log", yscale="log", xlabel="t", ylabel=r"$|y_i s_i/t - 1|$", title="they tend to t"
    )
    axes[1].legend(frameon=False)
    return fig


CLAIM = Claim(
    name="depth-theorem-3",
    source="depth",
    place="Theorem 3 and its remark",
    quotation="follow an asymptotically linear trajectory with direction vector y",
    statement=(
        "With N < D and X of full rank, the logits of the natural flow grow asymptotically "
        "linearly, in the direction of the labels."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
