r"""The Fisher metric of a Gaussian is one tensor, whatever the coordinates:

| coordinates | matrix |
|---|---|
| \((\mu, \sigma)\) | \(\mathrm{diag}(1/\sigma^2,\ 2/\sigma^2)\) |
| \((\mu, \sigma^2)\) | \(\mathrm{diag}(1/\sigma^2,\ 1/(2\sigma^4))\) |
| \((\mu, \log\sigma)\) | \(\mathrm{diag}(1/\sigma^2,\ 2)\) |
| \((\mu, -\tfrac12)/\sigma^2\) | \(\sigma^2 H\) |

with \(H = \begin{pmatrix} 1 & 2\mu \\ 2\mu & 4\mu^2 + 2\sigma^2 \end{pmatrix}\).

Each is given to the library in its own way, as a matrix, as a divergence, as a likelihood, as a
log-partition function, and pulled back to the other three. It is the covariance of the scores, and
the Hessian of the KL divergence in either argument.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_most
from .._figure import open_figure
from .._numbers import distance

MEAN = 0.7
SCALE = 1.6
TARGET = 2.5


class Coordinates(NamedTuple):
    """A coordinate system on the Gaussians of the line."""

    read: Callable[[Float[Array, " 2"]], Float[Array, " 2"]]
    """From these coordinates to (μ, log σ)."""
    write: Callable[[Float[Array, " 2"]], Float[Array, " 2"]]
    """From (μ, log σ) to these coordinates."""
    outputs: Callable[[Float[Array, " 2"]], Any]
    """These coordinates as the metric wants them."""
    metric: pb.metric.AbstractMetric
    matrix: Callable[[float, float], list[list[float]]]
    """The matrix of the table above, as a function of μ and σ."""


def divergence(u: Float[Array, " 2"], z: Float[Array, " 2"]) -> Float[Array, ""]:
    """KL(p_u || p_z) in the coordinates (μ, σ²)."""
    return (jnp.log(z[1] / u[1]) + (u[1] + (u[0] - z[0]) ** 2) / z[1] - 1) / 2


def log_partition(eta: Float[Array, " 2"]) -> Float[Array, ""]:
    """That of the Gaussian family with the statistic (x, x²)."""
    return -(eta[0] ** 2) / (4 * eta[1]) - jnp.log(-2 * eta[1]) / 2


SYSTEMS = {
    "(μ, σ)": Coordinates(
        lambda x: jnp.stack([x[0], jnp.log(x[1])]),
        lambda x: jnp.stack([x[0], jnp.exp(x[1])]),
        lambda x: x,
        pb.metric.Riemannian(lambda z: jnp.diag(jnp.stack([1 / z[1] ** 2, 2 / z[1] ** 2]))),
        lambda m, s: [[1 / s**2, 0], [0, 2 / s**2]],
    ),
    "(μ, σ²)": Coordinates(
        lambda x: jnp.stack([x[0], jnp.log(x[1]) / 2]),
        lambda x: jnp.stack([x[0], jnp.exp(2 * x[1])]),
        lambda x: x,
        pb.metric.Divergence(divergence),
        lambda m, s: [[1 / s**2, 0], [0, 1 / (2 * s**4)]],
    ),
    "(μ, log σ)": Coordinates(
        lambda x: x,
        lambda x: x,
        lambda x: {"mean": x[0], "log_scale": x[1]},
        pb.metric.GaussianMeanScale(),
        lambda m, s: [[1 / s**2, 0], [0, 2]],
    ),
    "natural": Coordinates(
        lambda x: jnp.stack([-x[0] / (2 * x[1]), -jnp.log(-2 * x[1]) / 2]),
        lambda x: jnp.stack([x[0] * jnp.exp(-2 * x[1]), -jnp.exp(-2 * x[1]) / 2]),
        lambda x: x,
        pb.metric.ExponentialFamily(log_partition),
        lambda m, s: [[s**2, 2 * m * s**2], [2 * m * s**2, 4 * m**2 * s**2 + 2 * s**4]],
    ),
}


def pulled_back(a: Coordinates, b: Coordinates, point: Float[Array, " 2"]) -> Float[Array, "2 2"]:
    """The metric of one coordinate system, pulled back to another."""
    problem = pb.Composite(
        lambda x: a.outputs(a.write(b.read(x))), loss=lambda z: jnp.zeros(()), metric=a.metric
    )
    return pb.pullback(problem, b.write(point)).matrix()


def scores_moments(
    system: Coordinates, point: Float[Array, " 2"]
) -> tuple[Float[Array, " 2"], Float[Array, "2 2"]]:
    """E[∇log p] and E[∇log p ∇log pᵀ] by Gauss-Hermite quadrature, which is exact here: the scores
    are polynomials of degree 2.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)

    def log_density(coordinates, x):
        mean, log_scale = system.read(coordinates)
        return -((x - mean) ** 2) * jnp.exp(-2 * log_scale) / 2 - log_scale

    draws = point[0] + jnp.exp(point[1]) * jnp.asarray(nodes)
    scores = jax.vmap(jax.grad(log_density), (None, 0))(system.write(point), draws)
    weights = jnp.asarray(weights / weights.sum())
    return weights @ scores, jnp.einsum("n,ni,nj->ij", weights, scores, scores)


def divergence_hessian(
    system: Coordinates, point: Float[Array, " 2"], argument: int
) -> Float[Array, "2 2"]:
    """The Hessian on the diagonal of KL(p_u || p_z), in u or in z, by automatic differentiation."""
    variance = SYSTEMS["(μ, σ²)"]
    kl = lambda u, z: divergence(variance.write(system.read(u)), variance.write(system.read(z)))
    at = system.write(point)
    return jax.hessian(kl, argument)(at, at)


def numerical_hessian(system: Coordinates, point: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """The same Hessian from values of KL only: fourth differences of the quadratic form, no
    derivative taken.
    """
    variance = SYSTEMS["(μ, σ²)"]
    at = np.asarray(system.write(jnp.asarray(point)))
    z = variance.write(jnp.asarray(point))
    kl = jax.jit(lambda u: divergence(variance.write(system.read(u)), z))
    h = step * np.abs(at)
    unit = np.eye(2)

    def second(direction):
        values = [float(kl(jnp.asarray(at + k * h * direction))) for k in (-2, -1, 1, 2)]
        return (-values[0] + 16 * values[1] + 16 * values[2] - values[3]) / 12

    diagonal = [second(unit[i]) for i in range(2)]
    cross = (second(unit[0] + unit[1]) - second(unit[0] - unit[1])) / 4
    return np.array([[diagonal[0], cross], [cross, diagonal[1]]]) / np.outer(h, h)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The table, all pairs, the scores, the divergence, and a natural gradient in all four."""
    point = jnp.asarray(np.array([MEAN, np.log(SCALE)]))
    expected = {
        name: np.array(system.matrix(MEAN, SCALE), float) for name, system in SYSTEMS.items()
    }
    pairs = {(a, b): (SYSTEMS[a], SYSTEMS[b]) for a in SYSTEMS for b in SYSTEMS}
    found = jax.jit(lambda point: [pulled_back(a, b, point) for a, b in pairs.values()])(point)
    errors = {
        (a, b): distance(matrix, expected[b]) for (a, b), matrix in zip(pairs, found, strict=True)
    }
    scores = jax.jit(lambda point: [scores_moments(system, point) for system in SYSTEMS.values()])(
        point
    )
    rows = [
        at_most(
            "second moment of the scores is the matrix of the table, all four coordinates",
            _all([second for _, second in scores], expected),
            1e-13,
        ),
        at_most(
            "and their covariance: the mean of the scores is zero, largest",
            max(float(jnp.abs(first).max()) for first, _ in scores),
            1e-13,
        ),
    ]
    for argument, words in ((0, "KL(p_u || p) in u"), (1, "KL(p || p_u) in u")):
        hessians = jax.jit(
            lambda point, i=argument: [
                divergence_hessian(system, point, i) for system in SYSTEMS.values()
            ]
        )(point)
        rows.append(at_most(f"Hessian of {words}, all four", _all(hessians, expected), 1e-13))
    numerical = [numerical_hessian(system, np.asarray(point)) for system in SYSTEMS.values()]
    rows.append(
        at_most("the same from differences of values, all four", _all(numerical, expected), 1e-6)
    )
    others = max(e for (a, b), e in errors.items() if a != b)
    rows.append(at_most("one tensor: each pulled back to the other three, 12 pairs", others, 1e-13))
    rows.append(
        at_most(
            "natural gradient of -log p(2.5), as a motion of (μ, log σ), all four",
            _motion(point),
            1e-13,
        )
    )
    for name in SYSTEMS:
        label = f"{name}: {type(SYSTEMS[name].metric).__name__} is the matrix of the table"
        rows.append(at_most(label, errors[name, name], 1e-13, Role.CONTROL))
    return Measured(tuple(rows), balls())


def _all(matrices: list, expected: dict[str, np.ndarray]) -> float:
    return max(map(distance, matrices, expected.values()))


def balls() -> dict[str, np.ndarray]:
    """Metric matrices in the coordinates (mean, standard deviation), Fisher and Wasserstein."""
    points = np.stack(np.meshgrid(np.linspace(-2, 2, 5), [0.3, 0.8, 1.4, 2.0]), axis=-1).reshape(
        -1, 2
    )
    fisher = pb.Composite(
        lambda p: {"mean": p[0], "log_scale": jnp.log(p[1])},
        lambda z: 0.0,
        pb.metric.GaussianMeanScale(),
    )
    wasserstein = pb.Composite(
        lambda p: {"mean": p[0], "scale": p[1]}, lambda z: 0.0, pb.metric.WassersteinGaussian()
    )
    matrices = jax.jit(
        lambda p: [pb.pullback(problem, p).matrix() for problem in (fisher, wasserstein)]
    )
    found = [matrices(jnp.asarray(p)) for p in points]
    return {
        "points": points,
        "Fisher": np.stack([np.asarray(a) for a, _ in found]),
        "Wasserstein": np.stack([np.asarray(b) for _, b in found]),
    }


def draw(data: Mapping[str, Any]) -> Any:
    """Balls of one radius in the half-plane of Gaussians: for Fisher they shrink with the standard
    deviation, for Wasserstein they do not.
    """
    figure, axes = open_figure(columns=2, size=(5.0, 3.8))
    for ax, name in zip(axes, ("Fisher", "Wasserstein"), strict=True):
        pb.plot.ellipses(data["points"], data[name], radius=0.25, axes=ax)
        ax.set(
            xlabel="mean",
            ylabel="standard deviation",
            title=f"{name}: balls of radius 0.25",
            aspect="equal",
            ylim=(0, 2.8),
        )
    return figure


def _motion(point: Array) -> float:
    """The largest difference of the natural gradients from the closed form (μ - y, (1 - t²)/2), t =
    (y - μ)/σ.
    """
    t = (TARGET - MEAN) / SCALE
    worst = 0.0
    expected = np.array([MEAN - TARGET, (1 - t**2) / 2])
    for index, system in enumerate(SYSTEMS.values()):
        problem = pb.Composite(
            eqx.Partial(_read, jnp.asarray(index)), loss=_loss, metric=pb.metric.GaussianMeanScale()
        )
        ng = pb.natural_gradient(problem, system.write(point))
        worst = max(
            worst,
            distance(np.array([ng.pushforward["mean"], ng.pushforward["log_scale"]]), expected),
        )
    return worst


def _read(index, x):
    """(μ, log σ) from the coordinates of the system with this index; which one it is, is data, so
    that one compilation serves all.
    """
    mean, log_scale = jax.lax.switch(index, [system.read for system in SYSTEMS.values()], x)
    return {"mean": mean, "log_scale": log_scale}


def _loss(z):
    return (TARGET - z["mean"]) ** 2 * jnp.exp(-2 * z["log_scale"]) / 2 + z["log_scale"]


CLAIM = Claim(
    name="gaussian-coordinates",
    source="lecture",
    place="KL divergence and Fisher metric, univariate Gaussians",
    quotation="the update direction is equivalent in any coordinate system",
    statement=(
        "The Hessian of KL, in whichever argument, is the Fisher matrix, the covariance of the "
        "scores. It is one metric, in whatever coordinates: the natural gradient of a Gaussian "
        "is one direction in all of them."
    ),
    verdict=Verdict.HOLDS,
    run=run,
    draw=draw,
)
