r"""`PerDamping`: K or G formed once, a Cholesky factorisation of \(K + λ\) for each λ.

A rule that tries one or two dampings per step needs no decomposition: \((K + λ)^{-1}\) by Cholesky
is forty times cheaper than the singular values of \(A\). It keeps every singular value, and the
solution is refined with products of \(A\). But the rounding of K is \(n\,\mathrm{eps}\,\max_i
K_{ii}\), and a λ below that has no Cholesky factorisation to rely on: there the SVD of \(A\) takes
over, at run time, once for all dampings of the step. The rule declares the least of them
(`AbstractStep.least_damping`). What was not computed is NaN, so a smaller λ has no solution.

Where the SVD is too expensive, a λ below rounding is NaN, too, and the rule tries a larger one:
eigenvectors of K would lose the singular values below \(\sqrt{n\,\mathrm{eps}}\) of the largest,
which such a λ does not hide. They are used for a right-hand side with a part in the kernel only,
which a negative least λ tells.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._rows.rows import AbstractRows
from ._base import AbstractFactors, AbstractSolver, Spectrum
from ._dual import Dual
from ._primal import Primal
from ._svd import SVD
from ._symmetric import Family, eigen


class PerDampingFactors(AbstractFactors):
    """K or G, to be damped; and a decomposition, where the least λ is too small for it."""

    family: Family
    exact: AbstractFactors
    """From a decomposition; NaN where Cholesky factorisations will do."""
    enough: Array
    """Whether they will."""

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        found = self.exact.spectrum
        unknown = Spectrum.unknown(found.largest.dtype)
        spectrum = jax.tree.map(lambda x, y: jnp.where(self.enough, x, y), unknown, found)
        return eqx.tree_at(lambda s: s.fallback, spectrum, ~self.enough)

    @property
    def formed_rows(self):
        return None if self.family.rows.dense is None else self.family.rows

    @property
    def kernel_exact(self):
        return True

    def solve_lifted(self, r):
        return self.exact.solve_lifted(r)

    def solve_covector(self, g):
        return self.exact.solve_covector(g)

    def project(self, eta):
        return self.exact.project(eta)

    def damped(self, damping):
        return _Damped(self, self.family.damped(damping), self.exact.damped(damping))


class Missing(AbstractFactors):
    """Factors where nothing was factorised; every solution is NaN."""

    size: int = eqx.field(static=True)
    """P."""
    dtype: Any = eqx.field(static=True)

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Spectrum.unknown(self.dtype)

    def solve_lifted(self, r):
        return jnp.full(self.size, jnp.nan, self.dtype)

    def solve_covector(self, g):
        return jnp.full(self.size, jnp.nan, self.dtype)

    def damped(self, damping):
        return self


class _Damped(AbstractFactors):
    """Factors of one λ: by Cholesky, or from the decomposition."""

    undamped: PerDampingFactors
    cholesky: AbstractFactors
    exact: AbstractFactors

    @property
    def spectrum(self) -> Spectrum:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.undamped.spectrum

    def solve_lifted(self, r):
        return self._either(lambda factors: factors.solve_lifted(r))

    def solve_covector(self, g):
        return self._either(lambda factors: factors.solve_covector(g))

    def solve_both(self, r, g):
        return self._either(lambda factors: factors.solve_both(r, g))

    def project(self, eta):
        return self.undamped.project(eta)

    def _either(self, solve: Callable[[AbstractFactors], Array]) -> Array:
        cheap, exact = (lambda: solve(self.cholesky)), (lambda: solve(self.exact))
        return jax.lax.cond(self.undamped.enough, cheap, exact)


class PerDamping(AbstractSolver):
    """A Cholesky factorisation of K + λ or G + λ per λ, where the inverse declares the least λ."""

    gram: Dual | Primal
    """Which matrix."""
    svd: bool = eqx.field(static=True)
    """Whether the SVD takes over for a small λ; otherwise there is no solution."""

    def check(self, inverse):
        if not inverse.factorised_per_damping:
            raise ValueError(
                f"a factorisation per damping needs the least damping, and {inverse!r} has none: "
                "use solver=pullback.solver.Auto()."
            )

    def cost(self, setting, inverse):
        cost = self.gram.cost(setting, inverse)
        more = SVD().cost(setting, inverse).memory if self.svd else 0.0
        return cost._replace(memory=cost.memory + more)

    @property
    def name(self):
        return self.gram.name

    def factorise(self, rows, inverse):
        family = self.gram.family(rows)
        least = jnp.asarray(inverse.least_damping, rows.dtype)
        if self.svd:
            enough = least > jnp.maximum(family.matrix.noise, rows.noise**2)
            exact = _unless(enough, lambda: SVD().factorise(_shared(rows, family), inverse))
        elif family.matrix.has_eigenvectors:
            enough = least >= 0
            gram = _unless(enough, lambda: eigen(family.matrix(), rows, inverse))
            exact = family.build(gram=gram, damping=None)
        else:
            enough, exact = least >= 0, Missing(rows.shape[1], rows.dtype)
        return PerDampingFactors(family, exact, enough)


def _shared(rows: AbstractRows, family: Family) -> AbstractRows:
    """Return the rows with a dense Ã in the order of the parameters, if that is at hand."""
    at_hand = family.rows.dense is not None and family.rows.order is None
    return family.rows if at_hand else rows


def _unless(known: Array, compute: Callable[[], Any]) -> Any:
    """Return a pytree that is computed at run time unless it is of no use; then it is NaN."""
    shape, static = eqx.partition(eqx.filter_eval_shape(compute), _is_shape)

    def missing(x):
        return jnp.full(x.shape, jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0, x.dtype)

    arrays = jax.lax.cond(
        known,
        lambda: jax.tree.map(missing, shape),
        lambda: eqx.filter(compute(), eqx.is_array),
    )
    return eqx.combine(arrays, static)


def _is_shape(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)
