r"""Products of matrices, \(\beta = W_1 \cdots W_L\), written out in NumPy.

With \(A_l = W_1\cdots W_{l-1}\) and \(B_l = W_{l+1}\cdots W_L\) a motion \(X_1, \dots, X_L\) of the
factors moves the product by \(\sum_l A_l X_l B_l\). On matrices ravelled by rows \(J_l = A_l
\otimes B_l^\top\); the source stacks columns and has \(B_l^\top \otimes A_l\).
"""

import functools
import itertools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def product(factors: Sequence[Array]) -> Array:
    """The product of the factors."""
    return functools.reduce(jnp.matmul, factors)


def sides(factors: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each factor the product of those before it and of those after it."""
    multiply = lambda some, size: functools.reduce(np.matmul, some, np.eye(size))
    return [
        (multiply(factors[:i], factors[0].shape[0]), multiply(factors[i + 1 :], w.shape[1]))
        for i, w in enumerate(factors)
    ]


def jacobian(factors: Sequence[np.ndarray]) -> np.ndarray:
    """∂β/∂(W₁, ..., W_L), matrices ravelled by rows."""
    return np.hstack([np.kron(a, b.T) for a, b in sides(factors)])


def motion(factors: Sequence[np.ndarray], updates: Sequence[np.ndarray]) -> np.ndarray:
    """How the product moves when the factors do."""
    return sum((a @ x @ b for (a, b), x in zip(sides(factors), updates, strict=True)), np.zeros(()))


def gaussian(rng: np.random.Generator, sizes: Sequence[int]) -> list[np.ndarray]:
    """Factors with independent entries of variance one over the inner size."""
    return [rng.standard_normal((m, n)) / np.sqrt(m) for m, n in itertools.pairwise(sizes)]
