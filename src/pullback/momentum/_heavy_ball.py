r"""`HeavyBall`: \(d = \mu d_- - \delta\), whatever the metric of the batch determines."""

from typing import ClassVar

import jax.numpy as jnp

from .._base.checks import positive
from .._base.types import Scalar
from ._base import AbstractMomentum


class HeavyBall(AbstractMomentum):
    """Momentum that adds a multiple of the last direction to the natural gradient step.

    ```python
    opt = pb.NaturalGradientDescent(problem, momentum=pb.HeavyBall(0.9))
    fit = pb.fit(opt, params, (x, y), steps=10)
    ```
    """

    mu: float | Scalar
    numbers_are_data: ClassVar[bool] = True

    def __init__(self, mu: float | Scalar = 0.9):
        """Choose the momentum.

        **Arguments:**

        - `mu`: at least 0 and below 1.
        """
        positive("HeavyBall", "mu", mu, below=1, zero=True)
        self.mu = mu

    def direction(self, sub, memory):
        return jnp.asarray(self.mu, sub.dtype) * memory - sub.solution
