r"""Rules for the weights \(\omega_k\) of several terms, applied between two steps.

With \(s_k\) the size of term k, by its gradient, \(\|J_k^\top c_k\|\), or by its tangent kernel,
\(\mathrm{tr}(A_k A_k^\top)\), both without the weight,

\[ \omega_k \leftarrow \beta\,\omega_k + (1 - \beta)\, \frac{\sum_j s_j}{s_k} , \]

so that all \(\omega_k s_k\) become alike. A term of weight zero is absent and stays so; a term
whose size is zero, or not finite, keeps its weight. Within a step the weights are constants.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._base.checks import positive
from .._base.show import settings
from .._base.types import Scalar


class AbstractWeighting(eqx.Module):
    """A rule for the weights of several terms. To write one, give `__call__`, or pass a function.

    ```python
    opt = pb.NaturalGradientDescent(problem, weighting=pb.weights.ByGradientNorm(memory=0.9))
    ```
    """

    numbers_are_data: ClassVar[bool] = True

    def __repr__(self) -> str:
        return settings(self, first=True)

    @abc.abstractmethod
    def __call__(self, losses: PyTree, norms: PyTree, traces: PyTree, weights: PyTree) -> Any:
        """Return the weights of the next step.

        Each argument has one number per term, by name or by place, without the weight of the term.
        What a rule does not use is not computed.

        **Arguments:**

        - `losses`: L_k.
        - `norms`: the Euclidean norms of the gradients of L_k.
        - `traces`: the traces of the kernels A_k A_kᵀ.
        - `weights`: the weights of this step.
        """


class ByGradientNorm(AbstractWeighting):
    """Weights that make the gradients of all terms equally long."""

    memory: float | Scalar

    def __init__(self, memory: float | Scalar = 0.9):
        """Choose how fast the weights follow.

        **Arguments:**

        - `memory`: β, at least 0 and below 1; 0 forgets the weights before.
        """
        positive("ByGradientNorm", "memory", memory, below=1, zero=True)
        self.memory = memory

    def __call__(self, losses, norms, traces, weights):
        return _balanced(norms, weights, self.memory)


class ByTrace(AbstractWeighting):
    """Weights that make the traces of the tangent kernels of all terms equally large.

    The traces are exact, and take the rows of A, a block at a time.
    """

    memory: float | Scalar

    def __init__(self, memory: float | Scalar = 0.9):
        """Choose how fast the weights follow.

        **Arguments:**

        - `memory`: β, at least 0 and below 1; 0 forgets the weights before.
        """
        positive("ByTrace", "memory", memory, below=1, zero=True)
        self.memory = memory

    def __call__(self, losses, norms, traces, weights):
        return _balanced(traces, weights, self.memory)


def _balanced(sizes: PyTree, weights: PyTree, memory: float | Scalar) -> PyTree:
    """Return weights in inverse proportion to sizes, averaged with those before."""
    known = lambda size, weight: jnp.isfinite(size) & (size > 0) & (weight > 0)
    counted = jax.tree.map(lambda s, w: jnp.where(known(s, w), s, 0.0), sizes, weights)
    total = jnp.sum(jnp.stack(jax.tree.leaves(counted)))

    def one(size, weight):
        beta = jnp.asarray(memory, weight.dtype)
        found = (total / jnp.where(known(size, weight), size, 1.0)).astype(weight.dtype)
        return jnp.where(known(size, weight), beta * weight + (1 - beta) * found, weight)

    return jax.tree.map(one, sizes, weights)
