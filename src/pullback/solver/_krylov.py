r"""`Krylov`: matrix-free, by LSMR on \(A\) (lineax's), never squaring the condition number; O(P + m) memory.

LSMR started from zero stays in the range of \(A^\top\), so what it converges to is the minimum-norm solution. Damping is a row block, \(B = [A;
\sqrt λ I]\), \(B^\top B = G + λ\). A covector takes two solves, \(G^+ g = B^+ (B^\top)^+ g\). LSMR's own stopping test is no certificate (on spectra that decay
smoothly it may stop early and say success), so the solve is repeated on the *true* residual, and the normal-equation residual of what
comes out is recomputed from scratch and reported. On an undamped metric whose singular values decay smoothly to zero no Krylov method
finds the Moore-Penrose solution to full accuracy; the reported residual says how far it got.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .._inverse import MoorePenrose, Tikhonov
from .._types import Flat
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, Whitened, whiten
from ._cost import krylov_cost


class KrylovFactors(AbstractFactors):
    """Nothing is factorised: the operator and the tolerances."""

    operator: Whitened
    damping: Float[Array, ""] | None
    rtol: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    @property
    def spectrum(self) -> Spectrum:
        return Spectrum.unknown(self.operator.metric.dtype)

    @property
    def resolved(self):
        return False

    def lifted(self, r):
        return self._solve(self._stack(self.operator.scale * r))

    def covector(self, g):
        return self._solve(self._least_squares(self._adjoint, self._stacked, g))

    def project(self, eta):
        return self._solve(self._forward(eta)) if self.damping is None else jnp.full_like(eta, jnp.nan)

    def _solve(self, b: tuple[Array, ...]) -> Flat:
        return self._least_squares(self._forward, self._flat, b)

    def _stack(self, y: Array) -> tuple[Array, ...]:
        if self.damping is None:
            return (y,)
        return y, jnp.zeros(self.operator.shape[1], y.dtype)

    def _forward(self, eta: Flat) -> tuple[Array, ...]:
        image = self.operator.mv(eta)
        return (image,) if self.damping is None else (image, jnp.sqrt(self.damping) * eta)

    def _adjoint(self, y: tuple[Array, ...]) -> Flat:
        image = self.operator.rmv(y[0])
        return image if self.damping is None else image + jnp.sqrt(self.damping) * y[1]

    @property
    def _flat(self):
        return jax.ShapeDtypeStruct((self.operator.shape[1],), self.operator.metric.dtype)

    @property
    def _stacked(self):
        rows = jax.ShapeDtypeStruct((self.operator.shape[0],), self.operator.metric.dtype)
        return (rows,) if self.damping is None else (rows, self._flat)

    def _least_squares(self, function, domain, b):
        # lineax's LSMR compares with Python numbers, so that it runs in the default dtype only: float32 under x64 is widened for it.
        short, wide = self.operator.metric.dtype, jnp.result_type(float)

        def widened(x):
            return _cast(function(_cast(x, short)), wide)

        operator = lx.FunctionLinearOperator(widened, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, wide), domain))

        def solve(b, rtol):
            # No absolute tolerance: a saturated right-hand side may be 1e-170 and still matter.
            solver = lx.LSMR(rtol=rtol, atol=0.0, max_steps=self.max_steps, conlim=math.inf)
            return _cast(lx.linear_solve(operator, _cast(b, wide), solver, throw=False).value, short)

        first = solve(b, self.rtol)
        # The correction is small; half of the digits of it are all that can be had.
        again = solve(jax.tree.map(jnp.subtract, b, function(first)), math.sqrt(self.rtol))
        return jax.tree.map(jnp.add, first, again)


def _cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), tree)


class Krylov(AbstractSolver):
    """LSMR with products of A and Aᵀ only. `MoorePenrose()` without `rtol`, and `Tikhonov`."""

    rtol: float | None = eqx.field(static=True)
    max_steps: int | None = eqx.field(static=True)

    def __init__(self, rtol: float | None = None, max_steps: int | None = None):
        """Choose the matrix-free solver.

        **Arguments:**

        - `rtol`: the tolerance of LSMR; if left out, 10 eps.
        - `max_steps`: the bound on its iterations; if left out, 4 min(m, P) + 100.
        """
        if rtol is not None and not 0 < rtol < 1:
            raise ValueError(f"Krylov(rtol={rtol}): rtol must be between 0 and 1, e.g. Krylov(rtol=1e-10).")
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"Krylov(max_steps={max_steps}): max_steps must be at least 1.")
        self.rtol, self.max_steps = rtol, max_steps

    def check(self, inverse):
        if isinstance(inverse, Tikhonov) or (isinstance(inverse, MoorePenrose) and inverse.rtol is None):
            return
        raise ValueError(
            f"Krylov cannot cut off singular values, which {inverse} asks for: it never computes them. "
            "Use solver=pullback.solver.SVD(), or damp: inverse=pullback.Tikhonov(...)."
        )

    def cost(self, setting, inverse):
        return krylov_cost(setting)

    def factorise(self, metric, inverse):
        self.check(inverse)
        operator = whiten(metric, inverse)
        damping = jnp.asarray(inverse.damping, metric.dtype) if isinstance(inverse, Tikhonov) else None
        rtol = 10 * float(jnp.finfo(metric.dtype).eps) if self.rtol is None else self.rtol
        max_steps = 4 * min(operator.shape) + 100 if self.max_steps is None else self.max_steps
        return Factorised(operator, inverse, KrylovFactors(operator, damping, rtol, max_steps), self.name)
