"""The pictures of lecture 3 (Grosse): Rosenbrock in both spaces, Gaussian ellipses, pulling back a metric, units, distance of functions.

`python examples/lecture3.py folder` saves `rosenbrock.png`, `gaussians.png`, `pullback.png`, `units.png` and `distance.png` there.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import pullback as pb
from pullback import testing

jax.config.update("jax_enable_x64", True)
ROSENBROCK = pb.Composite(lambda x: jnp.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)]), lambda z: jnp.sum(z**2))
START = jnp.asarray([-1.2, 1.0])


def rosenbrock():
    """Gradient descent crawls along the valley; the proximal family goes straight on the outputs."""
    slope = jax.jit(jax.grad(lambda x: ROSENBROCK.loss(ROSENBROCK.model(x))))
    steps = {
        "gradient descent, 0.001": (400, lambda x: x - 1e-3 * slope(x)),
        "natural gradient, 0.1": (30, lambda x: pb.linearised_proximal_step(ROSENBROCK, x, weight=10.0).params),
        "proximal, $\\lambda$ = 10": (30, lambda x: pb.proximal_step(ROSENBROCK, x, weight=10.0).params),
        "damped Newton, $\\lambda$ = 10": (30, lambda x: pb.damped_newton_step(ROSENBROCK, x, weight=10.0).params),
        "output descent, 0.1": (30, lambda x: pb.output_step(ROSENBROCK, x, step=0.1).params),
    }
    paths = {}
    for name, (count, step) in steps.items():
        path = [START]
        for _ in range(count):
            path.append(step(path[-1]))
        paths[name] = np.stack([np.asarray(x) for x in path])
        print(f"{name.replace('$', ''):<28}{count:>5} steps, loss {float(ROSENBROCK.loss(ROSENBROCK.model(path[-1]))):.2e}")
    return pb.plot.spaces(ROSENBROCK, paths, markers=True)[0], float(
        ROSENBROCK.loss(ROSENBROCK.model(paths["output descent, 0.1"][-1]))
    )


def gaussians():
    """The half-plane of Gaussians: small steps of the mean matter more where the scale is small, for Fisher; not for Wasserstein."""
    points = np.stack(np.meshgrid(np.linspace(-2, 2, 5), [0.3, 0.8, 1.4, 2.0]), axis=-1).reshape(-1, 2)
    fisher = pb.Composite(lambda p: {"mean": p[0], "log_scale": jnp.log(p[1])}, lambda z: 0.0, pb.metric.GaussianMeanScale())
    wasserstein = pb.Composite(lambda p: {"mean": p[0], "scale": p[1]}, lambda z: 0.0, pb.metric.WassersteinGaussian())
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for ax, problem, name in zip(figure.subplots(1, 2), (fisher, wasserstein), ("Fisher", "Wasserstein"), strict=True):
        matrices = [np.asarray(pb.pullback(problem, jnp.asarray(p)).matrix()) for p in points]
        pb.plot.ellipses(points, matrices, radius=0.25, axes=ax)
        ax.set(xlabel="mean", ylabel="standard deviation", title=f"{name}: balls of radius 0.25", aspect="equal", ylim=(0, 2.8))
    return figure


def pulled_back():
    """Circles on the outputs of the Rosenbrock map are ellipses on its parameters."""
    points = np.stack(np.meshgrid(np.linspace(-1.2, 1.2, 5), np.linspace(-0.4, 1.2, 4)), axis=-1).reshape(-1, 2)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    pb.plot.ellipses(points, [np.asarray(pb.pullback(ROSENBROCK, jnp.asarray(p)).matrix()) for p in points], radius=0.3, axes=left)
    images = np.asarray(jax.vmap(ROSENBROCK.model)(jnp.asarray(points)))
    pb.plot.ellipses(images, np.stack([np.eye(2)] * len(points)), radius=0.3, axes=right)
    left.set(xlabel="$\\theta_1$", ylabel="$\\theta_2$", title="parameters: the metric pulled back")
    right.set(xlabel="$z_1$", ylabel="$z_2$", title="outputs: Euclidean")
    return figure


def units():
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


def functions():
    """How far a network is from another along a line: as functions, by the quadratic estimate, and in its parameters."""
    model = testing.tanh_mlp(2, 3, 8, jax.random.key(0))
    other = jax.tree.map(lambda p: p + jax.random.normal(jax.random.key(p.size), p.shape), model.params)
    problem = pb.Composite(model.function, metric=pb.metric.Categorical())
    curve = pb.distance(problem, model.params, pb.line(model.params, other, 41), (jax.random.normal(jax.random.key(1), (50, 2)),))
    return pb.plot.distances(np.linspace(0, 1, 41), curve)[0]


def main(folder: Path) -> int:
    figure, loss = rosenbrock()
    figure.savefig(folder / "rosenbrock.png", dpi=150)
    gaussians().savefig(folder / "gaussians.png", dpi=150)
    pulled_back().savefig(folder / "pullback.png", dpi=150)
    figure, changes = units()
    figure.savefig(folder / "units.png", dpi=150)
    functions().savefig(folder / "distance.png", dpi=150)
    ratio = {natural: changes[natural, "seconds"] / changes[natural, "minutes"] for natural in (False, True)}
    print(
        f"minutes to seconds: the step of the function changes by {ratio[False]:.6g} (gradient), {ratio[True]:.6g} (natural gradient)"
    )
    return 0 if abs(ratio[False] - 3600) < 1e-6 and abs(ratio[True] - 1) < 1e-12 and loss < 1e-2 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
