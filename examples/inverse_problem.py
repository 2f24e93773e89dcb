"""An inverse problem: the unknown conductivity of a rod, from noisy measurements of temperature.

u_t = κ u_xx with κ unknown. The parameters are the network *and* log κ; the equation is one term,
the measurements are another. `python examples/inverse_problem.py rod.png` draws; defaults to
`pictures/inverse_problem.png`.
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
pde = pb.pde
TRUE, NOISE = 0.25, 1e-3


def temperature(x):
    return jnp.exp(-(jnp.pi**2) * TRUE * x[0]) * jnp.sin(jnp.pi * x[1])


def residual(u, x, params):
    """The third argument, if there is one, receives the parameters."""
    return pde.partial(u, x, 0) - jnp.exp(params["log_kappa"]) * pde.laplacian(u, x, [1])


def field(params, x):
    return pde.network(params["network"], x)


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    box = pde.Box([0.0, 0.0], [1.0, 1.0])
    x = box(keys[0], 200)
    y = jax.vmap(temperature)(x) + NOISE * jax.random.normal(keys[1], (200,))
    equation = pde.Equation(
        residual=residual,
        domain=box,
        inside=200,
        conditions=[pde.Data(x, y)],
        weights={"data": 1 / NOISE**2, "inside": 1e4},  # the log-likelihood, and a firm equation
    )
    params = {"network": pde.initialise(keys[2], (2, 16, 1)), "log_kappa": jnp.zeros(())}
    rule = pb.step.LevenbergMarquardt(rate=lambda k: jnp.minimum(1.0, 20 / (k + 1)))
    opt = pb.NaturalGradientDescent(equation.problem(field), step=rule)
    seen = []
    keep = lambda report: seen.append((report.step, float(jnp.exp(report.params["log_kappa"]))))
    fit = pb.fit(opt, params, equation.batches(keys[3], field), steps=80, callback=keep)
    kappa = float(jnp.exp(fit.params["log_kappa"]))
    grid = box(jax.random.key(9), 2000)
    error = jax.vmap(lambda p: field(fit.params, p) - temperature(p))(grid)
    rms = float(jnp.sqrt(jnp.mean(error**2)))
    print(f"κ = {kappa:.4f}, true {TRUE}; RMS error of u {rms:.1e}, of a measurement {NOISE:.0e}")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.semilogx(*np.array(seen).T, "o-", ms=3)
    left.axhline(TRUE, color="black", lw=0.8)
    left.set(xlabel="steps", ylabel="κ")
    shown = right.scatter(*np.asarray(x).T, c=np.asarray(y), s=14)
    right.set(xlabel="t", ylabel="x", title="measurements")
    figure.colorbar(shown, ax=right)
    path = picture_path("inverse_problem.png")
    figure.savefig(path, dpi=120)
    print(f"Picture: {path}")
    return abs(kappa - TRUE) < 5e-3 and rms < NOISE


if __name__ == "__main__":
    sys.exit(not main())
