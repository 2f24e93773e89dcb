r"""One factorisation, many dampings: \(V\,\mathrm{diag}(s/(s^2 + λ))\,U^\top r\) for any λ ≥ 0 from
one decomposition of \(A\).

Singular values that the undamped inverse drops stay dropped, so that λ → 0 leads to the
Moore-Penrose inverse and not to its rounding errors; λ = 0 *is* that inverse. A covector outside
the range is divided by λ, as under `Tikhonov`, and left alone by λ = 0, as under `MoorePenrose`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Scalar
from ._base import AbstractFactors, Spectrum


class Redamped(AbstractFactors):
    """Factors of A, damped after they were computed."""

    undamped: AbstractFactors
    inner: Any
    """The same factors with the damped filter, and `solve_in_range`."""
    kernel: Scalar
    """1/λ, and 0 for λ = 0."""

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.undamped.spectrum

    @property
    def knows_row_space(self):
        return self.undamped.knows_row_space

    @property
    def kernel_exact(self):
        return self.undamped.kernel_exact

    @property
    def places(self):
        return self.undamped.places

    @property
    def blurred(self):
        return self.undamped.blurred

    def solve_lifted(self, r):
        return self.inner.solve_lifted(r)

    def solve_covector(self, g):
        outside = without(self.project, g)
        return self.inner.solve_in_range(g - outside) + self.kernel * outside

    def project(self, eta):
        return self.undamped.project(eta)


def without(project: Callable[[Array], Array], g: Array) -> Array:
    """Return what a projection takes off g, twice: h₀ may be large, and rounding comes with it."""
    rest = g - project(g)
    return rest - project(rest)


def damped_filter(s: Float[Array, " k"], kept: Array, damping: Scalar) -> Float[Array, " k"]:
    """Return 1/(s² + λ) where kept, else 0."""
    return jnp.where(kept, 1 / jnp.where(kept, s * s + damping, 1.0), 0.0)


def inverse_damping(damping: Scalar) -> Scalar:
    """Return 1/λ, and 0 for λ = 0."""
    return jnp.where(damping > 0, 1 / jnp.where(damping > 0, damping, 1.0), 0.0)
