r"""When least squares and the largest margin are one classifier. \(X^+y\) has all margins equal to
1, so it is the vector of largest margin if and only if its multipliers are non-negative:

\[ y_i\,[(XX^\top)^{-1}y]_i \ge 0 \quad\text{for all } i . \]

For Gaussian \(X\) and many columns this comes about: all samples become support vectors. The source
cites a threshold \(D > N\log N\) and concludes that for the natural flow, which interpolates, all
samples are support vectors as soon as \(D > N\).

Both hold, the first as an order. The constant is not one: at \(D = 1.2\,N\log N\) hardly any sample
set qualifies. \(XX^\top/D\) is \(I\) plus noise of standard deviation \(D^{-1/2}\), so
\(y_i[(XX^\top)^{-1}y]_i \approx (1 - g_i\sqrt{N/D})/D\), and the largest of \(N\) Gaussians is
about \(\sqrt{2\log N}\): the change is around \(D = 2N\log N\), and slow.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pullback.linear import Logistic, l2_margin

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator

RATIOS = np.array([0.5, 0.8, 1.2, 1.6, 2.0, 2.5, 3.0, 4.0])


def coincide(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether least squares is the largest margin."""
    return bool(np.all(y * np.linalg.solve(x @ x.T, y) >= 0))


def spread(x: np.ndarray, y: np.ndarray) -> float:
    """How far the margins of the natural flow from zero at t = 50 are from their mean, relative."""
    beta = Logistic().flow(jnp.zeros(x.shape[1]), jnp.asarray(x), jnp.asarray(y), 50.0)
    margins = y * (x @ np.asarray(beta))
    return float(np.abs(margins / margins.mean() - 1).max())


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The fraction of random sample sets for which they coincide, over D/(N log N)."""
    rng = generator(key)
    sizes, draws = ((40, 100, 200), 40 * budget.seeds) if budget.full else ((40,), 60)
    fractions = np.zeros((len(sizes), len(RATIOS)))
    for i, n in enumerate(sizes):
        for k, ratio in enumerate(RATIOS):
            d = max(n + 1, int(ratio * n * np.log(n)))
            fractions[i, k] = np.mean(
                [
                    coincide(rng.standard_normal((n, d)), rng.choice([-1.0, 1.0], n))
                    for _ in range(draws)
                ]
            )
    agree = []
    for _ in range(10):
        x = rng.standard_normal((8, 30))
        y = rng.choice([-1.0, 1.0], 8)
        margin = np.asarray(l2_margin(x, y))
        ols = np.linalg.pinv(x) @ y
        agree.append((distance(margin, ols) < 1e-8) == coincide(x, y))
    x = rng.standard_normal((30, 31))
    y = rng.choice([-1.0, 1.0], 30)
    rows = (
        at_least(
            "fraction of sample sets where they coincide, D = 4 N log N",
            fractions[:, -1].min(),
            0.8,
        ),
        at_most("that fraction at D = 0.5 N log N", fractions[:, 0].max(), 0.1),
        at_most(
            "N = 30, D = 31: all samples are support vectors of the natural flow, t = 50: its "
            "margins are off their mean by, relative",
            spread(x, y),
            1e-8,
        ),
        at_most(
            "the constant is not 1: that fraction at D = 1.2 N log N",
            fractions[:, 2].max(),
            0.5,
            Role.CONTROL,
        ),
        at_least(
            "control: the criterion against the margin itself, fraction of agreement",
            np.mean(agree),
            1.0,
            Role.CONTROL,
        ),
    )
    return Measured(
        rows, {"sizes": np.array(sizes), "ratios": RATIOS, "fractions": fractions, "draws": draws}
    )


def draw(data: Mapping[str, Any]) -> Any:
    """The fraction over D/(N log N)."""
    fig, axes = open_figure()
    for i, (n, fraction) in enumerate(
        zip(data["sizes"], np.asarray(data["fractions"]), strict=True)
    ):
        spread = np.sqrt(fraction * (1 - fraction) / data["draws"])
        axes.errorbar(
            data["ratios"],
            fraction,
            yerr=spread,
            color=COLOURS[i],
            marker="o",
            ms=4,
            capsize=2,
            label=f"N = {n}",
        )
    for x in (1.0, 2.0):
        axes.axvline(x, color="0.6", ls=":", lw=1)
    axes.set(
        xlabel="D/(N log N)",
        ylabel="fraction of sample sets",
        title="least squares is the largest margin",
    )
    axes.legend(frameon=False)
    return fig


CLAIM = Claim(
    name="depth-proliferation",
    source="depth",
    place="section 3, after Theorem 3",
    quotation=(
        "under some conditions this difference disappears in the highly overparametrised regime - "
        "when D > N log N"
    ),
    statement=(
        "The largest margin and least squares coincide, under some conditions, when D is large "
        "against N log N; in the natural flow all samples are support vectors when D > N."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    remark=(
        "N log N is an order, not a threshold with constant 1: for Gaussian inputs the change is "
        "around D = 2 N log N, and gradual (Ardeshir, Sanford and Hsu, NeurIPS 2021)."
    ),
    draw=draw,
    key_number="fraction of sample sets where they coincide, D = 4 N log N",
)
