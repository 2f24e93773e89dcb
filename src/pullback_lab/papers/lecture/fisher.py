r"""The true Fisher matrix of a network is its Gauss-Newton matrix, for a likelihood in natural
parameters; the empirical Fisher matrix is not.

\[ \mathbb{E}_{t \sim p(\cdot|z)}[\nabla_w\ell\,\nabla_w\ell^\top] = J^\top\,\nabla^2_z\ell\,J
\ne \nabla_w\ell_i\,\nabla_w\ell_i^\top \text{ averaged over the training targets}. \]
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Role, Verdict, at_least, at_most, equals
from .._numbers import distance, generator

SAMPLES = 6
CLASSES = 3


def network(params: tuple, x: Float[Array, "N 2"]) -> Float[Array, "N 3"]:
    """A small softmax network."""
    return jnp.tanh(x @ params[0]) @ params[1]


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


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A network with random data."""
    rng = generator(key)
    params = tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 4), (4, CLASSES)))
    x = jnp.asarray(rng.standard_normal((SAMPLES, 2)))
    y = jnp.asarray(rng.integers(0, CLASSES, SAMPLES))
    kinds = {
        "true": pb.metric.Categorical(),
        "hessian": pb.metric.LossHessian(pb.metric.Categorical()),
        "empirical": pb.metric.EmpiricalFisher(pb.metric.Categorical()),
    }
    loss = lambda z, y: -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], axis=1)[:, 0]
    matrices = jax.jit(
        lambda params: {
            name: pb.pullback(pb.Composite(network, loss=loss, metric=m), params, (x, y)).matrix()
            for name, m in kinds.items()
        }
    )(params)
    true, empirical = jax.jit(fishers)(params, x, y)
    ranks = [int(np.linalg.matrix_rank(np.asarray(m), tol=1e-10)) for m in (true, empirical)]
    outer = distance(matrices["empirical"], empirical)
    return Measured(
        (
            at_most(
                "the Fisher matrix of the outputs pulled back is E[∇ℓ ∇ℓᵀ] over targets of the "
                "model",
                distance(matrices["true"], true),
                1e-13,
            ),
            at_most("it is the Gauss-Newton Hessian", distance(matrices["hessian"], true), 1e-13),
            at_least(
                "the empirical Fisher matrix is another one: relative difference",
                distance(empirical, true),
                0.5,
            ),
            equals(
                "its rank is the number of samples at most; below that of the true one by",
                ranks[0] - ranks[1],
                SAMPLES * (CLASSES - 2),
            ),
            at_most(
                "EmpiricalFisher pulled back is the outer product of the gradients",
                outer,
                1e-13,
                Role.CONTROL,
            ),
        )
    )


CLAIM = Claim(
    name="true-fisher",
    source="lecture",
    place="Fisher information matrix",
    quotation="Only the true Fisher is related to the Hessian.",
    statement=(
        "The pullback of the Fisher metric is the covariance of the scores over targets drawn "
        "from the model, and the Gauss-Newton Hessian. The empirical Fisher matrix, from the "
        "training targets, is neither."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
