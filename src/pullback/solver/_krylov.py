r"""`Krylov`: matrix-free, by LSMR on \(A\) (lineax's), never squaring the condition number; O(P +
m) memory.

LSMR started from zero stays in the range of \(A^\top\), so what it converges to is the minimum-norm
solution. Damping is a row block, \(B = [A; \sqrt λ I]\), \(B^\top B = G + λ\). A covector takes two
solves, \(G^+ g = B^+ (B^\top)^+ g\). LSMR's own stopping test is no certificate (on spectra that
decay smoothly it may stop early and say success), so the solve is repeated on the *true* residual,
and the normal-equation residual of what comes out is recomputed from scratch and reported. On an
undamped metric whose singular values decay smoothly to zero no Krylov method finds the
Moore-Penrose solution to full accuracy; the reported residual says how far it got.

Damped, a preconditioner gathers the spectrum (`_preconditioner.py`): on parameters, LSMR on \(B
C^{-1/2}\); on rows (`Nystrom`, `SampleBlocks`), conjugate gradients on \((K + λ)y = r\), \(\delta =
A^\top y\). A start is subtracted first; what is iterated on is the rest.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .._base.types import Flat
from .._rows.gauge import EuclideanGauge
from ..inverse._base import MoorePenrose, Tikhonov
from ._base import AbstractFactors, AbstractSolver, Factorised, Spectrum, Whitened, whiten
from ._cost import krylov_cost
from ._preconditioner import (
    AbstractPreconditioner,
    AbstractRowInverse,
    AbstractRowPreconditioner,
    AbstractScaling,
    row_inverse,
    scaling,
)


class KrylovFactors(AbstractFactors):
    """Nothing is factorised: the operator, the tolerances, and what a preconditioner needs."""

    operator: Whitened
    damping: Float[Array, ""] | None
    scaling: AbstractScaling | None
    on_rows: AbstractRowInverse | None
    start: Flat | None
    rtol: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    @property
    def spectrum(self) -> Spectrum:
        return Spectrum.unknown(self.operator.metric.dtype)

    @property
    def resolved(self):
        return False

    def lifted(self, r):
        return self.counted(r)[0]

    def counted(self, r: Float[Array, " m"]) -> tuple[Flat, Array]:
        """`lifted`, and the number of products with G or K that it took (those that a
        preconditioner is made from not counted).
        """
        b = self.operator.scale * r
        if self.on_rows is not None:
            return self._on_rows(b)
        if self.start is None:
            return self._solve(self._stack(b))
        rest = jax.tree.map(jnp.subtract, self._stack(b), self._forward(self.start))
        correction, steps = self._solve(rest)
        return self.start + correction, steps

    def covector(self, g):
        return self._solve(self._least_squares(self._adjoint, self._stacked, g)[0])[0]

    def project(self, eta):
        return (
            self._solve(self._forward(eta))[0]
            if self.damping is None
            else jnp.full_like(eta, jnp.nan)
        )

    def _solve(self, b: tuple[Array, ...]) -> tuple[Flat, Array]:
        scaling = self.scaling
        if scaling is None:
            return self._least_squares(self._forward, self._flat, b)
        found, steps = self._least_squares(lambda u: self._forward(scaling.apply(u)), self._flat, b)
        return scaling.apply(found), steps

    def _on_rows(self, b: Array) -> tuple[Flat, Array]:
        """Preconditioned conjugate gradients on (K + λ) y = b."""
        inverse, damping = self.on_rows, self.damping
        assert inverse is not None
        assert damping is not None

        def product(y):
            return self.operator.mv(self.operator.rmv(y)) + damping * y

        y, steps = _conjugate_gradients(product, inverse.apply, b, self.rtol, self.max_steps)
        return self.operator.rmv(y), steps

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
        # lineax's LSMR compares with Python numbers, so that it runs in the default dtype only:
        # float32 under x64 is widened for it.
        short, wide = self.operator.metric.dtype, jnp.result_type(float)

        def widened(x):
            return _cast(function(_cast(x, short)), wide)

        operator = lx.FunctionLinearOperator(
            widened, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, wide), domain)
        )

        def solve(b, rtol):
            # No absolute tolerance: a saturated right-hand side may be 1e-170 and still matter.
            solver = lx.LSMR(rtol=rtol, atol=0.0, max_steps=self.max_steps, conlim=math.inf)
            solution = lx.linear_solve(operator, _cast(b, wide), solver, throw=False)
            return _cast(solution.value, short), solution.stats["num_steps"]

        first, steps = solve(b, self.rtol)
        # The correction is small; half of the digits of it are all that can be had.
        again, more = solve(jax.tree.map(jnp.subtract, b, function(first)), math.sqrt(self.rtol))
        return jax.tree.map(jnp.add, first, again), steps + more


def _conjugate_gradients(product, inverse, b, rtol, max_steps) -> tuple[Array, Array]:
    """Until the residual is rtol of b in the norm of C⁻¹, as far as rounding lets it; and the
    number of products.

    By hand: lineax's compares each component of the residual with the same one of b, and that of a
    saturated sample may be 1e-30; JAX's does not count.
    """
    # A right-hand side whose square is zero still matters.
    size = jnp.max(jnp.abs(b), initial=0.0)
    unit = jnp.where(size == 0, 1.0, size)
    b = b / unit
    goal = rtol**2 * (b @ inverse(b))

    def going(state):
        return (state[3] > goal) & (state[4] < max_steps)

    def step(state):
        y, r, p, square, steps = state
        image = product(p)
        rate = square / (p @ image)
        y, r = y + rate * p, r - rate * image
        z = inverse(r)
        following = r @ z
        return y, r, z + following / square * p, following, steps + 1

    def run(y, steps):
        # The residual of the recurrence drifts from the true one; the second run begins where the
        # first has got.
        r = b - product(y)
        z = inverse(r)
        return jax.lax.while_loop(going, step, (y, r, z, r @ z, steps))

    first = run(jnp.zeros_like(b), jnp.zeros((), jnp.int32))
    second = run(first[0], first[4])
    return unit * second[0], second[4]


def _cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), tree)


class Krylov(AbstractSolver):
    """LSMR with products of A and Aᵀ only, or preconditioned. `MoorePenrose()` without `rtol`, and
    `Tikhonov`.
    """

    rtol: float | None = eqx.field(static=True)
    max_steps: int | None = eqx.field(static=True)
    preconditioner: AbstractPreconditioner | None
    start: Any

    def __init__(
        self,
        rtol: float | None = None,
        max_steps: int | None = None,
        preconditioner: AbstractPreconditioner | None = None,
        start: Any = None,
    ):
        """Choose the matrix-free solver.

        **Arguments:**

        - `rtol`: the tolerance of the iteration; if left out, 10 eps.
        - `max_steps`: the bound on its iterations; if left out, 4 min(m, P) + 100.
        - `preconditioner`: `Diagonal()`, `Kronecker()`, `Nystrom(rank)` or `SampleBlocks()`, for
            `Tikhonov` only.
        - `start`: a vector on the parameters to start from, for `Tikhonov` only: undamped, what is
            not in the range of Aᵀ would stay.
        """
        if rtol is not None and not 0 < rtol < 1:
            raise ValueError(
                f"Krylov(rtol={rtol}): rtol must be between 0 and 1, e.g. Krylov(rtol=1e-10)."
            )
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"Krylov(max_steps={max_steps}): max_steps must be at least 1.")
        if preconditioner is not None and not isinstance(preconditioner, AbstractPreconditioner):
            raise ValueError(
                f"Krylov(preconditioner={preconditioner!r}): give pullback.solver.Diagonal(), Kronecker(), Nystrom(rank) or SampleBlocks()."
            )
        if start is not None and isinstance(preconditioner, AbstractRowPreconditioner):
            name = type(preconditioner).__name__
            raise ValueError(
                f"Krylov(start=..., preconditioner={name}(...)): {name} iterates on rows, which have no start."
            )
        self.rtol, self.max_steps, self.preconditioner, self.start = (
            rtol,
            max_steps,
            preconditioner,
            start,
        )

    def check(self, inverse):
        if isinstance(inverse, Tikhonov):
            return
        if self.preconditioner is not None or self.start is not None:
            raise ValueError(
                f"Krylov with a preconditioner or a start does not give the minimum norm that {type(inverse).__name__} asks for: leave them "
                "out, or damp: inverse=pullback.Tikhonov(...)."
            )
        if isinstance(inverse, MoorePenrose) and inverse.rtol is None:
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
        damping = (
            jnp.asarray(inverse.damping, metric.dtype) if isinstance(inverse, Tikhonov) else None
        )
        rtol = 10 * float(jnp.finfo(metric.dtype).eps) if self.rtol is None else self.rtol
        max_steps = 4 * min(operator.shape) + 100 if self.max_steps is None else self.max_steps
        kind, scales, rows = self.preconditioner, None, None
        if kind is not None and damping is not None:
            if isinstance(kind, AbstractRowPreconditioner):
                rows = row_inverse(operator, kind, damping)
            else:
                scales = scaling(operator, kind, damping)
        # η = Rδ is not at hand for every gauge, so a start is for the Euclidean one.
        start = (
            None if self.start is None else metric.structure.ravel(self.start).astype(metric.dtype)
        )
        if start is not None and not isinstance(operator.gauge, EuclideanGauge):
            raise ValueError(
                "Krylov(start=...) is for the Euclidean gauge only: leave the gauge or the start out."
            )
        factors = KrylovFactors(operator, damping, scales, rows, start, rtol, max_steps)
        return Factorised(operator, inverse, factors, self.name)
