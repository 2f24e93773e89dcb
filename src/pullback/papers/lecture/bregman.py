r"""Bregman divergences of a log-partition function \(A\) are KL divergences, with the arguments reversed:

\[ D_A(z, z') = A(z) - A(z') - \langle\nabla A(z'), z - z'\rangle = \mathrm{KL}(p_{z'} \,\|\, p_z). \]

**Corrected.** The lecture says that \(D_A\) is KL, where its proximal term is \(\mathrm{KL}(p_u \| p_z)\): the Hessians on the diagonal
agree, the functions do not. It also says that any convex loss will do for \(\phi\); a metric needs a strictly convex one, and the
cross-entropy of logits is not: its Hessian has the kernel \((1, \dots, 1)\).
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import pullback as pb

from .._example import Example, Row, at_least, at_most, distance

A, B = np.array([0.3, -0.8, 1.1]), np.array([-0.6, 0.9, 0.2])


def kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p || q) of two vectors of probabilities.

    **Arguments:**

    - `p`, `q`: probabilities.
    """
    return float(np.sum(p * np.log(p / q)))


def measure() -> Iterator[Row]:
    """Three classes."""
    bregman, family = pb.metric.Bregman(jax.nn.logsumexp), pb.metric.ExponentialFamily(jax.nn.logsumexp)
    categorical = pb.metric.Categorical()

    @jax.jit
    def compute(a, b):
        hessian = jax.hessian(lambda z: categorical.divergence(a, z))(a)
        proximal = [family.divergence(a, b), categorical.divergence(a, b)]
        return bregman.divergence(a, b), proximal, [bregman.matrix(a), family.matrix(a), hessian]

    d, proximal, hessians = compute(jnp.asarray(A), jnp.asarray(B))
    p, q = (np.exp(z) / np.exp(z).sum() for z in (A, B))
    fisher, values = np.diag(p) - np.outer(p, p), np.linalg.eigvalsh(np.asarray(hessians[0]))
    yield at_most("D_A(a, b) = KL(p_b || p_a), off by", abs(float(d) - kl(q, p)), 1e-14)
    yield at_least("D_A(a, b) is not KL(p_a || p_b): they differ by", abs(float(d) - kl(p, q)), 0.02)
    gap = max(abs(float(value) - kl(p, q)) for value in proximal)
    yield at_most("the library's proximal term, divergence(a, b), is KL(p_a || p_b), off by", gap, 1e-14)
    yield at_most("the Hessians agree: largest error", max(distance(h, fisher) for h in hessians), 1e-13)
    yield at_most("smallest eigenvalue of the Hessian of the cross-entropy is 0, off by", abs(values[0]), 1e-14)
    yield at_least("second smallest", values[1], 0.1)


EXAMPLE = Example(
    "bregman-order",
    "Grosse, lecture 3, Bregman divergences, corrected",
    "The Bregman divergence of a log-partition function is the KL divergence with its arguments reversed; the metric is the same, the "
    "proximal term is not. The cross-entropy of logits is convex, not strictly, and gives a singular metric.",
    measure,
)
