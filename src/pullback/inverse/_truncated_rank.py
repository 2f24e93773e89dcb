r"""`TruncatedRank`: \(h(s) = 1/s^2\) for the k largest singular values, 0 for the others."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from ._base import AbstractInverse, inverse_square


class TruncatedRank(AbstractInverse):
    """The Moore-Penrose inverse of the best approximation of A of rank at most k.

    ```python
    inverse = pb.TruncatedRank(3)
    ng = pb.natural_gradient(problem, params, (x, y), inverse=inverse)
    ```
    """

    k: int = eqx.field(static=True)
    gauge: Any = None
    homogeneous: ClassVar[bool] = True
    pseudo_inverse: ClassVar[bool] = True

    def __init__(self, k: int, gauge: Any = None):
        """Choose a truncated inverse.

        **Arguments:**

        - `k`: how many singular values to keep, at most; numerically zero ones never are.
        - `gauge`: the inner product on the parameters; defaults to the Euclidean one.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise ValueError(
                f"TruncatedRank(k={k!r}): k must be an integer >= 0, e.g. TruncatedRank(10)."
            )
        self.k = k
        self.gauge = gauge

    def kept(self, s, cutoff):
        return (s > cutoff) & (jnp.arange(s.shape[0]) < self.k)

    def filter(self, s, cutoff):
        return inverse_square(s, self.kept(s, cutoff))
