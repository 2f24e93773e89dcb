r"""Stochastic natural gradients whose Fisher matrix is that of the batch: the limit of small steps
keeps the batches.

Logistic loss, independent rows \(\tilde x_i = y_ix_i\), \(u = \tilde X\beta\), batches B of b of
the N samples. The natural gradient of a batch is \(-\tilde X_B^+(1 + e^{-u_B})\), and in small
steps descent follows the mean,

\[ \dot\beta = \mathbb E_B\,\tilde X_B^+(1 + e^{-u_B}) . \]

Once the margins are large only \(v = \mathbb E_B\,\tilde X_B^+1 = \mathbb E_B\,X_B^+y_B\) is left:
the mean of the interpolants of the batches. If v separates the data, \(\beta_t/t \to v\). With
batches of one the flow is the gradient flow of a convex function, and \(\beta_t/t\) tends to the
point of least norm of \(\{\frac1N\sum_i(1 + a_i)\,\tilde x_i/|x_i|^2 : a \ge 0\}\), whatever v is.
Only b = N gives the direction \(X^+y\) of least squares. For the squared error the batch does not
matter: steps of length 1 are the block Kaczmarz method, which ends at \(X^+y\) for every b. Proofs
and prior art are in the docs, "Results".

A mean of interpolants of half the samples has no peak at N = D, where \(X^+y\) is at chance.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from scipy.optimize import nnls

import pullback as pb
from pullback.linear import l2_interpolant

from .._claim import Budget, Claim, Measured, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import cosine, distance, generator
from ..depth._batches import (
    BATCH,
    COLUMNS,
    SAMPLES,
    STEPS,
    batch_flow,
    descend,
    deviations,
    drawn,
    mean_inverse,
    natural_end,
    order,
)
from ..depth._figure_flows import accuracy
from ..depth._logistic import logits, separable
from ..depth.low_rank import surely

TIMES = np.array([500.0, 1000.0])
RATIOS = (0.5, 0.75, 1.0, 1.25, 1.5)
PARTS = (1.0, 0.5, 0.25)
"""Sizes of the batch as parts of the samples."""
SQUARES = pb.Composite(logits, metric=pb.metric.Gaussian())


def least_norm(signed: np.ndarray) -> np.ndarray:
    """The point of least norm of the sums of x̃/|x|² with weights of at least 1/N."""
    rows = signed / np.sum(signed**2, axis=1)[:, None] / len(signed)
    # Least squares over a ≥ 0.
    return rows.sum(axis=0) + rows.T @ nnls(rows.T, -rows.sum(axis=0))[0]


@jax.jit
def kaczmarz(x: Array, y: Array, key: PRNGKeyArray) -> Array:
    """Steps of length 1 for the squared error, with the Fisher matrix of the batch."""

    def step(beta, i):
        which = drawn(key, i, x.shape[0], BATCH)
        found = pb.natural_gradient(
            SQUARES, beta, (x[which], y[which]), solver=pb.solver.SVD(), throw=False
        )
        return beta - found.vector, None

    return jax.lax.scan(step, jnp.zeros(x.shape[1]), jnp.arange(3000))[0]


def small(key: PRNGKeyArray, count: int) -> dict[str, np.ndarray]:
    """Few samples: all batches can be listed."""
    near, far = np.zeros((2, count, len(STEPS)))
    late, single, margins, turned, least = [], [], [], [], []
    for seed in range(count):
        place = jax.random.fold_in(key, seed)
        x, y = separable(generator(place), SAMPLES, COLUMNS)
        signed = y[:, None] * x
        own = batch_flow(signed, BATCH, np.array([1.0]))[-1]
        near[seed] = deviations("Fisher of the batch", x, y, place, own)
        far[seed] = deviations("Fisher of the batch", x, y, place, natural_end(x, y))
        least.append(
            distance(kaczmarz(jnp.asarray(x), jnp.asarray(y), place), np.linalg.pinv(x) @ y)
        )
        for size in (2, 4):
            v = mean_inverse(signed, size).sum(axis=1)
            if (signed @ v).min() > 0.1:
                ends = batch_flow(signed, size, TIMES) / TIMES[:, None]
                late.append([distance(end, v) for end in ends])
                turned.append(1 - cosine(v, np.linalg.pinv(x) @ y))
        v = mean_inverse(signed, 1).sum(axis=1)
        margins.append((signed @ v).min())
        single.append(distance(batch_flow(signed, 1, TIMES)[-1] / TIMES[-1], least_norm(signed)))
    found = {"near": near, "far": far, "late": np.array(late), "single": np.array(single)}
    lists = {"margins": margins, "turned": turned, "least": least}
    return found | {name: np.array(values) for name, values in lists.items()}


def task(rng: np.random.Generator, samples: int, columns: int) -> tuple[np.ndarray, ...]:
    """Normal inputs, and the labels of a teacher with ten coefficients."""
    truth = (np.arange(columns) < 10) * 1.0
    x = rng.standard_normal((samples, columns))
    return x, np.sign(x @ truth), truth


@jax.jit
def interpolants(x: Array, y: Array, sets: Array) -> Array:
    """The mean of the interpolants of some batches."""
    return jnp.mean(jax.vmap(lambda some: l2_interpolant(x[some], y[some]))(sets), axis=0)


def mean_interpolant(rng: np.random.Generator, x: np.ndarray, y: np.ndarray, size: int):
    """The mean over 60 random batches, or over one of all samples."""
    number = 1 if size == len(y) else 60
    sets = np.stack([rng.permutation(len(y))[:size] for _ in range(number)])
    return np.asarray(interpolants(*map(jnp.asarray, (x, y, sets))))


def peak(key: PRNGKeyArray, columns: int, count: int) -> np.ndarray:
    """Accuracies of means of interpolants by part, N/D and seed."""
    found = np.zeros((len(PARTS), len(RATIOS), count))
    for r, ratio in enumerate(RATIOS):
        for seed in range(count):
            rng = generator(jax.random.fold_in(key, 100 * r + seed))
            x, y, truth = task(rng, round(ratio * columns), columns)
            for p, part in enumerate(PARTS):
                beta = mean_interpolant(rng, x, y, round(part * len(y)))
                found[p, r, seed] = accuracy(beta, truth)
    return found


def at_peak(key: PRNGKeyArray, columns: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """N = D, descent in batches of half the samples: accuracies, and those of X⁺y."""
    rng = generator(key)
    data = [task(rng, columns, columns) for _ in range(count)]
    x, y = (jnp.asarray(np.stack(part)) for part in list(zip(*data, strict=True))[:2])
    keys = jax.random.split(key, count)
    ends = np.asarray(descend("Fisher of the batch", x, y, keys, 20.0, 200, columns // 2))
    truth = data[0][2]
    whole = [accuracy(np.linalg.solve(one[0], one[1]), truth) for one in data]
    return np.array([accuracy(end, truth) for end in ends]), np.array(whole)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Few samples and all their batches; then the peak at N = D."""
    columns, count = (120, 20) if budget.full else (40, 20)
    found = small(key, max(budget.seeds, 10 if budget.full else 3))
    steps, whole = at_peak(jax.random.fold_in(key, 1000), columns, count)
    curves = peak(jax.random.fold_in(key, 2000), columns, 10 if budget.full else 4)
    data = {"near": found["near"], "far": found["far"], "curves": curves, "columns": columns}
    return Measured(_rows(found, steps, whole), data)


def _rows(found: dict[str, np.ndarray], steps: np.ndarray, whole: np.ndarray) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    late = found["late"]
    return (
        at_most(
            "distance of runs from the mean flow at t = 1: order in the step, largest "
            "|order - 1/2|",
            max(abs(order(deviation) - 0.5) for deviation in found["near"]),
            0.2,
        ),
        at_least(
            f"distance of runs from the flow of all data, {STEPS[-1]} steps, over that from the "
            "mean flow: least",
            (found["far"] / found["near"])[:, -1].min(),
            1.5,
        ),
        at_most(
            "v separates: error of β_t/t, t = 500 and 1000, largest |order in 1/t - 1|",
            np.abs(np.log2(late[:, 0] / late[:, 1]) - 1).max(),
            0.1,
        ),
        at_most("v separates: β_t/t against v, t = 1000, largest", late[:, 1].max(), 0.05),
        at_least("1 - cosine of v and X⁺y, median", np.median(found["turned"]), 0.02),
        at_most(
            "batches of one: β_t/t against the point of least norm, t = 1000, largest",
            found["single"].max(),
            0.05,
        ),
        at_most(
            "squared error, steps of length 1: distance from X⁺y, largest",
            found["least"].max(),
            1e-6,
        ),
        at_least(
            "N = D, steps with batches of half: accuracy less that of X⁺y, mean less 2 standard "
            "errors",
            surely(steps - whole),
            0.05,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Left: small steps. Runs approach the mean flow over batches (circles) as the root of the
    step, and stay away from the flow of all data (squares). Right: accuracy of the limit direction;
    with all samples in a batch it falls to chance at N = D, with a half or a quarter it does not.
    """
    drawing, (left, right) = open_figure(columns=2)
    steps = 1 / np.array(STEPS)
    for name, words, marker, colour in (
        ("near", "from the mean flow over batches", "o", COLOURS[1]),
        ("far", "from the flow of all data", "s", COLOURS[0]),
    ):
        for i, values in enumerate(np.asarray(data[name])):
            left.loglog(
                steps, values, marker=marker, color=colour, label=None if i else words, lw=1
            )
    guide = np.asarray(data["near"])[:, 0].mean() * 0.6
    left.loglog(
        steps, guide * np.sqrt(steps / steps[0]), ":", color="0.5", label="root of the step"
    )
    left.set(xlabel="step", ylabel="distance at t = 1, root mean square", ylim=(None, 1.5))
    left.set_xticks(steps, [f"1/{count}" for count in STEPS])
    left.minorticks_off()
    left.legend(fontsize=8)
    markers = ("o", "s", "^")
    for p, part in enumerate(PARTS):
        values = np.asarray(data["curves"][p])
        right.errorbar(
            np.asarray(RATIOS) + 0.01 * (p - 1),
            values.mean(axis=1),
            yerr=2 * values.std(axis=1, ddof=1) / np.sqrt(values.shape[1]),
            marker=markers[p],
            color=("black", COLOURS[1], COLOURS[2])[p],
            capsize=2,
            label={1.0: "all samples, X⁺y"}.get(part, f"batches of {part:g} N"),
        )
    right.axhline(0.5, color="0.7", lw=0.8)
    right.set(
        xlabel="N / D", ylabel="test accuracy", title=f"mean of interpolants, D = {data['columns']}"
    )
    right.legend(fontsize=8)
    return drawing


CLAIM = Claim(
    name="batch-fisher",
    source="ours",
    place="after section 5.2, first question, of Kerekes et al.",
    statement=(
        "With the Fisher matrix of the batch (Moore-Penrose, independent rows, logistic loss) "
        "small steps of stochastic natural gradient descent follow another flow than that of all "
        "data; its limit direction is the mean of the interpolants of the batches where that "
        "separates the data, not least squares, and is not at chance at N = D. For the squared "
        "error the limit is the least-norm interpolant whatever the batch."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
    key_number="v separates: β_t/t against v, t = 1000, largest",
)
