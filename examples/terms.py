"""A small equation in three terms, each with its own points: interior, boundary and data.

    u'' + k u = f on (-1, 1),   u(-1) and u(1) given,   u measured at some places,

with k unknown, too. Residual, boundary values and measurements are composites of their own that
share the parameters. The same problem as one composite, with flags for the kind of a point and
factors worked out by hand, has the same natural gradient. Then both are solved, and the solution is
drawn.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from _pictures import picture_path

import pullback as pb

jax.config.update("jax_enable_x64", True)
K, INSIDE, DATA, WIDTH = 4.0, 40, 9, 12
WEIGHTS = {"interior": 1.0, "boundary": 10.0, "data": 5.0}


def exact(x):
    """The solution, for which f = (k - π²) sin(π x) + k x."""
    return jnp.sin(jnp.pi * x) + x


def field(p, x):
    """u at one point."""
    return jnp.tanh(x * p["w"] + p["b"]) @ p["v"]


def residual(p, x):
    """u'' + k u - f at every point."""
    slope = jax.grad(field, 1)

    def one(x):
        force = (K - jnp.pi**2) * jnp.sin(jnp.pi * x) + K * x
        return jax.jvp(lambda x: slope(p, x), (x,), (1.0,))[1] + p["k"] * field(p, x) - force

    return jax.vmap(one)(x)


def values(p, x):
    """u at every point."""
    return jax.vmap(lambda x: field(p, x))(x)


def half_square(z, *y):
    """Half of the squared distance from the targets, or from zero, of each sample."""
    return (z - y[0]) ** 2 / 2 if y else z**2 / 2


def batches(rng):
    """Points inside, at both ends, and measurements with a little noise."""
    x = jnp.asarray(rng.uniform(-1, 1, INSIDE))
    ends = jnp.asarray([-1.0, 1.0])
    places = jnp.linspace(-0.9, 0.9, DATA)
    noise = 1e-3 * jnp.asarray(rng.standard_normal(DATA))
    return {
        "interior": (x,),
        "boundary": (ends, exact(ends)),
        "data": (places, exact(places) + noise),
    }


def stacked(batch):
    """The same problem as one composite: a flag tells points apart, weights hold the factors."""

    def model(p, inputs):
        x, inside = inputs
        return jnp.where(inside, residual(p, x), values(p, x))

    (x,), (ends, at_ends), (places, measured) = (
        batch[name] for name in ("interior", "boundary", "data")
    )
    weights = [jnp.full(a.size, WEIGHTS[name] / a.size) for name, (a, *_) in batch.items()]
    problem = pb.Composite(model, half_square, measure=pb.Weights(jnp.concatenate(weights)))
    points = jnp.concatenate([x, ends, places])
    targets = jnp.concatenate([jnp.zeros(x.size), at_ends, measured])
    return problem, ((points, jnp.arange(points.size) < x.size), targets)


def draw(params, batch, history):
    """Save the solution with its points, and the loss of each term."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    fine = jnp.linspace(-1, 1, 300)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot(fine, exact(fine), color="0.7", lw=4, label="exact")
    left.plot(fine, values(params, fine), label="network")
    left.plot(*batch["data"], "o", ms=4, label="measured")
    left.legend(frameon=False)
    left.set(xlabel="x", ylabel="u")
    for name in WEIGHTS:
        right.semilogy(history["step"], history[f"losses.{name}"], label=name)
    right.legend(frameon=False)
    right.set(xlabel="step", ylabel="loss of each term")
    path = picture_path("terms.png")
    figure.savefig(path, dpi=120)
    print(f"drawn in {path}")


def main() -> int:
    rng = np.random.default_rng(0)
    batch = batches(rng)
    problem = pb.Terms(
        interior=pb.Composite(residual, half_square),
        boundary=pb.Composite(values, half_square),
        data=pb.Composite(values, half_square),
        weights=WEIGHTS,
    )
    params = {
        "w": jnp.asarray(3 * rng.standard_normal(WIDTH)),
        "b": jnp.asarray(rng.standard_normal(WIDTH)),
        "v": jnp.asarray(rng.standard_normal(WIDTH) / np.sqrt(WIDTH)),
        "k": jnp.asarray(1.0),
    }
    # Damped, because this network has a condition number of 1e10, times which rounding would show.
    damped = {"inverse": pb.Tikhonov(1e-3)}
    ng = pb.natural_gradient(problem, params, batch, **damped)
    one, together = stacked(batch)
    other = pb.natural_gradient(one, params, together, **damped)
    size = lambda tree: np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(tree)))
    off = size(jax.tree.map(jnp.subtract, ng.vector, other.vector)) / size(other.vector)
    print(ng)
    print(f"one composite with flags and weights: loss {float(other.value):.6g}")
    print(f"the two natural gradients differ by {off:.1e}")
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    fit = pb.fit(opt, params, batch, steps=60, progress=False)
    fine = jnp.linspace(-1, 1, 300)
    error = float(jnp.max(jnp.abs(values(fit.params, fine) - exact(fine))))
    for name in WEIGHTS:
        losses = fit.history[f"losses.{name}"]
        print(f"{name:<16}loss {losses[0]:.1e} -> {losses[-1]:.1e}")
    k = float(fit.params["k"])
    print(f"after {len(fit.history)} steps: largest error {error:.1e}, k = {k:.4f} (exact {K})")
    draw(fit.params, batch, fit.history)
    fine = off < 1e-10 and error < 5e-3 and abs(k - K) < 0.05
    print("terms and the stacked problem agree" if fine else "NO")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
