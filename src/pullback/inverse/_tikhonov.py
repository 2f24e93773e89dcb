r"""`Tikhonov`: \(h(s) = 1/(s^2 + λ)\), \(h_0 = 1/λ\); damping, because the user asks for it.

It tends to `MoorePenrose` as λ → 0 on the range of \(G\); a covector with a part outside the range
grows like 1/λ there.
"""

from typing import Any, ClassVar

import jax.core
import jax.numpy as jnp

from .._base.checks import positive
from .._base.types import Scalar
from ._base import AbstractInverse


class Tikhonov(AbstractInverse):
    """The damped inverse (G + λW)⁻¹, with W the gauge.

    ```python
    inverse = pb.Tikhonov(1e-3)
    ng = pb.natural_gradient(problem, params, (x, y), inverse=inverse)
    ```
    """

    damping: float | Scalar
    gauge: Any = None
    truncates: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True

    def __init__(self, damping: float | Scalar, gauge: Any = None):
        """Choose a damped inverse.

        **Arguments:**

        - `damping`: λ > 0.
        - `gauge`: the inner product W on the parameters, as for `MoorePenrose`; defaults to the
            Euclidean one. `gauge={"hidden": 10.0, "last": 1.0}` damps two groups of leaves with
            10 λ and λ.
        """
        positive("Tikhonov", "damping", damping, zero=True)
        if not isinstance(damping, jax.core.Tracer) and not damping > 0:
            raise ValueError(
                "Tikhonov(damping=0) has no inverse on the kernel; the undamped inverse is "
                "MoorePenrose()."
            )
        self.damping = damping
        self.gauge = gauge

    def filter(self, s, cutoff):
        return 1 / (s * s + jnp.asarray(self.damping, s.dtype))

    @property
    def kernel(self):
        return 1 / self.damping
