r"""Does another metric on the outputs change what is found? A question of the source, put to three
metrics on the logits \(s\) of a logistic model: Fisher, \(\varphi(s)\varphi(-s)\); Euclidean, 1;
and Wasserstein (Otto) on the two labels, in the logit \([\varphi(s)\varphi(-s)]^2/\theta\) with the
logarithmic mean \(\theta = \tanh(s/2)/s\) of \(\varphi(s)\) and \(\varphi(-s)\).

- \(N \le D\), from zero: no. \(J\) is onto, every margin obeys the same scalar equation, and all
  three go along \(X^+y\), with other speeds: the Fisher flow like \(t\), the Euclidean like \(\log
  t\), the Wasserstein flow to infinity in finite time.
- \(N > D\): yes. The Fisher flow tends to the linear program of `limit_direction`. The Euclidean
  one is gradient flow on whitened data, so it tends to \(\min \lVert Xv\rVert\) subject to margins
  of at least 1. The Wasserstein flow turns elsewhere again; where it ends is not proved here.

All are invariant under maps of the data. Compared at equal training loss, on the points of Figure 2
and one more.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.integrate import solve_ivp

import pullback as pb
from pullback.linear import l2_margin

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import cosine, distance, generator
from ._logistic import WIDE, batch, phi, separable
from ._margins import limit
from ._toy import SIGNED, degrees

# With one more point, far away, or the linear program and the whitened margin would have the same
# constraints active.
POINTS = np.vstack([SIGNED, [6.0, -2.0]])
LABELS = np.array([1.0, -1.0] * 4 + [1.0])
LOSSES = 10.0 ** -np.arange(0.5, 8.1, 0.5)


def probabilities(beta: Float[Array, " d"], x: Float[Array, "N d"]) -> Float[Array, "N 2"]:
    """The probabilities of both labels, each accurate however small."""
    s = x @ beta
    return jnp.stack([jax.nn.sigmoid(-s), jax.nn.sigmoid(s)], axis=-1)


def surprise(p: Float[Array, "N 2"], targets: Float[Array, " N"]) -> Float[Array, " N"]:
    """The negative logarithm of the probability of the label."""
    return -jnp.log(jnp.where(targets > 0.5, p[:, 1], p[:, 0]))


WASSERSTEIN = pb.Composite(
    probabilities, loss=surprise, metric=pb.metric.WassersteinGraph(edges=((0, 1),))
)


def log_weights(u: np.ndarray) -> dict[str, np.ndarray]:
    """The logarithms of the metrics at the margins."""
    fisher = -np.logaddexp(0.0, u) - np.logaddexp(0.0, -u)
    size = np.where(np.abs(u) < 1e-6, 1.0, u)
    mean = np.where(np.abs(u) < 1e-6, 0.5, np.tanh(size / 2) / size)
    return {
        "Fisher": fisher,
        "Euclidean": np.zeros_like(u),
        "Wasserstein": 2 * fisher - np.log(mean),
    }


def direction(signed: np.ndarray, beta: np.ndarray, name: str) -> np.ndarray:
    """Minus the natural gradient, by weighted least squares."""
    u = signed @ beta
    log_m = log_weights(u)[name]
    # Rows √M x̃ with targets φ(-u)/√M, scaled by the largest.
    top = log_m.max()
    root = np.exp((log_m - top) / 2)
    target = np.exp(-np.logaddexp(0.0, u) - log_m / 2 - top / 2)
    return np.linalg.lstsq(root[:, None] * signed, target, rcond=1e-14)[0]


def descend(signed: np.ndarray, name: str, losses: np.ndarray) -> np.ndarray:
    """The coefficients where the mean loss reaches each of the levels. The clock is -log L, in
    which every flow has a bounded speed.
    """

    def field(_, beta):
        u = signed @ beta
        d = direction(signed, beta, name)
        slope = signed.T @ phi(-u) / len(signed)
        return d * np.mean(np.logaddexp(0.0, -u)) / (slope @ d)

    clock = -np.log(losses) + np.log(np.log(2))
    sol = solve_ivp(
        field,
        (0.0, clock[-1]),
        np.zeros(signed.shape[1]),
        t_eval=clock,
        rtol=1e-8,
        atol=1e-10,
        method="LSODA",
    )
    return sol.y.T


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Wide data, then the points of the plane."""
    rng = generator(key)
    x, y = separable(rng, *WIDE)
    names = ("Fisher", "Euclidean", "Wasserstein")
    wide = {name: descend(y[:, None] * x, name, LOSSES[:4])[-1] for name in names}
    ols = np.linalg.pinv(x) @ y
    x = LABELS[:, None] * POINTS
    y = LABELS
    plane = {name: descend(POINTS, name, LOSSES) for name in names}
    ends = {name: degrees(path[-1]) for name, path in plane.items()}
    beta = np.array([0.8, 0.3])
    ng = pb.natural_gradient(WASSERSTEIN, jnp.asarray(beta), batch(x, y))
    _, r = np.linalg.qr(x)
    whitened = np.linalg.solve(r, np.asarray(l2_margin(x @ np.linalg.inv(r), y)))
    program = limit(x, y)
    gaps = [
        float(abs(ends[a] - ends[b]))
        for a, b in (
            ("Fisher", "Euclidean"),
            ("Fisher", "Wasserstein"),
            ("Euclidean", "Wasserstein"),
        )
    ]
    far = {
        name: descend(POINTS, name, np.array([1e-20, 1e-40, 1e-80]))[-1]
        for name in ("Fisher", "Euclidean")
    }
    error = distance(-np.asarray(ng.vector), direction(POINTS, beta, "Wasserstein"))
    rows = _rows(wide, ols, gaps, error, far, program, whitened)
    data = {f"angle|{name}": degrees(path) for name, path in plane.items()}
    return Measured(
        rows,
        {
            **data,
            "losses": LOSSES,
            "program": float(degrees(program)),
            "whitened": float(degrees(whitened)),
        },
    )


def _rows(
    wide: dict[str, np.ndarray],
    ols: np.ndarray,
    gaps: list[float],
    error: float,
    far: dict[str, np.ndarray],
    program: np.ndarray,
    whitened: np.ndarray,
) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    return (
        at_least(
            "N > D, equal loss 1e-8: directions of any two metrics differ by, degrees",
            min(gaps),
            0.5,
        ),
        at_most(
            "N < D from zero: all three go along X⁺y, 1 - cosine",
            max(1 - cosine(b, ols) for b in wide.values()),
            1e-8,
            Role.CONTROL,
        ),
        at_most(
            "the library's Wasserstein natural gradient against NumPy",
            error,
            1e-10,
            Role.CONTROL,
        ),
        at_most(
            "Fisher: off the linear program at loss 1e-80, degrees",
            abs(degrees(far["Fisher"]) - degrees(program)),
            1.0,
            Role.CONTROL,
        ),
        at_most(
            "Euclidean: off the whitened margin at loss 1e-80, degrees",
            abs(degrees(far["Euclidean"]) - degrees(whitened)),
            1.0,
            Role.CONTROL,
        ),
        at_least(
            "the whitened margin and the program differ by, degrees",
            abs(degrees(whitened) - degrees(program)),
            0.5,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """The direction of the separator against the training loss, for three metrics."""
    fig, axes = open_figure()
    for i, name in enumerate(("Fisher", "Euclidean", "Wasserstein")):
        axes.plot(
            data["losses"],
            data[f"angle|{name}"],
            color=COLOURS[i],
            marker="os^"[i],
            ms=4,
            lw=1.3,
            label=name,
        )
    axes.axhline(
        data["program"], color=COLOURS[0], ls="--", lw=1, label="limit, Fisher: linear program"
    )
    axes.axhline(
        data["whitened"], color=COLOURS[1], ls="--", lw=1, label="limit, Euclidean: whitened margin"
    )
    axes.set(
        xscale="log",
        xlabel="training loss",
        ylabel="direction of β, degrees",
        title="natural flow in three metrics on the logits",
    )
    axes.invert_xaxis()
    axes.legend(frameon=False, fontsize=8)
    return fig


CLAIM = Claim(
    name="depth-wasserstein",
    source="depth",
    place="section 5.2, last question",
    quotation=(
        "it is natural to ask if the choice of metric may give rise to different inductive biases "
        "in NGD"
    ),
    statement=(
        "The choice of the metric, Fisher-Rao or Wasserstein, may give rise to different "
        "inductive biases of natural gradient."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
