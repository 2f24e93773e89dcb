r"""Damping that tends to zero. For a covector \(g\) in the range of \(G\),

\[ (G + \lambda I)^{-1} g - G^+ g = -\lambda\,(G^+)^2 g + O(\lambda^2), \]

so that Tikhonov regularisation tends to the Moore-Penrose inverse, linearly. A part \(g_0\) of
\(g\) in the kernel of \(G\) becomes \(g_0/\lambda\).

The sentence of the source is about the empirical Fisher matrix, \(G = \sum_i g_ig_i^\top\), and
the gradient \(\sum_i g_i\) of the same data, which is in its range: it holds. It does not hold off
the range, that is where the metric and the gradient come from different samples; nor for the matrix
\((G + \lambda I)^{-1}\) itself, whose norm is \(1/\lambda\). The matrix that tends to \(G^+\) is
the textbook's, \((G^\top G + \lambda I)^{-1}G^\top\).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most
from .._figure import COLOURS, open_figure
from .._numbers import distance, generator

DAMPINGS = (1e-1, 1e-2, 1e-3, 1e-4)
"""In units of the least eigenvalue of G that is not zero: what is left is of the order of λ."""
AT = "λ = 1e-4 of the least eigenvalue"


def network(params: tuple, x: Float[Array, "N 3"]) -> Float[Array, "N 1"]:
    """A small network, more parameters than samples."""
    return jnp.tanh(x @ params[0]) @ params[1]


def squared_error(z: Float[Array, "N 1"], y: Float[Array, "N 1"]) -> Float[Array, " N"]:
    """Half of it, per sample."""
    return jnp.sum((z - y) ** 2, axis=1) / 2


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """On the range, off it, and with a metric from other samples than the gradient."""
    rng = generator(key)
    params = tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((3, 4), (4, 1)))
    x, y, other = (jnp.asarray(rng.standard_normal((n, d))) for n, d in ((5, 3), (5, 1), (5, 3)))
    problem = pb.Composite(network, loss=squared_error)
    empirical = pb.Composite(
        network, metric=pb.metric.EmpiricalFisher(pb.metric.Gaussian(1.0)), loss=squared_error
    )

    def vectors(metric_batch, problem=problem):
        solve = lambda inverse: pb.natural_gradient(
            problem, params, (x, y), inverse=inverse, metric_batch=metric_batch
        )
        exact = solve(pb.MoorePenrose())
        unit = exact.stats.smallest**2
        damped = [solve(pb.Tikhonov(damping * unit)) for damping in DAMPINGS]
        return exact, [_flat(exact.vector), *(_flat(ng.vector) for ng in damped)]

    exact, (limit, *damped) = vectors(None)
    _, (own, *own_damped) = vectors(None, empirical)
    scores = _rows(params, x) * np.asarray(network(params, x) - y)
    check = distance(own, np.linalg.pinv(scores.T @ scores / 5, rcond=1e-10) @ scores.mean(axis=0))
    a = _rows(params, x) / np.sqrt(5)
    pseudo = np.linalg.pinv(a.T @ a, rcond=1e-12)
    crossed, (crossed_limit, *crossed_damped) = vectors((other,))
    on = [distance(v, limit) for v in damped]
    off = [distance(v, crossed_limit) for v in crossed_damped]
    b = _rows(params, other)
    g = _flat(crossed.covector)
    outside = float(np.linalg.norm(g - np.linalg.pinv(b) @ (b @ g)))
    least = lambda ng: DAMPINGS[-1] * float(ng.stats.smallest) ** 2
    last = float(np.linalg.norm(crossed_damped[-1] - crossed_limit)) * least(crossed) / outside
    slope = distance((damped[-1] - limit) / least(exact), -pseudo @ limit)
    hidden = 1 - float(crossed.stats.covector_share)
    shared = abs(1 - float(exact.stats.covector_share))
    rows = (
        at_most(
            f"empirical Fisher matrix: relative distance from the limit, {AT}",
            distance(own_damped[-1], own),
            2 * DAMPINGS[-1],
        ),
        *_compared(on, off, slope, last, hidden, shared),
        *_matrix_rows(a.T @ a, pseudo),
        at_most(
            "empirical Fisher matrix: the limit is G⁺g, NumPy, relative error",
            check,
            1e-6,
            Role.CONTROL,
        ),
    )
    return Measured(
        rows, {"damping": np.asarray(DAMPINGS), "on": np.asarray(on), "off": np.asarray(off)}
    )


def _compared(
    on: list[float], off: list[float], slope: float, last: float, hidden: float, shared: float
) -> tuple[Row, ...]:
    """The measured numbers with their bounds."""
    return (
        at_most(f"on the range: relative distance from the limit, {AT}", on[-1], 2 * DAMPINGS[-1]),
        at_most("on the range: order of convergence in λ, |order - 1|", abs(_order(on) - 1), 0.01),
        at_most(f"on the range: the slope is -(G⁺)²g, relative error, {AT}", slope, 1e-3),
        at_most(
            "metric and gradient of different samples: order of divergence, |order + 1|",
            abs(_order(off) + 1),
            0.01,
            Role.CONTROL,
        ),
        at_most(
            "there λ |difference| tends to the norm of what is outside the range, off by",
            abs(last - 1),
            1e-4,
            Role.CONTROL,
        ),
        at_least(
            "fraction of the gradient outside the range, different over the same samples",
            hidden / max(shared, 1e-16),
            1e6,
            Role.CONTROL,
        ),
        at_most(
            "fraction of the gradient outside the range, the same samples",
            shared,
            1e-12,
            Role.CONTROL,
        ),
    )


def draw(data: Mapping[str, Any]) -> Any:
    """Distance from the Moore-Penrose solution against the damping, both logarithmic: on the range
    it falls with slope 1, off the range it grows.
    """
    figure, axes = open_figure(size=(6.0, 4.0))
    axes.loglog(
        data["damping"],
        data["on"],
        "o-",
        color=COLOURS[0],
        label="metric and gradient of the same samples",
    )
    axes.loglog(data["damping"], data["off"], "s--", color=COLOURS[1], label="of different samples")
    axes.set(
        xlabel="damping λ",
        ylabel="relative distance from $G^+g$",
        title="Damping that tends to zero",
    )
    axes.legend(frameon=False)
    return figure


_jacobian = jax.jit(jax.jacrev(network))


def _rows(params: tuple, x: Array) -> np.ndarray:
    """The Jacobian of the outputs, one row per sample."""
    return np.concatenate(
        [np.asarray(part).reshape(len(x), -1) for part in _jacobian(params, x)], axis=1
    )


def _matrix_rows(g: np.ndarray, pseudo: np.ndarray) -> tuple[Row, ...]:
    """The rows on matrices, without a gradient."""
    alone, textbook = _matrices(g, pseudo)
    return (
        at_most(
            "the matrix (G + λI)⁻¹ diverges from G⁺: order in λ, |order + 1|",
            abs(_order(alone) + 1),
            0.01,
            Role.CONTROL,
        ),
        at_most(
            "the matrix (GᵀG + λI)⁻¹Gᵀ tends to G⁺: order in λ, |order - 1|",
            abs(_order(textbook) - 1),
            0.05,
            Role.CONTROL,
        ),
    )


def _matrices(g: np.ndarray, pseudo: np.ndarray) -> tuple[list[float], list[float]]:
    """The distances from G⁺ of (G + λsI)⁻¹, and of (GᵀG + λs²I)⁻¹Gᵀ, with the least eigenvalue s
    that is not zero.
    """
    eye, least = np.eye(len(g)), 1 / np.linalg.norm(pseudo, 2)

    def textbook(damping):
        # The least squares problem [G; √λ I] X = [I; 0], which does not square the condition of G.
        rows = np.vstack([g, np.sqrt(damping) * least * eye])
        return np.linalg.lstsq(rows, np.vstack([eye, 0 * eye]), rcond=None)[0]

    return (
        [distance(np.linalg.inv(g + damping * least * eye), pseudo) for damping in DAMPINGS],
        [distance(textbook(damping), pseudo) for damping in DAMPINGS],
    )


def _flat(tree) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])


def _order(errors: list[float]) -> float:
    """The slope of log error over log λ, between the two smallest λ."""
    return float(np.log(errors[-1] / errors[-2]) / np.log(DAMPINGS[-1] / DAMPINGS[-2]))


CLAIM = Claim(
    name="tikhonov",
    source="abstract",
    place="Conclusion",
    quotation=(
        "one often has to use the empirical FIM ... Note that by letting the regularisation "
        "parameter go to zero, the MP inverse is obtained."
    ),
    statement=(
        "For the empirical Fisher matrix that is used in practice, letting the parameter of "
        "Tikhonov regularisation go to zero gives the Moore-Penrose inverse applied to the "
        "gradient of the same data."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    remark=(
        "It holds linearly in λ for a gradient in the range of the metric, as that of the same "
        "data is. A part of the gradient in the kernel is divided by λ and diverges; there is such "
        "a part where metric and gradient come from different samples."
    ),
    draw=draw,
)
