"""An equation with an unknown coefficient, as three kinds of residuals (`terms.py`).

u'' + k u = f on (-1, 1),   u = sin(π x) + x,   k = 4.
"""

import jax
import jax.numpy as jnp
from _pictures import picture_path

import pullback as pb

K, INSIDE, DATA = 4.0, 40, 9
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
    left.set(xlabel="x", ylabel="u", xticks=[-1, -0.5, 0, 0.5, 1])
    for name in WEIGHTS:
        right.semilogy(history["step"], history[f"losses.{name}"], label=name)
    right.legend(frameon=False)
    right.set(xlabel="step", ylabel="loss of each term")
    path = picture_path("terms.png")
    figure.savefig(path, dpi=120)
    print(f"drawn in {path}")
