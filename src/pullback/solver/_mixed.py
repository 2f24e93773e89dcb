r"""`Mixed`: the model in its own precision, the linear algebra in double.

The Jacobian has the digits of the model, and no more are made up. What is made of it loses none:
\(K = AA^\top\) and \(G = A^\top A\) square the condition number, and a damping of 1e-9 is below
their rounding in single precision.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from .._rows.rows import AbstractRows
from ._auto import Auto
from ._base import AbstractDecomposition, AbstractFactors, AbstractSolver, Spectrum

WIDE = jnp.float64


class MixedDecomposition(AbstractDecomposition):
    """A decomposition in double precision, handed out in that of the model."""

    inner: AbstractDecomposition
    dtype: DTypeLike = eqx.field(static=True)

    @property
    def s(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.s.astype(self.dtype)

    @property
    def resolution(self):
        return self.inner.resolution.astype(self.dtype)

    def coordinates(self, eta):
        return self.inner.coordinates(eta.astype(WIDE)).astype(self.dtype)

    def combine(self, w):
        return self.inner.combine(w.astype(WIDE)).astype(self.dtype)


class MixedFactors(AbstractFactors):
    """Factors in double precision for vectors in that of the model."""

    inner: AbstractFactors
    dtype: DTypeLike = eqx.field(static=True)

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        return jax.tree.map(self._narrow, self.inner.spectrum)

    def solve_lifted(self, r):
        return self._narrow(self.inner.solve_lifted(r.astype(WIDE)))

    def solve_covector(self, g):
        return self._narrow(self.inner.solve_covector(g.astype(WIDE)))

    def solve_both(self, r, g):
        return self._narrow(self.inner.solve_both(r.astype(WIDE), g.astype(WIDE)))

    def damped(self, damping):
        return MixedFactors(self.inner.damped(damping.astype(WIDE)), self.dtype)

    def project(self, eta):
        return self._narrow(self.inner.project(eta.astype(WIDE)))

    @property
    def places(self):
        return self.inner.places

    @property
    def knows_row_space(self):
        return self.inner.knows_row_space

    @property
    def kernel_exact(self):
        return self.inner.kernel_exact

    @property
    def decomposition(self):
        inner = self.inner.decomposition
        return None if inner is None else MixedDecomposition(inner, self.dtype)

    @property
    def valid(self):
        return self.inner.valid

    def _narrow(self, x: Array) -> Array:
        return x.astype(self.dtype) if eqx.is_inexact_array(x) else x


class Mixed(AbstractSolver):
    """Another solver, in double precision for a model in single precision.

    `natural_gradient(..., inverse=Tikhonov(1e-9), solver=Mixed(Dual()))`. Needs
    `jax_enable_x64`. A is formed; the structure of the model is not used.
    """

    inner: AbstractSolver = Auto()

    def check(self, inverse):
        if self.inner.inverts_blocks:
            name = self.inner.name
            raise ValueError(
                f"solver=Mixed({name}(...)): the blocks are solved in double precision by "
                f"{name}(inner=pullback.solver.Mixed())."
            )
        if inverse.damping is None and not inverse.truncates:
            raise ValueError(
                f"solver=Mixed(...): {type(inverse).__name__} keeps every singular value above the "
                "rounding of double precision, and those of a model in single precision are "
                "rounding below that of its own: damp, inverse=pullback.Tikhonov(...), or give a "
                "cut-off, inverse=pullback.MoorePenrose(rtol=1e-6)."
            )
        self.inner.check(inverse)

    def factorise(self, rows, inverse):
        if rows.dtype == WIDE:
            return self.inner.factorise(rows, inverse)
        return MixedFactors(self.inner.factorise(_widened(rows), inverse), rows.dtype)

    def resolve(self, rows, inverse):
        solver, planned = self.inner.resolve(rows, inverse)
        return (solver, planned) if rows.dtype == WIDE else (Mixed(solver), rows)

    @property
    def quick(self):
        return Mixed(self.inner.quick)

    def cost(self, setting, inverse):
        return self.inner.cost(setting, inverse)

    @property
    def name(self):
        return self.inner.name


def _widened(rows: AbstractRows) -> AbstractRows:
    """Return the same rows with linear algebra in double precision."""
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "solver=Mixed(...) needs double precision: "
            'jax.config.update("jax_enable_x64", True) before any array is made.'
        )
    # Products through the model have its precision.
    wide = rows.widened(WIDE)
    return wide.formed(wide.unit_rows())
