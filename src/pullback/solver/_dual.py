r"""`Dual`: the m × m kernel \(K = AA^\top\). For more parameters than rows of A.

\(A^+ r = A^\top K^+ r\) and \(G^+ g = A^\top K^+ K^+ A g\); damped, \((G + λ)^{-1} g = (g -
A^\top(K + λ)^{-1} A g)/λ\); for any other filter \(h(G)\,A^\top r = A^\top h(K)\,r\).

Metrics that saturate: if \(\hat K = \hat A\hat A^\top\) has full rank the weights cancel, \(A^+ r =
\hat A^\top \hat K^{-1} \hat r\), and \(\hat K\) is what is factorised.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Flat, Scalar
from .._base.vector import norm
from .._gram.apply import products
from .._gram.centred import Gram
from .._gram.holomorphic import half_factors, half_of, half_rows
from .._gram.joint import find, joint_factors, joint_rows, mean_of
from .._rows.rows import AbstractRows
from ._base import AbstractSolver, Places, skip_zero
from ._cost import dual_cost
from ._cost_devices import dual_share
from ._panels import PanelFactor
from ._redamped import without
from ._scaled_rows import ScaledRows
from ._symmetric import (
    CANCELS,
    TALL,
    TURNS,
    AbstractSymmetricFactors,
    Damped,
    Eigen,
    Family,
    damped,
    eigen,
    refine,
)

HIDDEN, UNDECIDED = 1e4, 50.0
"""Of the largest singular value of A, in eps: above the first one is more than rounding, and below
the second it is rounding; what may be either, and matters, is refused."""


class DualFactors(AbstractSymmetricFactors):
    """K by eigenvectors, or K + λ by Cholesky, and the rows it was made of."""

    scaled: ScaledRows
    """Their scale is e^ℓ, or one where the weights cancel."""
    grading: Float[Array, " m"]
    gram: Eigen | Damped
    damping: Float[Array, ""] | None
    kernel: Float[Array, ""]
    """h₀ of a filter that is neither damped nor a pseudo-inverse."""

    @property
    def formed_rows(self):
        return None if self.scaled.rows.dense is None else self.scaled.rows

    @property
    def places(self):
        panels = isinstance(self.gram, Damped) and isinstance(self.gram.cholesky, PanelFactor)
        return Places(parts=("K",)) if panels else Places(whole=("K",))

    def solve_lifted(self, r):
        gram, r = self.gram, self.scaled.scale * r
        if isinstance(gram, Damped):
            return self._solve_damped(r, None)
        if not gram.refinements:
            return self.scaled.rmv(gram.apply_resolved(r))
        x = self.scaled.rmv(self._refined(gram.apply, r))
        return self._turn(gram.apply, r, x, gram.refinements)

    def solve_both(self, r, g):
        if isinstance(self.gram, Damped):
            return self._solve_damped(self.scaled.scale * r, g)
        return super().solve_both(r, g)

    def solve_covector(self, g):
        gram, mv, rmv = self.gram, self.scaled.mv, self.scaled.rmv
        if isinstance(gram, Damped):
            return self._solve_damped(None, g)
        if not gram.refinements:
            outside = without(lambda g: self.combine(self.coordinates(g)), g)
            return self.combine(gram.h * self.coordinates(g)) + self.kernel * outside
        # A⁺(Aᵀ)⁺g. Where the weights cancel, A = D Â, and D⁻² stands between the two.
        start = gram.apply(mv(g))
        y = refine(gram, lambda g: gram.apply(mv(g)), lambda y: g - rmv(y), start)
        ratio = self.scaled.scale / jnp.where(self.grading > 0, self.grading, 1.0)
        return rmv(self._refined(gram.apply, y * ratio * ratio))

    def _solve_damped(self, r: Array | None, g: Flat | None) -> Flat:
        """Return Aᵀ(K + λ)⁻¹ r + (G + λ)⁻¹ g by Cholesky; `None` stands for zero."""
        gram, mv, rmv = self.gram, self.scaled.mv, self.scaled.rmv
        assert isinstance(gram, Damped)

        def lifted(inverse, r):
            y = self._refined(inverse, r)
            x = rmv(y)
            # A small difference of large numbers; through the model, of the means of its rows, too.
            # With more rows than parameters r is in part outside the range of A, where y is r/λ.
            rows, parameters = self.scaled.rows.shape
            cancels = self._whole * norm(y) > (CANCELS if rows <= parameters else TALL) * norm(x)
            # Not a loop of no turns or some: XLA would turn the factor round for it in any case.
            again = lambda x: self._turn(inverse, r, x, gram.refinements + 1)
            return jax.lax.cond(cancels, again, lambda x: x, x)

        def woodbury(inverse, part, g):
            once = lambda g: (g - rmv(inverse(mv(g)))) / gram.damping
            if part is not None:
                return once(g)  # Below rounding no residual tells more, and it is refused.

            def turn(_, state):
                v, image = state
                v = v + once(g - rmv(image) - gram.damping * v)
                return v, mv(v)

            # From zero: its first turn is the first solution, and is compiled once. Av is carried:
            # it is a sum of large terms, Aᵀ uses it in each layer, and XLA may sum it in another
            # order for each use; what is then no image of Aᵀ would be divided by λ.
            start = (jnp.zeros_like(g), jnp.zeros_like(self.grading))
            return jax.lax.fori_loop(0, gram.refinements + 1, turn, start)[0]

        def how(inverse, part):
            x = jnp.zeros(self.scaled.rows.shape[1], gram.damping.dtype)
            if r is not None:
                x = lifted(inverse, r) if part is None else self._resolved(part, r)
            return x if g is None else x + skip_zero(lambda g: woodbury(inverse, part, g), g)

        return gram.solve(how)

    @property
    def _whole(self) -> Scalar:
        """The size of K before anything was taken off it."""
        return self.gram.size + self.scaled.removed

    def _resolved(self, part, r: Array) -> Flat:
        """Return Aᵀ(K + λ)⁻¹ r without eigenvectors that are rounding.

        Along those y is r/λ, and its rounding may be all that Aᵀy keeps of it. A singular value may
        hide there. Aᵀ shows it, and along what it shows the step is that of steepest descent; no
        step is left over in the end.
        """
        gram, mv, rmv = self.gram, self.scaled.mv, self.scaled.rmv
        assert isinstance(gram, Damped)
        eps = float(jnp.finfo(r.dtype).eps)

        def turn(_, state):
            rest = self._rest(r, state[0])
            image = mv(rest)
            hidden = image - part.project(image)
            w = rmv(hidden)
            size, rounding = norm(w), eps * self._whole * norm(hidden)
            w = w - rmv(part.inverse(mv(w)))
            rate = jnp.vdot(w, rest) / (norm(mv(w)) ** 2 + gram.damping * norm(w) ** 2)
            left = jnp.where(size > UNDECIDED * rounding, rate * w, 0.0)
            step = jnp.where(size > HIDDEN * rounding, left, 0.0)
            return state[0] + rmv(part.inverse(part.inverse(image))) + step, norm(left)

        start = (rmv(self._refined(part.inverse, r)), jnp.zeros((), r.dtype))
        x, last = jax.lax.fori_loop(0, TURNS, turn, start)
        return jnp.where(last <= eps**0.5 * norm(x), x, jnp.nan)

    def _rest(self, r: Array, x: Flat) -> Flat:
        """Return Aᵀ(r - Ax) - λx."""
        pulled = self.scaled.rmv(r - self.scaled.mv(x))
        return pulled if self.damping is None else pulled - self.damping * x

    def _turn(self, inverse, r: Array, x: Flat, turns: int | Array) -> Flat:
        """Return a solution refined by the normal equations.

        What of r is outside the range of A comes in through the eigenvectors, off by eps cond(A)²,
        or through y, which is r/λ there, and stays in the residual of K; the normal equations do
        not see it. On the range (K + λ)⁻² K ≈ (K + λ)⁻¹.
        """
        mv, rmv = self.scaled.mv, self.scaled.rmv
        again = lambda _, x: x + rmv(inverse(inverse(mv(self._rest(r, x)))))
        return jax.lax.fori_loop(0, turns, again, x)

    def in_range(self, damped):
        return _DampedRange(self, damped)

    def project(self, eta):
        if isinstance(self.gram, Damped):
            return jnp.full_like(eta, jnp.nan)
        if not self.gram.refinements:
            return self.combine(jnp.where(self.gram.kept, self.coordinates(eta), 0.0))
        return self.scaled.rmv(self.gram.apply(self.scaled.mv(eta)))

    def coordinates(self, eta):
        return self._over_s(self.eigen.vectors.T @ self.scaled.mv(eta))

    def combine(self, w):
        return self.scaled.rmv(self.eigen.vectors @ self._over_s(w))

    def _over_s(self, w: Array) -> Array:
        """Return w/s; zero where s is rounding, which has no direction in the parameters."""
        resolved = self.s > self.resolution
        return jnp.where(resolved, w / jnp.where(resolved, self.s, 1.0), 0.0)

    def _refined(self, inverse, r: Array) -> Array:
        """Return (K + λ)⁺ r from an approximate inverse."""

        def rest(y):
            image = r - self.scaled.product(y)
            return image if self.damping is None else image - self.damping * y

        return refine(self.gram, inverse, rest, inverse(r))


class _DampedRange(eqx.Module):
    """Damped eigenvector factors, with (G + λ)⁻¹ on the range as A⁺_λ (Aᵀ)⁺, (Aᵀ)⁺ = K⁺A."""

    undamped: DualFactors
    damped: DualFactors

    def solve_lifted(self, r):
        return self.damped.solve_lifted(r)

    def solve_in_range(self, g):
        scaled = self.undamped.scaled
        y = self.undamped.eigen.apply(scaled.mv(g))
        # `solve_lifted` multiplies by the scale again.
        positive = scaled.scale > 0
        return self.damped.solve_lifted(
            jnp.where(positive, y / jnp.where(positive, scaled.scale, 1.0), 0.0)
        )


class Dual(AbstractSolver):
    """Eigenvectors of K (Cholesky of K + λ where the inverse is damped), for every inverse.

    O(m² P + m³) operations, O(m P + m²) memory, of which each of several devices has a share if the
    inverse is damped. Where the model is understood (dense layers, convolutions, look-ups) K is
    computed from factors of the layers, and A is never formed.
    """

    structured: bool = eqx.field(static=True, default=True)
    """Whether to use the structure of the model; the result does not depend on it."""
    careful: bool = eqx.field(static=True, default=True)
    """Whether eigenvectors take over where a damping is too small for Cholesky; NaN otherwise."""

    @property
    def quick(self):
        return Dual(self.structured, careful=False)

    def check(self, inverse):
        pass

    def cost(self, setting, inverse):
        cost = dual_cost(setting, inverse, self.structured)
        return dual_share(setting, inverse, self.structured, cost)

    def family(self, rows: AbstractRows) -> Family:
        """Return K, kept to be damped several times.

        **Arguments:**

        - `rows`: what is to be factorised.
        """
        graded = self._scaled(rows)(rows.scale)
        zero = jnp.zeros((), rows.dtype)
        build = eqx.Partial(DualFactors, scaled=graded, grading=rows.scale, kernel=zero)
        return Family(graded.kept(), build, graded.rows)

    def factorise(self, rows, inverse):
        scaled = self._scaled(rows)
        grading = rows.scale
        kernel = jnp.asarray(inverse.kernel, rows.dtype)
        graded = scaled(grading)
        if inverse.damping is not None:
            damping = jnp.asarray(inverse.damping, rows.dtype)
            return DualFactors(
                graded, grading, damped(graded, damping, self.careful), damping, kernel
            )
        if not (rows.graded and inverse.cancels_weights):
            return DualFactors(graded, grading, eigen(graded(), rows, inverse), None, kernel)
        unit = scaled(jnp.ones_like(grading))()
        plain = eigen(unit, rows, inverse)
        # A row of zeros (an output that the metric ignores) has no weight that could matter.
        present = rows.active & (jnp.diagonal(unit.matrix) != 0)
        full = plain.spectrum.rank == jnp.sum(present, dtype=jnp.int32)
        weighed = lambda k: eigen(
            Gram(grading[:, None] * k.matrix * grading[None, :], k.lost), rows, inverse
        )
        gram = jax.lax.cond(full, lambda _: plain, weighed, unit)
        hides = gram.spectrum.rank < plain.spectrum.rank
        marks = lambda g: (g.spectrum.graded, g.spectrum.hides)
        gram = eqx.tree_at(marks, gram, (full, hides))
        return DualFactors(scaled(jnp.where(full, 1.0, grading)), grading, gram, None, kernel)

    def _scaled(self, rows: AbstractRows):
        """Return scale ↦ diag(scale) Â."""
        here, found = rows.local, find(rows) if self.structured else None
        if found is not None and found.groups:
            if rows.turns:
                (term,) = rows.terms
                half = half_factors(term, found.parts[0])
                return lambda scale: ScaledRows(rows, None, scale, half=half)
            if mean_of(rows) is not None:
                factors = joint_factors(rows, found)
                return lambda scale: ScaledRows(rows, factors, scale)

            def scaled(scale):
                factors = joint_factors(here, found, rows.own(scale))
                # Over devices products are those of the rows, which end in one sum.
                chosen = products(factors, found) if rows.axis is None else None
                return ScaledRows(rows, factors, scale, chosen)

            return scaled
        if found is None and rows.turns and (term := rows.terms[0]).by_block:
            half = half_rows(term)
            return lambda scale: ScaledRows(rows, None, scale, half=half)
        # Rows that are formed anyway are kept: a product with them is cheaper than a pass through
        # the model.
        dense = here.unit_rows() if found is None else joint_rows(here, found)
        formed = rows.formed(dense, None if found is None else found.order)
        half = half_of(dense) if rows.turns else None
        return lambda scale: ScaledRows(formed, None, scale, half=half)
