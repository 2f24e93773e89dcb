r"""Gradient and Fisher matrix of independent logistic variables in their logits \(s\), labels \(y =
\pm1\):

\[ [\nabla L(s)]_i = -y_i\,(1 - \varphi(y_i s_i)), \qquad F(s)_{ij} = \delta_{ij}\,\varphi(s_i)\,(1
- \varphi(s_i)). \]

\(F\) is the expectation of \(\nabla L\,\nabla L^\top\) over labels drawn from the model. Here it is
taken literally, over all \(2^N\) label vectors, and compared with the formula and with the metric
of the library. The off-diagonal entries vanish because each score has mean zero, eq. (13).

The lemma holds. In its proof eq. (12) loses a factor \(s_i\) inside \(\varphi\); see `typos`.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import pullback as pb

from .._claim import Budget, Claim, Measured, Verdict, at_most
from .._numbers import distance, generator
from ._logistic import phi


def score(s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Eq. (9)."""
    return -y * (1 - phi(y * s))


def enumerated(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the second moment of the score, over all label vectors."""
    mean = np.zeros(s.size)
    second = np.zeros((s.size, s.size))
    for labels in itertools.product((-1.0, 1.0), repeat=s.size):
        y = np.array(labels)
        g = score(s, y)
        probability = np.prod(phi(y * s))
        mean += probability * g
        second += probability * np.outer(g, g)
    return mean, second


def run(budget: Budget, key: PRNGKeyArray) -> Measured:
    """Gradient by automatic differentiation, Fisher matrix by enumeration."""
    rng = generator(key)
    size = 12 if budget.full else 6
    s = 2 * rng.standard_normal(size)
    y = rng.choice([-1.0, 1.0], size)
    gradient = jax.jit(jax.grad(lambda z, y: jnp.sum(jnp.log1p(jnp.exp(-y * z)))))(
        jnp.asarray(s), jnp.asarray(y)
    )
    mean, second = enumerated(s)
    formula = np.diag(phi(s) * (1 - phi(s)))
    apply = jax.jit(jax.vmap(pb.metric.Bernoulli().apply, in_axes=(None, 1), out_axes=1))
    metric = np.asarray(apply(jnp.asarray(s), jnp.eye(size)))
    root = pb.metric.Bernoulli().root(jnp.asarray(s))
    unit = np.stack([np.asarray(root.unit(e)) for e in jnp.eye(size)], axis=1)
    factor = unit * np.exp(np.asarray(root.log_scale))
    rows = (
        at_most(
            "eq. (9) against automatic differentiation", distance(score(s, y), gradient), 1e-14
        ),
        at_most(
            "eq. (10) against the sum over all label vectors", distance(formula, second), 1e-14
        ),
        at_most("eq. (13): mean score", np.abs(mean).max(), 1e-15),
        at_most(
            "the library's Bernoulli metric against the same sum", distance(metric, second), 1e-14
        ),
        at_most(
            "its root S, by which the library solves: SSᵀ against the same sum",
            distance(factor @ factor.T, second),
            1e-14,
        ),
    )
    return Measured(rows)


CLAIM = Claim(
    name="depth-lemma-1",
    source="depth",
    place="appendix A, Lemma 1, eqs. (9) to (14)",
    quotation="then the gradient and the Fisher information matrix are the following",
    statement=(
        "In its logits a logistic model has the gradient -y(1 - φ(ys)) and a diagonal Fisher "
        "matrix φ(s)(1 - φ(s))."
    ),
    verdict=Verdict.HOLDS,
    run=run,
)
