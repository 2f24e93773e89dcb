r"""`MoorePenrose`: \(h(s) = 1/s^2\) above the cut-off, 0 below; of minimum norm in the gauge."""

from typing import Any, ClassVar

import jax.numpy as jnp

from .._base.checks import positive
from .._base.types import Scalar
from ._base import AbstractInverse, inverse_square, numerical_zero


class MoorePenrose(AbstractInverse):
    """The Moore-Penrose inverse G⁺, of minimum norm in the gauge; undamped.

    ```python
    inverse = pb.MoorePenrose(rtol=1e-10)
    ng = pb.natural_gradient(problem, params, (x, y), inverse=inverse)
    ```
    """

    rtol: float | Scalar | None = None
    gauge: Any = None
    homogeneous: ClassVar[bool] = True
    pseudo_inverse: ClassVar[bool] = True
    differentiable: ClassVar[bool] = True

    def __init__(self, rtol: float | Scalar | None = None, gauge: Any = None):
        """Choose the Moore-Penrose inverse.

        **Arguments:**

        - `rtol`: singular values of A at or below `rtol · s_max` count as zero; defaults to
            max(m, P) · eps.
        - `gauge`: the inner product on the parameters: a positive number, a pytree like the
            parameters or a prefix of one with numbers, a matrix, or another pullback metric;
            defaults to the Euclidean one.
        """
        if rtol is not None:
            positive("MoorePenrose", "rtol", rtol, zero=True)
        self.rtol = rtol
        self.gauge = gauge

    def cutoff(self, largest, shape):
        if self.rtol is None:
            return numerical_zero(largest, shape)
        return jnp.asarray(self.rtol, largest.dtype) * largest

    def filter(self, s, cutoff):
        return inverse_square(s, self.kept(s, cutoff))

    @property
    def truncates(self):
        return self.rtol is not None
