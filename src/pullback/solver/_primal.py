r"""`Primal`: the P × P matrix \(G = A^\top A\), summed over blocks of samples. For fewer parameters
than rows of A.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.vector import norm
from .._gram.centred import Gram
from .._gram.joint import per_term
from .._gram.structured import WORKSPACE, find, metric_gram
from .._rows.rows import MEMORY, AbstractRows, Rows, scatter
from ._base import AbstractSolver, Places
from ._cost import primal_cost
from ._cost_devices import primal_share
from ._redamped import without
from ._spread_metric import as_matrix
from ._symmetric import (
    AbstractSymmetricFactors,
    Damped,
    Eigen,
    Family,
    damped,
    eigen,
    refine,
)


class PrimalFactors(AbstractSymmetricFactors):
    """G by eigenvectors, or G + λ by Cholesky."""

    rows: AbstractRows
    gram: Eigen | Damped
    damping: Float[Array, ""] | None
    order: np.ndarray | None
    """The order of the parameters in `gram`, if that is not the one of the flat vector."""

    @property
    def places(self):
        return Places(whole=("G",))

    def solve_lifted(self, r):
        rows = self.rows
        r = rows.scale * r
        if isinstance(self.gram, Damped):
            return self._solve_damped(r, None)
        if not self.gram.refinements:
            return self._ordered(self.gram.apply_resolved, rows.rmv(r))

        def residual(eta):
            # Formed in the output space, where it does not cancel.
            return rows.rmv(r - rows.mv(eta)) - self._damped(eta)

        inverse = self._inverse
        # Where nothing is dropped, the part of corrections in the kernel is all that is wrong with
        # the solution; to take it off costs digits, and one correction more.
        whole = not self.gram.truncates
        correct = self._confined if whole else inverse
        eta = refine(self.gram, correct, residual, self._confined(rows.rmv(r)))
        return eta + correct(residual(eta)) if whole else eta

    def solve_both(self, r, g):
        if isinstance(self.gram, Damped):
            return self._solve_damped(self.rows.scale * r, g)
        return super().solve_both(r, g)

    def solve_covector(self, g):
        if isinstance(self.gram, Damped):
            return self._solve_damped(None, g)

        inverse = self._inverse

        def product(eta):
            return self.rows.rmv(self.rows.mv(eta))

        # What of g is outside the range of G stays in the residual, and would come in through the
        # eigenvectors, off by eps cond(A)²: one product with G takes it away.
        # As in `solve_lifted`, the corrections are put into the range of Aᵀ.
        def clean(rest):
            if self.damping is not None:
                return inverse(rest)
            return self._confined(inverse(product(rest)))

        residual = lambda eta: g - product(eta) - self._damped(eta)
        return refine(self.gram, clean, residual, self._confined(g))

    def _solve_damped(self, r: Array | None, g: Array | None) -> Array:
        """Return (G + λ)⁻¹(Aᵀr + g) by Cholesky; `None` stands for zero."""
        rows, gram = self.rows, self.gram
        assert isinstance(gram, Damped)

        def pulled(image):
            # Formed in the output space, where it does not cancel.
            x = rows.rmv(-image if r is None else r - image)
            return x if g is None else x + g

        ordered = lambda function: lambda x: self._ordered(function, x)

        def how(inverse, part):
            inverse = ordered(inverse)

            def turn(_, state):
                eta, image = state
                eta = eta + inverse(pulled(image) - gram.damping * eta)
                return eta, rows.mv(eta)

            # From zero: the first turn is the first solution, and is compiled once. Aη is carried:
            # see `Dual`.
            start = (jnp.zeros(rows.shape[1], rows.dtype), jnp.zeros(rows.shape[0], rows.dtype))
            eta, image = jax.lax.fori_loop(0, gram.refinements + 1, turn, start)
            if part is None:
                return eta
            # λ is rounding beside G: along eigenvectors that are rounding, too, η is anything, and
            # no residual shows it. There λη = Aᵀ(r - Aη) + g is exact.
            project = ordered(part.project)
            eta = project(eta) + without(project, pulled(image) / gram.damping)
            residual = pulled(rows.mv(eta)) - gram.damping * eta
            left = without(project, residual)
            return jnp.where(10 * norm(left) <= gram.damping * norm(eta), eta, jnp.nan)

        return gram.solve(how)

    def in_range(self, damped):
        return damped

    def solve_in_range(self, g):
        """Return the solution for a covector in the range."""
        return self.solve_covector(g)

    def project(self, eta):
        if isinstance(self.gram, Eigen):
            return self._ordered(self.gram.project, eta)
        return jnp.full_like(eta, jnp.nan)

    def coordinates(self, eta):
        return self.eigen.vectors.T @ (eta if self.order is None else eta[self.order])

    def combine(self, w):
        combined = self.eigen.vectors @ w
        return combined if self.order is None else scatter(combined, self.order)

    def _inverse(self, g: Array) -> Array:
        return self._ordered(self.eigen.apply, g)

    def _confined(self, g: Array) -> Array:
        """Return a solution, put into the range of Aᵀ where it is refined.

        The eigenvectors of G are off by eps cond(A)², and what of that lies in the kernel of A no
        residual would show.
        """
        x = self._inverse(g)
        if self.damping is not None or not self.eigen.refinements:
            return x
        return self.rows.rmv(self.rows.mv(self._inverse(x)))

    def _damped(self, eta: Array) -> Array:
        return jnp.zeros_like(eta) if self.damping is None else self.damping * eta

    def _ordered(self, function, x: Array) -> Array:
        return function(x) if self.order is None else scatter(function(x[self.order]), self.order)


class Primal(AbstractSolver):
    """Eigenvectors of G (Cholesky of G + λ where the inverse is damped), for every inverse.

    O(m P² + P³) operations, O(P²) memory. Where the model is understood (dense layers) G is summed
    from factors of the layers, 2 N P² operations however many outputs a sample has.
    """

    structured: bool = eqx.field(static=True, default=True)
    """Whether to use the structure of the model; the result does not depend on it."""
    careful: bool = eqx.field(static=True, default=True)
    """Whether eigenvectors take over where a damping is too small for Cholesky; NaN otherwise."""

    @property
    def quick(self):
        return Primal(self.structured, careful=False)

    def check(self, inverse):
        pass

    def cost(self, setting, inverse):
        workspace = WORKSPACE if self.structured else MEMORY
        cost = primal_cost(setting, inverse, self.structured, workspace)
        return primal_share(setting, inverse, self.structured, workspace, cost)

    def family(self, rows: AbstractRows) -> Family:
        """Return G, kept to be damped several times.

        **Arguments:**

        - `rows`: what is to be factorised.
        """
        gram, order = self._metric(rows)
        return Family(
            as_matrix(gram, rows), eqx.Partial(PrimalFactors, rows=rows, order=order), rows
        )

    def factorise(self, rows, inverse):
        gram, order = self._metric(rows)
        if inverse.damping is None:
            return PrimalFactors(rows, eigen(gram, rows, inverse), None, order)
        damping = jnp.asarray(inverse.damping, rows.dtype)
        factors = damped(as_matrix(gram, rows), damping, self.careful)
        return PrimalFactors(rows, factors, damping, order)

    def _metric(self, rows: AbstractRows) -> tuple[Gram, np.ndarray | None]:
        """Return G, and the order of its parameters if that is not the one of the flat vector."""
        if not self.structured:
            return _plain(rows), None
        term, *others = rows.terms
        if others:
            return dense_gram(rows), None
        found = find(term, single=True)
        if found is None:
            return _plain(rows), None
        return rows.summed(metric_gram(term, found)), found.order


def dense_metric(rows: AbstractRows) -> Float[Array, "P P"]:
    """Return G, from factors of the layers where the model is understood, in the flat order."""
    return dense_gram(rows).matrix


def dense_gram(rows: AbstractRows) -> Gram:
    """Return the same, and what was taken off it."""
    return rows.summed(per_term(rows, _dense_gram))


def _dense_gram(rows: Rows) -> Gram:
    """Return the part of G of one term."""
    found = find(rows, single=True)
    if found is None:
        return _plain(rows)
    gram = metric_gram(rows, found)
    lower = jnp.tril(gram.matrix)
    matrix = lower + jnp.tril(lower, -1).T
    place = np.argsort(found.order)
    return Gram(matrix[place][:, place], gram.lost)


def _plain(rows: AbstractRows) -> Gram:
    """Return G from the rows, of which everything was taken off before."""
    return Gram(rows.gram(), jnp.zeros((), rows.dtype))
