r"""`Krylov`: matrix-free, by lineax's LSMR on \(A\), which does not square the condition number.

O(P + m) memory.

LSMR started from zero stays in the range of \(A^\top\), so what it converges to is the minimum-norm
solution. Damping is a row block, \(B = [A; \sqrt λ I]\), \(B^\top B = G + λ\). A covector takes two
solves, \(G^+ g = B^+ (B^\top)^+ g\). LSMR's own stopping test is no certificate (on spectra that
decay smoothly it may stop early and report success), so the solve is repeated on the *true*
residual. On an undamped metric whose singular values decay smoothly to zero no Krylov method finds
the Moore-Penrose solution to full accuracy; the recomputed residual shows how far it got.

Damped, a preconditioner gathers the spectrum (`_preconditioner.py`): on parameters, LSMR on \(B T\)
with \(T \approx (G + λ)^{-1/2}\); on rows, conjugate gradients on \((K + λ)y = r\), \(\delta =
A^\top y\). A start is subtracted first; what is iterated on is the rest.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .._base.types import Flat
from .._base.vector import norm
from .._rows.gauge import EuclideanGauge
from .._rows.rows import AbstractRows
from ._base import AbstractFactors, AbstractSolver, Spectrum, refuse_filter
from ._cost import krylov_cost
from ._cost_devices import krylov_share
from ._iterations import Operator, conjugate_gradients, ritz_values
from ._leafwise import LeafwiseFactors
from ._lsmr import lsmr
from ._preconditioner import AbstractPreconditioner


class KrylovFactors(AbstractFactors):
    """Nothing is factorised: the rows, the tolerances, and the action of a preconditioner."""

    rows: AbstractRows
    damping: Float[Array, ""] | None
    scaling: Callable[[Array], Array] | None
    """T, on parameters."""
    row_inverse: Callable[[Array], Array] | None
    """C⁻¹, on rows."""
    start: Flat | None
    rtol: float = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Spectrum.unknown(self.rows.dtype)

    def solve_lifted(self, r):
        return self.counted(r)[0]

    def counted(self, r: Float[Array, " m"]) -> tuple[Flat, Array]:
        """Return `solve_lifted(r)` and the number of products with G or K that it took.

        The products from which a preconditioner is made are not counted.
        """
        if self.row_inverse is not None:
            return self._on_rows(self.rows.scale * r)
        # Rows that are spread over devices stay where they are.
        b = self.rows.local.scale * self.rows.own(r)
        if self.start is None:
            return self._solve(self._stack(b))
        rest = jax.tree.map(jnp.subtract, self._stack(b), self._forward(self.start))
        correction, steps = self._solve(rest)
        return self.start + correction, steps

    def solve_covector(self, g):
        y, _ = self._least_squares(self._adjoint, self._forward, self._stacked, g)
        return self._solve(y)[0]

    def damped(self, damping):
        return KrylovFactors(self.rows, damping, None, None, None, self.rtol, self.max_steps)

    def project(self, eta):
        if self.damping is not None:
            return jnp.full_like(eta, jnp.nan)
        return self._solve(self._forward(eta))[0]

    @property
    def kernel_exact(self):
        # LSMR started from zero stays in the range of Aᵀ; damped, the kernel is iterated on, too.
        return self.damping is None

    @property
    def valid(self):
        """Whether the preconditioner is symmetric, and positive on a Krylov space."""
        action = self.row_inverse if self.scaling is None else self.scaling
        if action is None:
            return jnp.asarray(True)
        size = self.rows.shape[0] if self.scaling is None else self.rows.shape[1]
        x, y = jax.random.normal(jax.random.key(0), (2, size), self.rows.dtype)
        # One at a time: an action need not be a function that vmap can handle.
        image_x, image_y = action(x), action(y)
        size = jnp.linalg.norm(image_x) * jnp.linalg.norm(y)
        gap = jnp.abs(jnp.vdot(image_x, y) - jnp.vdot(x, image_y))
        symmetric = gap <= jnp.sqrt(jnp.finfo(x.dtype).eps) * size
        positive = (jnp.vdot(x, image_x) > 0) & (jnp.vdot(y, image_y) > 0)
        # Two vectors rarely meet a few negative eigenvalues; Lanczos finds the ends.
        values = ritz_values(action, x)
        rounding = 1e3 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(values))
        return symmetric & positive & (jnp.min(values) > -rounding)

    def _solve(self, b: tuple[Array, ...]) -> tuple[Flat, Array]:
        scaling = self.scaling
        if scaling is None:
            return self._least_squares(self._forward, self._adjoint, self._flat, b)
        forward, adjoint = lambda u: self._forward(scaling(u)), lambda y: scaling(self._adjoint(y))
        found, steps = self._least_squares(forward, adjoint, self._flat, b)
        return scaling(found), steps

    def _on_rows(self, b: Array) -> tuple[Flat, Array]:
        """Solve (K + λ) y = b by preconditioned conjugate gradients."""
        inverse, damping = self.row_inverse, self.damping
        assert inverse is not None
        assert damping is not None

        def product(y):
            return self.rows.mv(self.rows.rmv(y)) + damping * y

        y, steps = conjugate_gradients(product, inverse, b, self.rtol, self.max_steps)
        return self.rows.rmv(y), steps

    def _stack(self, y: Array) -> tuple[Array, ...]:
        if self.damping is None:
            return (y,)
        return y, jnp.zeros(self.rows.shape[1], y.dtype)

    def _forward(self, eta: Flat) -> tuple[Array, ...]:
        image = self.rows.local.mv(eta)
        return (image,) if self.damping is None else (image, jnp.sqrt(self.damping) * eta)

    def _adjoint(self, y: tuple[Array, ...]) -> Flat:
        image = self.rows.summed(self.rows.local.rmv(y[0]))
        return image if self.damping is None else image + jnp.sqrt(self.damping) * y[1]

    @property
    def _flat(self):
        return jax.ShapeDtypeStruct((self.rows.shape[1],), self.rows.dtype)

    @property
    def _stacked(self):
        rows = jax.ShapeDtypeStruct((self.rows.local.shape[0],), self.rows.dtype)
        return (rows,) if self.damping is None else (rows, self._flat)

    def _zeros(self, domain):
        """Return zeros that depend on data.

        LSMR evaluates A at its start. A constant zero there is a product with a filled matrix,
        which XLA gets wrong on the CPU (`_compat/xla.py`).
        """
        flat = 0 * self.rows.structure.ravel(self.rows.params).astype(self.rows.dtype)
        here = self.rows.local
        rows = 0 * jnp.where(here.active, here.log_scale, 0.0)
        return jax.tree.map(lambda x: flat if x == self._flat else rows, domain)

    def _least_squares(self, function, adjoint, domain, b):
        find = self._by_lineax if self.rows.axis is None else self._over_devices
        solve = find(function, adjoint, domain, b)
        first, steps = solve(b, self.rtol)
        # The correction is small; half of the digits of it are all that can be had.
        rest = jax.tree.map(jnp.subtract, b, function(first))
        again, more = solve(rest, math.sqrt(self.rtol))
        return jax.tree.map(jnp.add, first, again), steps + more

    def _by_lineax(self, function, adjoint, domain, b):
        """Return (b, rtol) ↦ what LSMR finds, and its steps."""
        # lineax's LSMR compares with Python numbers, so that it runs in the default dtype only:
        # float32 under x64 is widened for it.
        short, wide = self.rows.dtype, jnp.result_type(float)

        def widened(function, shapes):
            cast = lambda x: _cast(function(_cast(x, short)), wide)
            return eqx.filter_closure_convert(cast, shapes)

        shapes = lambda x: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, wide), x)
        ins, outs = shapes(domain), shapes(b)
        operator = Operator(widened(function, ins), widened(adjoint, outs), ins, outs)
        zeros = _cast(self._zeros(domain), wide)

        def solve(b, rtol):
            # No absolute tolerance: a saturated right-hand side may be 1e-170 and still matter.
            solver = lx.LSMR(rtol=rtol, atol=0.0, max_steps=self.max_steps, conlim=math.inf)
            solution = lx.linear_solve(
                operator, _cast(b, wide), solver, options={"y0": zeros}, throw=False
            )
            return _cast(solution.value, short), solution.stats["num_steps"]

        return solve

    def _over_devices(self, function, adjoint, domain, b):
        """Return the same where the rows are spread over devices."""

        def on_rows(y):
            parts = [norm(y[0], self.rows.axis), *(norm(x) for x in y[1:])]
            return norm(jnp.stack(parts))

        norms = (norm, on_rows) if domain == self._flat else (on_rows, norm)
        return lambda b, rtol: lsmr(function, adjoint, norms, b, rtol, self.max_steps)


def _cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), tree)


class Krylov(AbstractSolver):
    """LSMR with products of A and Aᵀ only, or preconditioned conjugate gradients.

    For damped inverses, and for pseudo-inverses without a cut-off.
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

        - `rtol`: the tolerance of the iteration; defaults to 10 eps.
        - `max_steps`: the bound on its iterations; defaults to 4 min(m, P) + 100.
        - `preconditioner`: `Diagonal()`, `Kronecker()`, `Nystrom(rank)`, `SampleBlocks()` or one of
            your own, for damped inverses only.
        - `start`: a vector on the parameters to start from, for damped inverses only: undamped,
            what is not in the range of Aᵀ would stay.
        """
        if rtol is not None and not 0 < rtol < 1:
            raise ValueError(
                f"Krylov(rtol={rtol}): rtol must be between 0 and 1, e.g. Krylov(rtol=1e-10)."
            )
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"Krylov(max_steps={max_steps}): max_steps must be at least 1.")
        if preconditioner is not None and not isinstance(preconditioner, AbstractPreconditioner):
            raise ValueError(
                f"Krylov(preconditioner={preconditioner!r}): give pullback.solver.Diagonal(), "
                "Kronecker(), Nystrom(rank), SampleBlocks() or another AbstractPreconditioner."
            )
        if start is not None and preconditioner is not None and preconditioner.on_rows:
            name = type(preconditioner).__name__
            raise ValueError(
                f"Krylov(start=..., preconditioner={name}(...)): {name} iterates on rows, which "
                "have no start."
            )
        self.rtol = rtol
        self.max_steps = max_steps
        self.preconditioner = preconditioner
        self.start = start

    def check(self, inverse):
        if inverse.damping is not None:
            return
        if self.preconditioner is not None or self.start is not None:
            raise ValueError(
                "Krylov with a preconditioner or a start does not give the minimum norm that "
                f"{type(inverse).__name__} asks for: leave them out, or damp: "
                "inverse=pullback.Tikhonov(...)."
            )
        if not inverse.pseudo_inverse:
            raise refuse_filter("Krylov", "never computes singular values", inverse)
        if inverse.truncates:
            raise ValueError(
                f"Krylov cannot cut off singular values, which {inverse} asks for: it never "
                "computes them. Use solver=pullback.solver.SVD(), or damp: "
                "inverse=pullback.Tikhonov(...)."
            )

    def cost(self, setting, inverse):
        return krylov_share(setting, krylov_cost(setting))

    def obstacle(self, inverse):
        if self.preconditioner is not None:
            return f"Krylov(preconditioner={self.preconditioner!r})"
        if self.start is not None:
            return "Krylov(start=...)"
        return None if inverse.gauge is None else f"{type(inverse).__name__}(gauge=...)"

    def factorise_leafwise(self, rows, inverse):
        return LeafwiseFactors(rows, *self._settings(rows, inverse))

    def _settings(self, rows: Any, inverse: Any) -> tuple[Array | None, float, int]:
        """Return the damping, the tolerance and the bound on the iterations."""
        self.check(inverse)
        damping = None if inverse.damping is None else jnp.asarray(inverse.damping, rows.dtype)
        rtol = 10 * float(jnp.finfo(rows.dtype).eps) if self.rtol is None else self.rtol
        max_steps = 4 * min(rows.shape) + 100 if self.max_steps is None else self.max_steps
        return damping, rtol, max_steps

    def factorise(self, rows, inverse):
        damping, rtol, max_steps = self._settings(rows, inverse)
        kind, scaling, row_inverse = self.preconditioner, None, None
        if kind is not None and damping is not None:
            action = kind.build(rows, damping)
            _check_action(kind, action, rows)
            scaling, row_inverse = (None, action) if kind.on_rows else (action, None)
        start = None
        if self.start is not None:
            start = rows.structure.ravel(self.start).astype(rows.dtype)
            if not isinstance(rows.gauge, EuclideanGauge):
                raise ValueError(
                    "Krylov(start=...) is for the Euclidean gauge only: leave the gauge or the "
                    "start out."
                )
        return KrylovFactors(rows, damping, scaling, row_inverse, start, rtol, max_steps)


def _check_action(kind: AbstractPreconditioner, action: Any, rows: AbstractRows) -> None:
    """Raise a `ValueError` if what a preconditioner built does not keep shape and dtype."""
    name = type(kind).__name__
    if not callable(action):
        raise ValueError(
            f"{name}.build(rows, damping) must return a function of a flat array, got "
            f"{type(action).__name__}."
        )
    size = rows.shape[0] if kind.on_rows else rows.shape[1]
    probe = jax.ShapeDtypeStruct((size,), rows.dtype)
    found = eqx.filter_eval_shape(action, probe)
    if (found.shape, found.dtype) != (probe.shape, probe.dtype):
        raise ValueError(
            f"{name}.build(rows, damping) returned an action from {probe.shape} to {found.shape} "
            f"({found.dtype}); on {'rows' if kind.on_rows else 'parameters'} it must keep the "
            f"shape {probe.shape} and the dtype {probe.dtype}."
        )
