r"""The two parametrisations of the source, B.3, spelled out: the loss (34), the gradient (35) and
the averaged Fisher matrix (36) of the linear model,

\[ \nabla_\beta L = -\textstyle\sum_n y_n x_n(1 - \varphi(y_n x_n\cdot\beta)), \qquad F(\beta) =
\tfrac1N\sum_n x_n x_n^\top\,\varphi(x_n\cdot\beta)(1 - \varphi(x_n\cdot\beta)), \]

and \(J = (\partial\beta/\partial w_1, \dots, \partial\beta/\partial w_L)\), \(F(w) = J^\top
F(\beta)J\), (38) and (40), of the diagonal one. The Fisher matrices are also taken literally, as
expectations of the outer product of the score over labels drawn from the model.

These hold. Between their lines (32), (36, line 4), (37) and (39) are misprinted; see `typos`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Verdict, at_most
from .._numbers import distance, generator
from ._logistic import DIAGONAL, LINEAR, batch, fisher, gradient, phi, separable
from .diagonal_network import jacobian


def expected_fisher(loss, params: jnp.ndarray, logits: np.ndarray) -> np.ndarray:
    """The mean over samples of the expectation, over both labels, of the outer product of the
    score.
    """
    score = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, None)))
    total = 0.0
    for label in (1.0, -1.0):
        g = np.asarray(score(params, jnp.arange(len(logits)), label))
        total = total + g.T @ (phi(label * logits)[:, None] * g)
    return np.asarray(total) / len(logits)


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """A linear model and a diagonal network of three layers."""
    rng = generator(key)
    x, y = separable(rng, 10, 4)
    w = rng.standard_normal((3, 4))
    beta = w.prod(axis=0)
    inputs = jnp.asarray(x)

    def loss(flat, i, label):
        return jnp.log1p(jnp.exp(-label * inputs[i] @ jnp.prod(flat.reshape(-1, 4), axis=0)))

    total = jax.jit(
        jax.grad(
            lambda flat: jnp.sum(
                jax.vmap(loss, in_axes=(None, 0, 0))(flat, jnp.arange(10), jnp.asarray(y))
            )
        )
    )
    linear, deep = (expected_fisher(loss, jnp.asarray(p), x @ beta) for p in (beta, w.ravel()))
    j = jacobian(w)
    rows = (
        at_most(
            "(35) against automatic differentiation",
            distance(gradient(x, y, beta), total(jnp.asarray(beta))),
            1e-13,
        ),
        at_most(
            "(36), last line, against the expectation of the score",
            distance(fisher(x, beta) / 10, linear),
            1e-13,
        ),
        at_most(
            "the library's metric of the linear model",
            distance(pb.pullback(LINEAR, jnp.asarray(beta), batch(x, y)).matrix(), linear),
            1e-13,
        ),
        at_most(
            "(40), diagonal network, against the expectation of the score",
            distance(j.T @ fisher(x, beta) @ j / 10, deep),
            1e-13,
        ),
        at_most(
            "the library's metric of the diagonal network",
            distance(pb.pullback(DIAGONAL, jnp.asarray(w), batch(x, y)).matrix(), deep),
            1e-13,
        ),
        at_most(
            "∇_w = Jᵀ∇_β against automatic differentiation",
            distance(j.T @ gradient(x, y, beta), total(jnp.asarray(w.ravel()))),
            1e-13,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-parametrisations",
    source="depth",
    place="appendix B.3, eqs. (32) to (40)",
    statement=(
        "Gradient and averaged Fisher matrix of the linear model are (35) and (36); of a "
        "diagonal network F(w) = JᵀF(β)J."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
