"""The pictures of the lecture: Rosenbrock in both spaces, the half-plane of Gaussians, pulling back a metric, units, distance of functions.

Needs matplotlib; `examples/lecture3.py` saves them. Each function returns a figure, and numbers that it shows.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import pullback as pb
from pullback import testing

from .gaussian import balls
from .gaussian import draw as draw_balls
from .rosenbrock import PROBLEM as ROSENBROCK
from .rosenbrock import paths


def rosenbrock() -> tuple[Figure, dict[str, float]]:
    """Gradient descent crawls along the valley; the proximal family goes straight on the outputs. With the loss at the end of each path."""
    height = jax.jit(lambda x: ROSENBROCK.loss(ROSENBROCK.model(x)))  # pyright: ignore[reportOptionalCall]
    found = paths()
    plain = lambda name: name.replace("$", "").replace(chr(92), "")
    losses = {f"{plain(name)}, {len(path) - 1} steps": float(height(jnp.asarray(path[-1]))) for name, path in found.items()}
    return pb.plot.spaces(ROSENBROCK, found, markers=True)[0], losses


def gaussians() -> Figure:
    """The half-plane of Gaussians: small steps of the mean matter more where the scale is small, for Fisher; not for Wasserstein."""
    return draw_balls(balls())


def pulled_back() -> Figure:
    """Circles on the outputs of the Rosenbrock map (with b = 4, to fit the page) are ellipses on its parameters."""
    bent = pb.Composite(lambda x: jnp.stack([1 - x[0], 2 * (x[1] - x[0] ** 2)]), lambda z: jnp.sum(z**2))
    points = np.stack(np.meshgrid(np.linspace(-1.0, 1.0, 5), np.linspace(-0.4, 1.2, 4)), axis=-1).reshape(-1, 2)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    pb.plot.ellipses(points, [np.asarray(pb.pullback(bent, jnp.asarray(p)).matrix()) for p in points], radius=0.2, axes=left)
    images = np.asarray(jax.vmap(bent.model)(jnp.asarray(points)))
    pb.plot.ellipses(images, np.stack([np.eye(2)] * len(points)), radius=0.2, axes=right)
    left.set(xlabel="$\\theta_1$", ylabel="$\\theta_2$", title="parameters: the metric pulled back", aspect="equal")
    right.set(xlabel="$z_1$", ylabel="$z_2$", title="outputs: Euclidean", aspect="equal")
    return figure


def units() -> tuple[Figure, dict[tuple[bool, str], float]]:
    """Linear regression on a duration in minutes, or in seconds: the same step of gradient descent is another function."""
    rng = np.random.default_rng(0)
    minutes = rng.uniform(0.0, 2.0, 30)
    y = jnp.asarray(1.5 * minutes + 0.3 * rng.standard_normal(30))
    problem = pb.Composite(lambda w, x: w[0] * x, lambda z, y: (z - y) ** 2 / 2)
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    changes = {}
    for ax, natural in zip(figure.subplots(1, 2), (False, True), strict=True):
        for unit, factor, colour in (("minutes", 1.0, "#0072b2"), ("seconds", 60.0, "#d55e00")):
            x, w = jnp.asarray(factor * minutes), jnp.asarray([0.5 / factor])
            ng = pb.natural_gradient(problem, w, (x, y))
            new = w - 0.2 * (ng.vector if natural else ng.covector)
            changes[natural, unit] = float((new[0] - w[0]) * factor)
            grid = np.linspace(0.0, 2.0, 50)
            ax.plot(
                grid,
                float(new[0]) * factor * grid,
                color=colour,
                label=f"one step in {unit}",
                ls="-" if factor == 1 else "--",
                lw=2,
            )
        ax.plot(minutes, np.asarray(y), "k.", ms=4)
        ax.set(xlabel="duration (minutes)", ylabel="y", ylim=(-0.5, 4), title="natural gradient" if natural else "gradient descent")
        ax.legend(frameon=False)
    return figure, changes


def functions() -> Figure:
    """How far a network is from another along a line: as functions, by the quadratic estimate, and in its parameters."""
    model = testing.tanh_mlp(2, 3, 8, jax.random.key(0))
    other = jax.tree.map(lambda p: p + jax.random.normal(jax.random.key(p.size), p.shape), model.params)
    problem = pb.Composite(model.function, metric=pb.metric.Categorical())
    curve = pb.distance(problem, model.params, pb.line(model.params, other, 41), (jax.random.normal(jax.random.key(1), (50, 2)),))
    return pb.plot.distances(np.linspace(0, 1, 41), curve)[0]
