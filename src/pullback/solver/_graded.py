r"""The Moore-Penrose solution of a graded system, \(A = D\hat A\) with \(D =
\mathrm{diag}(e^\ell)\) spanning more orders of magnitude than a float resolves.

That is what a saturated model gives. A cut-off on the singular values of \(A\) would drop its
samples in silence, so rank and row space are those of \(\hat A = \hat U \hat S V^\top\) (the same
in exact arithmetic, \(D\) being invertible), and \(\delta = V y\) with

- \(y = \hat S^{-1}\hat U^\top \hat r\) if \(\hat A\) has full row rank: the weights cancel, \(A^+ r
    = \hat A^+ \hat r\);
- otherwise \(y\) minimises \(\|D(B y - \hat r)\|\), where \(B = \hat U \hat S\) has full column
    rank, from a factorisation \(DB = L U\).

While the weights span less than 1000, \(LU\) is LAPACK's QR decomposition. Beyond, orthogonal
factors fail: where heavy rows depend on each other (repeated samples, more confident samples than
features), they keep a remainder of order \((d_{light}/d_{heavy})^2\), far below rounding, whose
product with the heavy residual is what the light rows have to say. Elimination with complete
pivoting (Peters and Wilkinson, 1970) makes that remainder exactly zero. \(L\) has a unit diagonal
and entries at most 1, heavy rows have none in the columns of light pivots, and

\[ N t = L^\top D \hat r, \quad N = L^\top L, \quad U y = t \]

has every entry accurate relative to its own weight: heavy rows never enter an equation of light
size. A row whose remainder falls to the rounding of *its own* size depends on heavier ones and is
cleared.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Int

from .._base.vector import finite_or_nan, norm, probe
from ..inverse._base import AbstractInverse
from ._base import AbstractFactors, Places, Spectrum

MILD = math.log(1e3)
"""The spread of the weights up to which an orthogonal factorisation is used."""


class GradedFactors(AbstractFactors):
    """Â = Û diag(ŝ) Vᵀ and D Û diag(ŝ) = L U."""

    u: Float[Array, "m k"]
    s: Float[Array, " k"]
    vt: Float[Array, "k P"]
    kept: Array
    full: Array
    """Whether Â has full row rank."""
    weights: Float[Array, " m"]
    """D, divided by its largest entry."""
    log_largest: Float[Array, ""]
    lower: Float[Array, "m k"]
    upper: Float[Array, "k k"]
    cholesky: Float[Array, "k k"]
    """The Cholesky factor of N = LᵀL."""
    pivots: Int[Array, " k"]
    spectrum: Spectrum

    @property
    def places(self):
        return Places(whole=("A",))

    @property
    def knows_row_space(self):
        return True

    @property
    def kernel_exact(self):
        return True

    @property
    def log_spread(self):
        # DÛ alone: a pivot over its singular value is the weight of its row, but for a factor.
        pivots, s = jnp.abs(jnp.diagonal(self.upper)), self.s[self.pivots]
        live = (pivots > 0) & (s > 0) & ~self.full
        logs = jnp.log(jnp.where(live, pivots, 1.0)) - jnp.log(jnp.where(live, s, 1.0))
        largest = jnp.max(jnp.where(live, logs, -jnp.inf))
        found = 2 * (largest - jnp.min(jnp.where(live, logs, jnp.inf)))
        return jnp.where(jnp.any(live), found, 0.0)

    def solve_lifted(self, r):
        cancelled = jnp.where(self.kept, (self.u.T @ r) / jnp.where(self.kept, self.s, 1.0), 0.0)
        t = cho_solve((self.cholesky, True), self.lower.T @ (self.weights * r))
        return self.vt.T @ jnp.where(self.full, cancelled, self._back(t))

    def solve_covector(self, g):
        inside = jnp.where(self.kept, self.vt @ g, 0.0)
        y, size = self._covector(inside), norm(g)
        # The rounding of a coordinate is divided by D² too, and may be all that is seen there.
        eps = float(jnp.finfo(g.dtype).eps)
        noise = norm(self._covector(eps * size * probe(self.s.size, g.dtype)))
        usual = (
            jnp.exp(-2 * self.log_largest) * size / jnp.where(self.s[0] > 0, self.s[0] ** 2, 1.0)
        )
        seen = noise <= eps**0.5 * (norm(y) + usual)
        return self.vt.T @ jnp.where(seen, y, jnp.nan)

    def _covector(self, inside: Array) -> Array:
        """Return the coordinates of G⁺ g from those of g.

        Â Âᵀ-free: with full row rank A⁺ = V ŝ⁻¹ Ûᵀ D⁻¹, otherwise G = V Uᵀ N U Vᵀ. D was divided by
        its largest entry.
        """
        s = jnp.where(self.kept, self.s, 1.0)
        inside = jnp.where(self.kept, inside, 0.0)
        weights = jnp.where(self.weights > 0, self.weights, jnp.inf)
        cancelled = (self.u.T @ ((self.u @ (inside / s)) / weights / weights)) / s
        upper, live = self._upper()
        t = solve_triangular(upper, jnp.where(live, inside[self.pivots], 0.0), trans="T")
        weighted = self._back(cho_solve((self.cholesky, True), t))
        found = jnp.where(self.kept, jnp.where(self.full, cancelled, weighted), 0.0)
        return jnp.exp(-2 * self.log_largest) * found

    def project(self, eta):
        return self.vt.T @ jnp.where(self.kept, self.vt @ eta, 0.0)

    def _upper(self) -> tuple[Array, Array]:
        """U with a one in place of every zero pivot, and which pivots are not zero."""
        live = jnp.diagonal(self.upper) != 0
        return self.upper + jnp.diag(jnp.where(live, 0.0, 1.0).astype(self.upper.dtype)), live

    def _back(self, t: Array) -> Array:
        """y with U y = t, in the order of the columns."""
        upper, live = self._upper()
        y = jnp.where(live, solve_triangular(upper, jnp.where(live, t, 0.0)), 0.0)
        return y[jnp.argsort(self.pivots)]


def graded_factors(
    rows: Float[Array, "m P"], log_scale: Float[Array, " m"], inverse: AbstractInverse
) -> GradedFactors:
    """Decompose a graded system."""
    # A row of zeros says nothing, and what an SVD makes of it is rounding, of any weight.
    active = (log_scale > -jnp.inf) & jnp.any(rows != 0, axis=1)
    shape = (rows.shape[0], rows.shape[1])
    u, s, vt = thin_svd(rows)
    u = jnp.where(active[:, None], u, 0.0)
    cutoff = inverse.cutoff(s[0], shape)
    kept = inverse.kept(s, cutoff)
    full = jnp.sum(kept) == jnp.sum(active)
    top = jnp.max(jnp.where(active, log_scale, -jnp.inf))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.where(active, jnp.exp(log_scale - top), 0.0)
    # ÂV and not ÛŜ, so that each row is right to the rounding of its own size.
    b = weights[:, None] * jnp.where(kept[None, :], rows @ vt.T, 0.0)
    spread = top - jnp.min(jnp.where(active, log_scale, jnp.inf))
    which = jnp.where(full, 0, jnp.where(spread < MILD, 1, 2))
    lower, upper, cholesky, pivots = jax.lax.switch(
        which, [_nothing, _orthogonal, partial(_elimination, shape=shape)], b
    )
    spectrum = Spectrum.of(s, kept, cutoff, graded=True)
    return GradedFactors(
        u=u, s=s, vt=vt, kept=kept, full=full, weights=weights, log_largest=top,
        lower=lower, upper=upper, cholesky=cholesky, pivots=pivots, spectrum=spectrum,
    )  # fmt: skip


def thin_svd(a: Float[Array, "m P"]) -> tuple[Array, Array, Array]:
    """U, s, Vᵀ of a matrix; of its transpose if that is the tall one, which LAPACK does more than
    twice as fast.
    """
    a = finite_or_nan(a)
    if a.shape[0] >= a.shape[1]:
        u, s, vt = jnp.linalg.svd(a, full_matrices=False)
        return u, s, vt
    v, s, ut = jnp.linalg.svd(a.T, full_matrices=False)
    return ut.T, s, v.T


def _nothing(b: Array) -> tuple[Array, Array, Array, Array]:
    """The weights cancel: no factorisation is needed."""
    eye = jnp.eye(b.shape[1], dtype=b.dtype)
    return jnp.zeros_like(b), eye, eye, jnp.arange(b.shape[1], dtype=jnp.int32)


def _orthogonal(b: Array) -> tuple[Array, Array, Array, Array]:
    """L = Q, U = R, N = I. No pivoting: the columns that are not kept are zero, and the last."""
    q, r = jnp.linalg.qr(b)
    return (
        q,
        jnp.triu(r),
        jnp.eye(b.shape[1], dtype=b.dtype),
        jnp.arange(b.shape[1], dtype=jnp.int32),
    )


def _elimination(
    b: Float[Array, "m k"], shape: tuple[int, int]
) -> tuple[Array, Array, Array, Array]:
    """Gaussian elimination with complete pivoting; rows stay in place, a mask tells which are
    spent.
    """
    k = b.shape[1]
    noise = 10 * max(shape) * jnp.finfo(b.dtype).eps * jnp.max(jnp.abs(b), axis=1)

    def step(j, state):
        a, lower, upper, pivots, free_rows, free_columns = state
        free = free_rows[:, None] & free_columns[None, :]
        place = jnp.argmax(jnp.where(free, jnp.abs(a), -1.0)).astype(jnp.int32)
        row, column = place // k, place % k
        pivot_row = jnp.where(free_columns, a[row], 0.0)
        dead = pivot_row[column] == 0  # nothing is left
        multipliers = jnp.where(
            free_rows, a[:, column] / jnp.where(dead, 1.0, pivot_row[column]), 0.0
        )
        lower, upper = lower.at[:, j].set(multipliers), upper.at[j].set(pivot_row)
        free_rows, free_columns = free_rows.at[row].set(False), free_columns.at[column].set(False)
        a = a - multipliers[:, None] * pivot_row[None, :]
        left = jnp.max(jnp.where(free_columns[None, :], jnp.abs(a), 0.0), axis=1)
        a = jnp.where((free_rows & (left > noise))[:, None] & free_columns[None, :], a, 0.0)
        return a, lower, upper, pivots.at[j].set(column), free_rows, free_columns

    start = (
        b,
        jnp.zeros_like(b),
        jnp.zeros((k, k), b.dtype),
        jnp.zeros(k, jnp.int32),
        jnp.full(b.shape[0], True),
        jnp.full(k, True),
    )
    _, lower, upper, pivots, *_ = jax.lax.fori_loop(0, k, step, start)
    # A dead step has no column of L: one on the diagonal keeps N definite.
    empty = ~jnp.any(lower != 0, axis=0)
    gram = lower.T @ lower + jnp.diag(jnp.where(empty, 1.0, 0.0).astype(b.dtype))
    return lower, jnp.triu(upper[:, pivots]), jnp.linalg.cholesky(gram), pivots
