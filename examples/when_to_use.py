"""The numbers of docs/when-to-use.md: natural gradients and Adam on four kinds of problems.

`python examples/when_to_use.py` prints the steps and CPU seconds, without compilation, until a loss
is reached; Adam has the best of three rates. A second line compares errors at equal time.
"""

import jax
import jax.numpy as jnp
import numpy as np
from _steps import report
from sklearn.datasets import load_digits

import pullback as pb

jax.config.update("jax_enable_x64", True)


def data(seed, count, size):
    """Correlated inputs and labels 0 or 1."""
    rng = np.random.default_rng(seed)
    mixing = np.linalg.qr(rng.normal(size=(size, size)))[0] * np.logspace(0, -1.5, size)
    x = rng.normal(size=(count, size)) @ mixing @ np.linalg.qr(rng.normal(size=(size, size)))[0]
    y = rng.uniform(size=count) < 1 / (1 + np.exp(-4 * x @ rng.normal(size=size)))
    return jnp.asarray(x), jnp.asarray(y, float)


def regression():
    x, y = data(0, 500, 20)
    return pb.Composite(lambda w, x: x @ w, metric=pb.metric.Bernoulli()), jnp.zeros(20), (x, y)


def variational(size=8):
    """Bayesian logistic regression, a Gaussian with full covariance, the expectation exact."""
    (x, y), (nodes, weights) = data(1, 100, size), np.polynomial.hermite_e.hermegauss(20)
    square = lambda factor: factor @ factor.T
    model = lambda p: {"mean": p["mean"], "covariance": square(jnp.tril(p["factor"]))}

    def loss(z):
        mean, covariance = z["mean"], z["covariance"]
        spread = jnp.sqrt(jnp.sum((x @ covariance) * x, axis=1))
        margins = (2 * y - 1)[:, None] * ((x @ mean)[:, None] + spread[:, None] * nodes[None])
        fit = jnp.sum(jax.nn.softplus(-margins) @ weights) / jnp.sum(weights)
        prior = (jnp.trace(covariance) + mean @ mean) / 25 - jnp.linalg.slogdet(covariance)[1]
        return fit + prior / 2

    problem = pb.Composite(model, loss, pb.metric.GaussianMeanCovariance())
    return problem, {"mean": jnp.zeros(size), "factor": jnp.eye(size)}, None


def equation():
    """Poisson's equation, and the relative error of a solution at 2000 other points."""
    made = pb.pde.Equation(
        "poisson", "Poisson, 2-D",
        lambda u, x: pb.pde.laplacian(u, x) + 2 * jnp.pi**2 * jnp.prod(jnp.sin(jnp.pi * x)),
        lambda x: jnp.prod(jnp.sin(jnp.pi * x)), (2, 16, 1), 100, 40,
    )  # fmt: skip
    key, points = jax.random.key(0), jax.random.uniform(jax.random.key(1), (2000, 2))
    start = pb.pde.initialise(key, made.widths)
    return (made.problem(), start, made.points(key)), lambda p: made.errors(p, points)[1]


def classifier():
    images, labels = (jnp.asarray(a[:200]) for a in load_digits(return_X_y=True))
    mlp = lambda p, x: jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"]
    normal = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape) / shape[0] ** 0.5
    params = {"w": normal(0, 64, 32), "b": jnp.zeros(32), "v": normal(1, 32, 10)}
    return pb.Composite(mlp, metric=pb.metric.Categorical()), params, (images / 16, labels)


def main():
    search, marquardt = pb.step.LineSearch(), pb.step.LevenbergMarquardt()
    geodesic, (poisson, error) = pb.step.Geodesic(marquardt), equation()
    report("logistic regression, minimum + 1e-8", regression(), 1e-8, search, above_minimum=True)
    report("variational Bayes, minimum + 1e-6", variational(), 1e-6, search, above_minimum=True)
    report("an equation, loss 1e-5", poisson, 1e-5, geodesic, error=error)
    report("a classifier, loss 0.1", classifier(), 0.1, marquardt)


if __name__ == "__main__":
    main()
