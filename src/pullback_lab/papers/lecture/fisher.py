r"""The true Fisher matrix of a network is its Gauss-Newton matrix, for a likelihood in natural
parameters; the empirical Fisher matrix is not.

\[ \mathbb{E}_{t \sim p(\cdot|z)}[\nabla_w\ell\,\nabla_w\ell^\top] = J^\top\,\nabla^2_z\ell\,J
\ne \nabla_w\ell_i\,\nabla_w\ell_i^\top \text{ averaged over the training targets}. \]

"Only the true Fisher is related to the Hessian", that of the cost itself:

\[ \nabla^2_w J = F + \tfrac1N\sum_i\sum_a \partial_{z_a}\ell_i\,\nabla^2_w z_{ia}, \qquad
\mathbb E_{t\sim p(\cdot|z)}[\nabla^2_wJ] = F. \]

The second term is linear in the residuals. With targets that the model fits up to residuals of size
\(\epsilon\) the Hessian is \(F + O(\epsilon)\), and the empirical Fisher matrix is
\(O(\epsilon^2)\): it vanishes where the Hessian is needed most.

**Corrected.** The third line of the lecture's derivation, \(\mathbb E_x[J^\top\mathcal Dz\mathcal
Dz^\top J]\), drops the expectation over \(t \sim r(\cdot|x)\). With the only targets that are then
left, those of the data, it is the empirical Fisher matrix. Draws of \(t\) from the model
(`SampledFisher`) tend to \(F\) like \(D^{-1/2}\).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Row, Verdict, at_least, at_most, equals
from .._numbers import distance, generator

SAMPLES = 6
CLASSES = 3
RESIDUALS = (1e-2, 1e-3)
DRAWS = (256, 4096)


def network(params: tuple, x: Float[Array, "N 2"]) -> Float[Array, "N 3"]:
    """A small softmax network."""
    return jnp.tanh(x @ params[0]) @ params[1]


def cross_entropy(z: Float[Array, "N 3"], y: Array) -> Float[Array, " N"]:
    """Minus the log-probability of the targets."""
    return -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], axis=1)[:, 0]


def sampled(rng: np.random.Generator) -> tuple[tuple, Array, Array]:
    """Random parameters, inputs and targets."""
    params = tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 4), (4, CLASSES)))
    x = jnp.asarray(rng.standard_normal((SAMPLES, 2)))
    return params, x, jnp.asarray(rng.integers(0, CLASSES, SAMPLES))


def fishers(params: tuple, x: Float[Array, "N 2"], y: Array) -> tuple[Array, Array]:
    """The Fisher matrix by enumeration of all targets, and the empirical one, from gradients of
    log-probabilities.
    """
    flat, unravel = ravel_pytree(params)
    log_p = lambda w, x: jax.nn.log_softmax(network(unravel(w), x[None])[0])
    scores = jax.vmap(jax.jacrev(log_p), (None, 0))(flat, x)
    p = jnp.exp(jax.vmap(log_p, (None, 0))(flat, x))
    own = scores[jnp.arange(SAMPLES), y]
    return jnp.einsum("nk,nki,nkj->ij", p, scores, scores) / SAMPLES, own.T @ own / SAMPLES


def hessians(params: tuple, x: Float[Array, "N 2"], y: Array) -> tuple[Array, Array]:
    """The Hessian of the cost for the targets, and its mean over all targets of the model."""
    flat, unravel = ravel_pytree(params)
    log_p = lambda w, x: jax.nn.log_softmax(network(unravel(w), x[None])[0])
    second = -jax.vmap(jax.hessian(log_p), (None, 0))(flat, x)
    p = jnp.exp(jax.vmap(log_p, (None, 0))(flat, x))
    own = second[jnp.arange(SAMPLES), y]
    return jnp.mean(own, axis=0), jnp.einsum("nk,nkij->ij", p, second) / SAMPLES


def matrices_of(metrics: dict, loss: Any, params: tuple, batch: tuple) -> dict[str, np.ndarray]:
    """Metrics of the outputs, pulled back by the library."""
    pulled = jax.jit(
        lambda params: {
            name: pb.pullback(pb.Composite(network, loss=loss, metric=m), params, batch).matrix()
            for name, m in metrics.items()
        }
    )(params)
    return {name: np.asarray(matrix) for name, matrix in pulled.items()}


def near_a_fit(params: tuple, x: Array, residuals: Array) -> tuple[float, float]:
    """How far the true and the empirical Fisher matrix are from the Hessian of half the squared
    error, for given residuals.
    """
    flat, unravel = ravel_pytree(params)
    targets = network(params, x) + residuals
    loss = lambda z, y: jnp.sum((z - y) ** 2, axis=1) / 2
    family = pb.metric.Gaussian(1.0)
    kinds = {"true": family, "empirical": pb.metric.EmpiricalFisher(family)}
    found = matrices_of(kinds, loss, params, (x, targets))
    cost = lambda w: jnp.mean(loss(network(unravel(w), x), targets))
    hessian = np.asarray(jax.jit(jax.hessian(cost))(flat))
    return distance(found["true"], hessian), distance(found["empirical"], hessian)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A network with random data."""
    rng = generator(key)
    params, x, y = sampled(rng)
    family = pb.metric.Categorical()
    kinds = {
        "true": family,
        "hessian": pb.metric.LossHessian(family),
        "empirical": pb.metric.EmpiricalFisher(family),
    }
    matrices = matrices_of(kinds, cross_entropy, params, (x, y))
    true, empirical = (np.asarray(m) for m in jax.jit(fishers)(params, x, y))
    hessian, mean_hessian = (np.asarray(m) for m in jax.jit(hessians)(params, x, y))
    ranks = [int(np.linalg.matrix_rank(m, tol=1e-10)) for m in (true, empirical)]
    noise = jnp.asarray(rng.standard_normal((SAMPLES, CLASSES)))
    fits = np.array([near_a_fit(params, x, size * noise) for size in RESIDUALS])
    rows = (
        at_most(
            "the Fisher matrix of the outputs pulled back is E[∇ℓ ∇ℓᵀ] over targets of the model",
            distance(matrices["true"], true),
            1e-13,
        ),
        at_most("it is the Gauss-Newton Hessian", distance(matrices["hessian"], true), 1e-13),
        at_most(
            "and the mean of the Hessian of the cost over targets of the model",
            distance(matrices["true"], mean_hessian),
            1e-12,
        ),
        at_least(
            "the empirical Fisher matrix is another one: relative difference",
            distance(empirical, true),
            0.1,
        ),
        equals(
            "its rank is the number of samples at most; below that of the true one by",
            ranks[0] - ranks[1],
            SAMPLES * (CLASSES - 2),
        ),
        *_fit_rows(fits),
        at_most(
            "EmpiricalFisher pulled back is the outer product of the gradients",
            distance(matrices["empirical"], empirical),
            1e-13,
            Role.CONTROL,
        ),
        at_least(
            "the Hessian for the targets of the data is another matrix: relative difference",
            distance(hessian, mean_hessian),
            0.05,
            Role.CONTROL,
        ),
    )
    return Measured(rows)


def _fit_rows(fits: np.ndarray) -> tuple[Row, ...]:
    """The rows on targets that are nearly fitted; one row of `fits` for each size of residuals."""
    order = np.log(fits[0, 0] / fits[1, 0]) / np.log(RESIDUALS[0] / RESIDUALS[1])
    small = f"residuals of {RESIDUALS[-1]:g}"
    return (
        at_most(f"{small}: the true Fisher matrix is the Hessian, off by", fits[-1, 0], 0.05),
        at_least(f"{small}: the empirical one is not, off by", fits[-1, 1], 0.95),
        at_most(
            "the first falls in proportion to the residuals, |order - 1|",
            abs(order - 1),
            0.1,
            Role.CONTROL,
        ),
    )


def run_derivation(budget: Budget, key: PRNGKeyArray) -> Measured:
    """The lines of the derivation, each computed on its own."""
    rng = generator(key)
    params, x, y = sampled(rng)
    family = pb.metric.Categorical()
    first = matrices_of({"F": family}, cross_entropy, params, (x, y))["F"]
    line = matrices_of(
        {"printed": pb.metric.EmpiricalFisher(family)}, cross_entropy, params, (x, y)
    )["printed"]
    last, _ = jax.jit(fishers)(params, x, y)
    errors = {}
    repeats = 8 * budget.seeds
    for draws in DRAWS:
        keys = jax.random.split(jax.random.fold_in(key, draws), repeats)
        pulled = jax.jit(
            lambda key, draws=draws: pb.pullback(
                pb.Composite(
                    network, loss=cross_entropy, metric=pb.metric.SampledFisher(family, key, draws)
                ),
                params,
                (x, y),
            ).matrix()
        )
        errors[draws] = np.sqrt(np.mean([distance(pulled(one), first) ** 2 for one in keys]))
    order = float(np.log(errors[DRAWS[0]] / errors[DRAWS[1]]) / np.log(DRAWS[1] / DRAWS[0]))
    return Measured(
        (
            at_most(
                "third line as printed, no average over t: off the first line by",
                distance(line, first),
                1e-3,
            ),
            at_most(
                "with the average over t ~ r, all targets counted: off by",
                distance(last, first),
                1e-13,
                Role.CORRECTED,
            ),
            at_most(
                f"with {DRAWS[1]} draws of t ~ r (SampledFisher): off by",
                errors[DRAWS[1]],
                4 * np.sqrt(CLASSES / DRAWS[1]),
                Role.CORRECTED,
            ),
            at_most(
                "and the error falls like draws to the -1/2: |order - 1/2|",
                abs(order - 0.5),
                0.25,
                Role.CORRECTED,
            ),
        )
    )


CLAIMS = (
    Claim(
        name="true-fisher",
        source="lecture",
        place="Fisher information matrix",
        quotation=(
            "Only the true Fisher is related to the Hessian. Using the empirical Fisher to "
            "approximate the Hessian is a common mistake"
        ),
        statement=(
            "The pullback of the Fisher metric is the covariance of the scores over targets drawn "
            "from the model, the Gauss-Newton Hessian, the mean Hessian of the cost over those "
            "targets, and the Hessian itself near a fit. The empirical Fisher matrix, from the "
            "training targets, is none of these."
        ),
        verdict=Verdict.HOLDS,
        run=run,
    ),
    Claim(
        name="fisher-derivation",
        source="lecture",
        place="Fisher information matrix, third line of the derivation of F_w",
        quotation="We can simplify the pullback metric",
        statement=(
            "F_w = E_x[Jᵀ E_t[Dz Dzᵀ] J] = E_x[Jᵀ Dz Dzᵀ J] = E_x[Dw Dwᵀ], with x from the data."
        ),
        verdict=Verdict.CORRECTED,
        stands=True,
        run=run_derivation,
        correction=(
            "From the third line on the average over t ~ r(· | x) is missing. Without it, with the "
            "targets of the data, the line is the empirical Fisher matrix, of which the next slide "
            "warns. The final formula of that slide has the average again."
        ),
    ),
)
