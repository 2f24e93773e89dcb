"""Gaussian variational inference with a full covariance: ordinal and negative binomial regression.

The natural gradient of the evidence bound, and the equations that its optimum satisfies.
"""

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from _pictures import picture_path
from _regressions import data, negative_binomial, ordinal

import pullback as pb

jax.config.update("jax_enable_x64", True)
matplotlib.use("Agg")
NODES, WEIGHTS = (jnp.asarray(a) for a in np.polynomial.hermite_e.hermegauss(40))
WEIGHTS = WEIGHTS / jnp.sum(WEIGHTS)


def bound(log_p, x, y):
    """Minus the evidence bound, exact up to quadrature, of a mean and a covariance."""

    def loss(z):
        mean, covariance = z["mean"], z["covariance"]
        spread = jnp.sqrt(jnp.sum((x @ covariance) * x, axis=1))
        eta = (x @ mean)[:, None] + spread[:, None] * NODES[None]
        fit = jnp.sum(jax.vmap(jax.vmap(log_p, (0, None)))(eta, y) @ WEIGHTS)
        size = (jnp.trace(covariance) + mean @ mean) / 25
        entropy = jnp.linalg.slogdet(covariance)[1] + len(mean)
        return -fit + (size - entropy + len(mean) * jnp.log(25.0)) / 2

    return loss


def model(p):
    factor = jnp.tril(p["factor"])
    return {"mean": p["mean"], "covariance": factor @ factor.T}


def main() -> None:
    x, targets = data(0)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, log_p in (("ordinal", ordinal), ("negative binomial", negative_binomial)):
        loss = bound(log_p, x, jnp.asarray(targets[name]))
        problem = pb.Composite(model, loss, pb.metric.GaussianMeanCovariance())
        start = {"mean": jnp.zeros(6), "factor": jnp.eye(6)}
        fit = pb.fit(pb.NaturalGradientDescent(problem), start, None, 30, progress=False)
        found = model(fit.params)
        # At the optimum 0 = ∂/∂mean and the precision is the mean Hessian, 2 ∂(-fit)/∂covariance.
        slope = jax.grad(loss)(found)
        error = jnp.max(jnp.abs(slope["mean"])) + jnp.max(jnp.abs(slope["covariance"]))
        values = np.asarray(fit.history["loss"])
        print(f"{name}: -ELBO {values[-1]:.6f} after {fit.steps} steps, differential {error:.0e}")
        print("   mean", np.round(found["mean"], 2),
              "sd", np.round(np.sqrt(np.diag(found["covariance"])), 2))  # fmt: skip
        axes.semilogy(np.maximum(values - values.min(), 1e-14), label=name)
        if not error < 1e-4:
            raise SystemExit("The bound is not at its optimum.")
    axes.set(xlabel="step", ylabel="gap of the evidence bound")
    axes.legend(frameon=False)
    figure.savefig(picture_path("variational_inference.png"), dpi=150)


if __name__ == "__main__":
    main()
