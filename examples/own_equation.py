"""Solve an equation of your own, from an empty file to a picture of solution and error.

Burgers' equation, u_t + u u_x = ν u_xx with u = -sin πx at the start: a wave that steepens.
`python examples/own_equation.py wave.png` draws; defaults to `pictures/own_equation.png`.
"""

import sys

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from _pictures import picture_path

import pullback as pb

mpl.use("Agg")
import matplotlib.pyplot as plt

jax.config.update("jax_enable_x64", True)
pde, VISCOSITY = pb.pde, 0.05


# 1. The equation: a residual that is zero at the solution. x is one point, (time, space).
def residual(u, x):
    return pde.partial(u, x, 0) + u(x) * pde.partial(u, x, 1) - VISCOSITY * pde.laplacian(u, x, [1])


# 2. The domain, and what is known at the start and at both ends.
equation = pde.Equation(
    residual=residual,
    domain=pde.Box([0.0, -1.0], [1.0, 1.0]),
    evolution=True,
    inside=400,  # points, new ones in every step
    conditions=[pde.Initial(lambda x: -jnp.sin(jnp.pi * x[1]), 60), pde.Dirichlet(0.0, 60)],
    weights={"initial": 10.0},
)


def reference(points):
    """The solution, by the transformation of Cole and Hopf: only to tell the error."""
    t, x = points.T
    z = np.linspace(-12, 12, 801)
    y = x[:, None] - np.sqrt(4 * VISCOSITY * t)[:, None] * z
    weight = np.exp(-np.cos(np.pi * y) / (2 * np.pi * VISCOSITY) - z**2)
    return -np.sum(np.sin(np.pi * y) * weight, axis=1) / np.sum(weight, axis=1)


def main():
    # 3. A network, and an optimiser.
    key = jax.random.key(0)
    params = pde.initialise(key, (2, 20, 20, 1), domain=equation.domain)
    rule = pb.step.Geodesic(pb.step.LevenbergMarquardt(minimum=1e-7))
    opt = pb.NaturalGradientDescent(equation.problem(), step=rule)
    # 4. Train.
    fit = pb.fit(opt, params, equation.batches(key), steps=150)
    print(equation)
    for name in equation.names:
        print(f"loss of {name!r}: {fit.history[f'losses.{name}'][-1]:.1e}")
    # 5. Solution and error on a grid.
    t, x = (np.linspace(a, b, 101) for a, b in ((0.0, 1.0), (-1.0, 1.0)))
    grid = np.stack(np.meshgrid(t, x, indexing="ij"), axis=-1).reshape(-1, 2)
    u = jax.vmap(lambda point: pde.network(fit.params, point))
    found = np.asarray(u(jnp.asarray(grid))).reshape(101, 101)
    error = np.abs(found - reference(grid).reshape(101, 101))
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for axis, values, title in zip(axes, (found, error), ("u", "|u - reference|"), strict=False):
        shown = axis.pcolormesh(t, x, values.T, shading="gouraud", rasterized=True)
        axis.set(title=title, xlabel="t", ylabel="x")
        figure.colorbar(shown, ax=axis)
    axes[2].semilogy(fit.history["loss"])
    axes[2].set(title="loss at new points", xlabel="steps")
    path = picture_path("own_equation.png")
    figure.savefig(path, dpi=120)
    print(f"Largest error {error.max():.1e}; picture: {path}")
    return error.max() < 1e-3


if __name__ == "__main__":
    sys.exit(not main())
