r"""The true Fisher matrix of a network is its Gauss-Newton matrix, for a likelihood in natural parameters; the empirical Fisher matrix is
not.

\[ \mathbb{E}_{t \sim p(\cdot|z)}[\nabla_w\ell\,\nabla_w\ell^\top] = J^\top\,\nabla^2_z\ell\,J
\ne \nabla_w\ell_i\,\nabla_w\ell_i^\top \text{ averaged over the training targets}. \]
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

import pullback as pb

from .._example import Example, Row, at_least, at_most, distance

SAMPLES, CLASSES = 6, 3


def network(params: tuple, x: Float[Array, "N 2"]) -> Float[Array, "N 3"]:
    """A small softmax network.

    **Arguments:**

    - `params`: two matrices.
    - `x`: inputs.
    """
    return jnp.tanh(x @ params[0]) @ params[1]


def fishers(params: tuple, x: Float[Array, "N 2"], y: Array) -> tuple[Array, Array]:
    """The Fisher matrix by enumeration of all targets, and the empirical one, from gradients of log-probabilities.

    **Arguments:**

    - `params`: the parameters.
    - `x`: inputs.
    - `y`: training targets.
    """
    flat, unravel = ravel_pytree(params)
    log_p = lambda w, x: jax.nn.log_softmax(network(unravel(w), x[None])[0])
    scores = jax.vmap(jax.jacrev(log_p), (None, 0))(flat, x)
    p = jnp.exp(jax.vmap(log_p, (None, 0))(flat, x))
    own = scores[jnp.arange(SAMPLES), y]
    return jnp.einsum("nk,nki,nkj->ij", p, scores, scores) / SAMPLES, own.T @ own / SAMPLES


def measure() -> Iterator[Row]:
    """A network with random data."""
    rng = np.random.default_rng(9)
    params = tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((2, 4), (4, CLASSES)))
    x, y = jnp.asarray(rng.standard_normal((SAMPLES, 2))), jnp.asarray(rng.integers(0, CLASSES, SAMPLES))
    kinds = {
        "true": pb.metric.Categorical(),
        "hessian": pb.metric.LossHessian(pb.metric.Categorical()),
        "empirical": pb.metric.EmpiricalFisher(pb.metric.Categorical()),
    }
    loss = lambda z, y: -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], axis=1)[:, 0]
    matrices = jax.jit(
        lambda params: {
            name: pb.pullback(pb.Composite(network, loss=loss, metric=m), params, (x, y)).matrix() for name, m in kinds.items()
        }
    )(params)
    true, empirical = jax.jit(fishers)(params, x, y)
    yield at_most(
        "Categorical pulled back is the Fisher matrix by enumeration: relative error", distance(matrices["true"], true), 1e-13
    )
    yield at_most("LossHessian pulled back (Gauss-Newton) is the same", distance(matrices["hessian"], true), 1e-13)
    yield at_most(
        "EmpiricalFisher pulled back is the outer product of the gradients", distance(matrices["empirical"], empirical), 1e-13
    )
    yield at_least("which is another matrix: relative difference from the true Fisher", distance(empirical, true), 0.5)


EXAMPLE = Example(
    "true-fisher",
    "Grosse, lecture 3, Fisher information matrix",
    "The true Fisher matrix of a softmax network is its Gauss-Newton matrix. The empirical Fisher matrix, from the training targets, is not.",
    measure,
)
