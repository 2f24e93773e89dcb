r"""The linear algebra of a point, done once: \(A\), planned and factorised, solved many times.

\[ \delta = A^+ r + G^+ g, \qquad G = A^\top A , \]

for lifted covectors \(r\), parameter covectors \(g\), and other dampings. Whatever a solver returns
is checked for shape and dtype here, and can be certified (`certificate.py`). A block-diagonal
metric in the place of \(G\) is several of these objects, one per block.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.part import Part, join
from .._base.show import facts, ratio
from .._base.types import Count, Flat, Scalar
from .._rows.part import columns
from .._rows.rows import AbstractRows
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractFactors, Spectrum, skip_zero
from ..solver._strategy import Strategy
from .certificate import certify
from .derivative import pushed, stop, with_derivative


class SecondSolve(NamedTuple):
    """A solution besides the natural gradient of the step, x = A⁺(e^ℓ r), with its r."""

    vector: Flat
    r: Float[Array, " m"]


class Factorised(eqx.Module):
    """A factorised whitened Jacobian. Vectors and covectors on the parameters are flat arrays.

    ```python
    factors = pb.pullback(problem, params, (x, y)).factorise()
    factors.spectrum
    ```
    """

    rows: AbstractRows
    """e^-shift A, in the gauge of the inverse."""
    inverse: AbstractInverse
    factors: AbstractFactors
    undamped: AbstractFactors
    """What the solver returned; `factors`, before they were damped."""
    given: AbstractRows
    """What the solver received, without what it formed; these rows are differentiated."""
    damping: Scalar | None
    """λ, of the inverse or of `damped`; `None` if the solution is undamped."""
    shift: Scalar
    """The logarithm of a common factor that was divided out of A."""
    solver: str = eqx.field(static=True)
    """The name of the solver that ran."""

    def __repr__(self) -> str:
        return f"Factorised({self._text()})"

    def _text(self) -> str:
        """Return solver, inverse, shape and what the factorisation found of the spectrum."""
        found = self.factors.spectrum
        condition = ratio(found.largest, found.smallest)
        numbers = facts(damping=self.damping, rank=found.rank, condition=condition)
        return ", ".join([self.rows._text(), repr(self.inverse), self.solver, *numbers])

    @property
    def blocks(self) -> "tuple[tuple[Part, Factorised], ...]":
        """The parts of the parameters with a metric of their own; none if that is G itself."""
        found = self.factors.blocks
        if found is None:
            return ()
        undamped = self.undamped.blocks
        assert undamped is not None
        return tuple(
            (block.part, self._block(block.part, block.factors, before.factors))
            for block, before in zip(found, undamped, strict=True)
        )

    def _block(
        self, part: Part, factors: AbstractFactors, undamped: AbstractFactors
    ) -> "Factorised":
        given = columns(self.given, part)
        formed = undamped.formed_rows
        rows = stop(given) if formed is None else formed
        return Factorised(
            rows, self.inverse, factors, undamped, given, self.damping, self.shift, self.solver
        )

    @property
    def whole(self) -> "Factorised | None":
        """The same of G itself, if it was factorised beside its blocks; `None` otherwise."""
        factors, undamped = self.factors.whole, self.undamped.whole
        if factors is None or undamped is None:
            return None
        rows = self.rows if undamped.formed_rows is None else undamped.formed_rows
        return Factorised(
            rows, self.inverse, factors, undamped, self.given, self.damping, self.shift,
            self.solver,
        )  # fmt: skip

    def need_whole(self, owner: str) -> None:
        """Raise a `ValueError` if blocks of G were inverted in the place of G.

        **Arguments:**

        - `owner`: what needs G itself.
        """
        if self.factors.blocks is not None:
            raise ValueError(
                f"{owner} needs the metric itself, and solver={self.solver}(...) inverts its "
                "diagonal blocks: use solver=pullback.solver.Auto()."
            )

    @property
    def spectrum(self) -> Spectrum:
        """What the factorisation found of the singular values of A."""
        found = self.factors.spectrum
        edges = lambda s: (s.largest, s.smallest, s.cutoff)
        return eqx.tree_at(edges, found, tuple(jnp.exp(self.shift) * x for x in edges(found)))

    @property
    def rank(self) -> Count:
        """The rank of A that the inverse uses; -1 if the solver does not compute it."""
        return self.factors.spectrum.rank

    def solve_lifted(self, r: Float[Array, " m"]) -> Flat:
        """Return A⁺(e^ℓ r).

        **Arguments:**

        - `r`: a lifted covector, its grading divided out.
        """
        return self.solve(r, None)

    def solve_covector(self, g: Flat) -> Flat:
        """Return G⁺ g.

        **Arguments:**

        - `g`: a flat parameter covector.
        """
        return self.solve(None, g)

    def solve(self, r: Float[Array, " m"] | None, g: Flat | None) -> Flat:
        """Return A⁺(e^ℓ r) + G⁺ g, with its derivative.

        **Arguments:**

        - `r`: a lifted covector, its grading divided out; `None` for zero.
        - `g`: a flat parameter covector; `None` for zero.
        """
        if blocks := self.blocks:
            found = [block.solve(r, None if g is None else part.take(g)) for part, block in blocks]
            return join([part for part, _ in blocks], found)
        rows, (m, size) = self.given, self.given.shape
        g = self.scaled(g)
        # The factors are constants. The derivative is that of the equation, not of the algorithm.
        eta = stop(self._solved(stop(r), stop(g)))
        r = jnp.zeros(m, rows.dtype) if r is None else r
        g = jnp.zeros(size, rows.dtype) if g is None else g
        eta = with_derivative(eta, rows, self.inverse, r, g, factors=self.factors)
        return rows.to_params(eta)

    def _solved(self, r: Float[Array, " m"] | None, g: Flat | None) -> Flat:
        """Return Ã⁺(e^ℓ r) + (ÃᵀÃ)⁺ g in orthonormal coordinates, for what `scaled` returned."""
        factors, checked = self.factors, self._checked
        if r is not None and g is not None:
            return checked(factors.solve_both(r, g), "solve_both(r, g)")
        if r is not None:
            return checked(factors.solve_lifted(r), "solve_lifted(r)")
        if g is not None:
            return skip_zero(lambda g: checked(factors.solve_covector(g), "solve_covector(g)"), g)
        return jnp.zeros(self.rows.shape[1], self.rows.dtype)

    def damped(self, damping: Scalar) -> "Factorised":
        """Return factors of (G + λ)⁻¹ on what the inverse keeps, without factorising again.

        **Arguments:**

        - `damping`: λ ≥ 0.
        """
        if not self.inverse.awaits_damping:
            # The scale of A, and the weights of its rows, may have been divided out.
            name = type(self.inverse).__name__
            raise ValueError(
                f"factors of {name} are not damped afterwards: factorise with "
                f"pullback.inverse.Dampable({name}(...)). A step rule that damps returns that "
                "inverse from its method `factorises`."
            )
        damping = jnp.asarray(damping, self.rows.dtype)
        factors = self.undamped.damped(damping)
        _check_factors(factors, f"{type(self.undamped).__name__}.damped(λ)")
        return Factorised(
            self.rows, self.inverse, factors, self.undamped, self.given, damping, self.shift,
            self.solver,
        )  # fmt: skip

    def residual(self, vector: Flat, r: Float[Array, " m"] | None, g: Flat | None) -> Scalar:
        """Return the certificate of a solution: its relative residual, recomputed.

        **Arguments:**

        - `vector`: what `solve` returned.
        - `r`, `g`: the right-hand sides.
        """
        # A certificate is a constant.
        self, vector, r, g = stop((self, vector, r, g))
        if blocks := self.blocks:
            take = lambda part, x: None if x is None else part.take(x)
            each = [block.residual(part.take(vector), r, take(part, g)) for part, block in blocks]
            return jnp.max(jnp.stack(each))
        eta = self.rows.from_params(vector)
        return certify(
            self.rows, self.inverse, self.factors, self.damping, eta, self.graded(r),
            self.scaled(g), undamped=self.undamped, given=self.given,
        )  # fmt: skip

    def unit_push(self, d: Flat) -> Float[Array, " m"]:
        """Return Â d, with its derivative.

        **Arguments:**

        - `d`: a flat vector.
        """
        return pushed(d, self.given, rows=self.rows)

    def graded(self, r: Float[Array, " m"] | None) -> Float[Array, " m"]:
        """Return e^ℓ r, zero for rows that are absent."""
        if r is None:
            return jnp.zeros(self.rows.shape[0], self.rows.dtype)
        return self.rows.scale * jnp.where(self.rows.active, r, 0.0)

    def scaled(self, g: Flat | None) -> Flat | None:
        """Return a parameter covector for e^-shift A, in orthonormal coordinates."""
        return None if g is None else self.given.pull(jnp.exp(-2 * self.shift) * g)

    def _checked(self, eta: Any, what: str) -> Flat:
        """Raise a `ValueError` if factors return another shape or dtype than that of a vector."""
        expected = (self.rows.shape[1],), self.rows.dtype
        shape, dtype = jnp.shape(eta), jnp.result_type(eta)
        if (shape, dtype) != expected:
            raise ValueError(
                f"{self.solver}: {what} must return a flat vector of shape {expected[0]} and dtype "
                f"{expected[1]}, got shape {shape} and dtype {dtype}."
            )
        return eta


def factorise(plain: AbstractRows, strategy: Strategy, careful: bool = True) -> Factorised:
    """Plan and factorise the rows of a point, given in the Euclidean gauge.

    Without `careful`, by a solver that may return NaN (`AbstractSolver.quick`).
    """
    inverse = strategy.inverse
    # A common factor of A cancels in a homogeneous inverse: divide it out, or a batch that is
    # saturated as a whole would underflow.
    shift = jnp.zeros((), plain.dtype)
    if inverse.homogeneous:
        shift = stop(plain.largest_log_scale)
    given = plain.divided_by(shift).in_gauge(inverse.gauge).resolved()
    rows, fixed = stop((given, inverse))
    solver, planned = strategy.solver.resolve(rows, fixed)
    solver = solver if careful else solver.quick
    # Stopped again: a model may close over something that is differentiated.
    factors = stop(solver.factorise(planned, fixed))
    _check_factors(factors, f"{solver.name}.factorise(rows, inverse)")
    if (factors.blocks is not None) != solver.inverts_blocks:
        raise ValueError(
            f"{solver.name}: factors have `blocks` if, and only if, the solver declares "
            f"`inverts_blocks`, which is {solver.inverts_blocks}."
        )
    damping = None if inverse.damping is None else jnp.asarray(inverse.damping, rows.dtype)
    # Rows that a solver formed make products cheaper than a pass through the model.
    formed = rows if factors.formed_rows is None else factors.formed_rows
    return Factorised(formed, inverse, factors, factors, given, damping, shift, solver.name)


def _check_factors(factors: Any, what: str) -> None:
    if not isinstance(factors, AbstractFactors):
        raise ValueError(
            f"{what} must return pullback.solver.AbstractFactors, got {type(factors).__name__}."
        )
    if not isinstance(factors.spectrum, Spectrum):
        raise ValueError(
            f"{what} returned factors whose `spectrum` is {type(factors.spectrum).__name__}; it "
            "must be a pullback.solver.Spectrum, e.g. Spectrum.unknown(rows.dtype)."
        )
