r"""`Krylov` on parameters that stay sharded: LSMR with vectors leaf by leaf, never ravelled.

The iteration is that of `_krylov.py`: \(B = [A; \sqrt λ I]\), minimum norm from a start at zero,
repeated once on the true residual; \(G^+ g = B^+ (B^\top)^+ g\). In one step there is one product
with \(A\) and one with \(A^\top\) (`_rows/leafwise.py`).
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.leaves import Vector
from .._base.types import Scalar
from .._base.vector import norm
from .._rows.leafwise import LeafwiseRows
from ._base import Spectrum
from ._lsmr import lsmr


class LeafwiseFactors(eqx.Module):
    """Nothing is factorised: the rows and the tolerances."""

    rows: LeafwiseRows
    damping: Float[Array, ""] | None
    rtol: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    @property
    def spectrum(self) -> Spectrum:
        """What is known of the singular values: nothing."""
        return Spectrum.unknown(self.rows.dtype)

    def solve_lifted(self, r: Float[Array, " m"]) -> Vector:
        """Return A⁺(e^ℓ r), of the r on the rows of this device."""
        return self._solve(self._stack(self.rows.scale * r))

    def solve_covector(self, g: Vector) -> Vector:
        """Return G⁺ g."""
        norms = self._norm_stacked, self.rows.leaves.norm
        return self._solve(self._least_squares(self._adjoint, self._forward, norms, g))

    def project(self, v: Vector) -> Vector:
        """Return the projection of a vector on the range of Aᵀ; NaN if damped."""
        if self.damping is not None:
            return jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), v)
        return self._solve(self._forward(v))

    def _solve(self, b: tuple[Any, ...]) -> Vector:
        norms = self.rows.leaves.norm, self._norm_stacked
        return self._least_squares(self._forward, self._adjoint, norms, b)

    def _least_squares(self, function, adjoint, norms, b):
        solve = lambda b, rtol: lsmr(function, adjoint, norms, b, rtol, self.max_steps)[0]
        first = solve(b, self.rtol)
        # The correction is small; half of the digits of it are all that can be had.
        rest = jax.tree.map(jnp.subtract, b, function(first))
        return jax.tree.map(jnp.add, first, solve(rest, math.sqrt(self.rtol)))

    def _stack(self, y: Array) -> tuple[Any, ...]:
        if self.damping is None:
            return (y,)
        # Zeros that lie where the parameters do.
        zeros = lambda x: jnp.zeros_like(x, dtype=y.dtype)
        return y, jax.tree.map(zeros, self.rows.here)

    def _forward(self, v: Vector) -> tuple[Any, ...]:
        image = self.rows.mv(v)
        return (image,) if self.damping is None else (image, self._rooted(v))

    def _adjoint(self, y: tuple[Any, ...]) -> Vector:
        image = self.rows.rmv(y[0])
        return image if self.damping is None else jax.tree.map(jnp.add, image, self._rooted(y[1]))

    def _rooted(self, v: Vector) -> Vector:
        """Return √λ v."""
        root = jnp.sqrt(jnp.asarray(self.damping))
        return jax.tree.map(lambda x: root * x, v)

    def _norm_stacked(self, y: tuple[Any, ...]) -> Scalar:
        sizes = [self.rows.norm(y[0]), *map(self.rows.leaves.norm, y[1:])]
        return norm(jnp.stack(sizes))
