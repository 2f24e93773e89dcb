r"""The contract of a solver: factorise \(\tilde A = A R^{-1}\) once, solve many times.

Two right-hand sides. A *lifted* output covector, \(\delta = A^+ r\), does not square the condition
number; it is given graded, \(\hat r = e^{-\ell} r\). A parameter *covector*, \(\delta = G^+ g\), is
for gradients that arrive without the outputs.

A solver may not change the result (but for one that inverts the diagonal blocks of G in its place,
and declares it), and does not judge itself: whoever uses the factors recomputes a
certificate from the solution (`pullback._natural.certificate`).
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.part import Part
from .._base.show import facts, ratio, settings, several
from .._base.types import Count, Flat, Scalar
from .._rows.leafwise import LeafwiseRows
from .._rows.rows import AbstractRows
from ..inverse._base import AbstractInverse
from ._cost import Cost, Setting


class Spectrum(eqx.Module):
    """What a factorisation found of the singular values of A; NaN and -1 where it computes none."""

    rank: Count
    largest: Scalar
    smallest: Scalar
    cutoff: Scalar
    fallback: Array
    """Whether a Cholesky factorisation failed its test and eigenvectors took its place."""
    graded: Array
    """Whether these are the singular values of the rows without their grading."""
    hides: Array = eqx.field(default_factory=lambda: jnp.asarray(False))
    """Whether the rows without their grading are known to have a larger rank."""

    def __repr__(self) -> str:
        condition = ratio(self.largest, self.smallest)
        edges = {"largest": self.largest, "smallest": self.smallest, "cutoff": self.cutoff}
        found = facts(rank=self.rank, condition=condition, **edges)
        return f"Spectrum({several(self.rank)}{', '.join(found)})"

    @staticmethod
    def of(s: Float[Array, " k"], kept: Array, cutoff: Scalar, graded: bool = False) -> "Spectrum":
        """Return the edges of a spectrum from singular values, largest first.

        **Arguments:**

        - `s`: the singular values.
        - `kept`: which of them count.
        - `cutoff`: the cut-off used.
        - `graded`: whether they are those of the rows without their grading.
        """
        largest = jnp.max(s, initial=0.0)
        smallest = jnp.min(jnp.where(kept, s, largest), initial=jnp.inf)
        rank = jnp.sum(kept, dtype=jnp.int32)
        return Spectrum(
            rank=rank,
            largest=largest,
            smallest=jnp.where(rank > 0, smallest, 0.0),
            cutoff=jnp.asarray(cutoff, s.dtype),
            fallback=jnp.asarray(False),
            graded=jnp.asarray(graded),
        )

    @staticmethod
    def unknown(dtype: Any, fallback: Array | bool = False) -> "Spectrum":
        """Return a spectrum of which nothing is known.

        **Arguments:**

        - `dtype`: the dtype of the linear algebra.
        - `fallback`: whether the factorisation had to fall back.
        """
        nan = jnp.asarray(jnp.nan, dtype)
        return Spectrum(
            rank=jnp.asarray(-1, jnp.int32),
            largest=nan,
            smallest=nan,
            cutoff=jnp.zeros((), dtype),
            fallback=jnp.asarray(fallback),
            graded=jnp.asarray(False),
        )


class AbstractDecomposition(eqx.Module):
    r"""A decomposition \(\tilde A = U\,\mathrm{diag}(s)\,V^\top\), seen from the parameters."""

    s: eqx.AbstractVar[Float[Array, " k"]]
    """The singular values, largest first."""

    @property
    def resolution(self) -> Scalar:
        """The singular value at or below which the decomposition is rounding."""
        return jnp.zeros((), self.s.dtype)

    @abc.abstractmethod
    def coordinates(self, eta: Flat) -> Float[Array, " k"]:
        """Return Vᵀ η; zero for singular values at rounding level.

        **Arguments:**

        - `eta`: a flat vector in orthonormal coordinates of the gauge.
        """

    @abc.abstractmethod
    def combine(self, w: Float[Array, " k"]) -> Flat:
        """Return V w.

        **Arguments:**

        - `w`: a number per singular value.
        """


class Block(eqx.Module):
    """A block of a block-diagonal metric: some leaves of the parameters, and their factors."""

    part: Part
    """Which leaves."""
    factors: "AbstractFactors"
    """Factors of the columns of Ã that belong to them."""


class Places(NamedTuple):
    """Where the matrices of a solver are, if samples are spread over devices."""

    whole: tuple[str, ...] = ()
    """Those that every device has."""
    parts: tuple[str, ...] = ()
    """Those of which every device has some rows."""


class AbstractFactors(eqx.Module):
    """A factorised Ã: solves in orthonormal coordinates of the gauge."""

    spectrum: eqx.AbstractVar[Spectrum]

    @property
    def blocks(self) -> tuple[Block, ...] | None:
        """The blocks, where a block-diagonal metric is inverted; `None` where it is G itself.

        Each is certified, and differentiated, as the solution of an equation of its own.
        """
        return None

    @property
    def whole(self) -> "AbstractFactors | None":
        """Factors of G itself, beside those of its blocks, to compare with; `None` without."""
        return None

    @abc.abstractmethod
    def solve_lifted(self, r: Float[Array, " m"]) -> Flat:
        """Return Ã⁺ (e^ℓ r), the solution for a lifted covector.

        **Arguments:**

        - `r`: the lifted covector, its grading divided out.
        """

    @abc.abstractmethod
    def solve_covector(self, g: Flat) -> Flat:
        """Return (ÃᵀÃ)⁺ g.

        **Arguments:**

        - `g`: a flat covector in orthonormal coordinates.
        """

    def solve_both(self, r: Float[Array, " m"], g: Flat) -> Flat:
        """Return Ã⁺(e^ℓ r) + (ÃᵀÃ)⁺ g; to be overridden where that is less than two solves.

        **Arguments:**

        - `r`: the lifted covector, its grading divided out.
        - `g`: a flat covector in orthonormal coordinates; often zero.
        """
        return self.solve_lifted(r) + skip_zero(self.solve_covector, g)

    def damped(self, damping: Scalar) -> "AbstractFactors":
        """Return factors of (G + λ)⁻¹ on what the undamped inverse keeps; λ = 0 is that inverse.

        **Arguments:**

        - `damping`: λ ≥ 0.
        """
        raise ValueError(
            f"{type(self).__name__} cannot be damped, and the step rule damps: implement "
            "`damped(λ)`, use solver=pullback.solver.SVD(), Primal(), Dual(), Krylov() or Auto(), "
            "or take a rule that does not damp, e.g. step=pullback.step.LineSearch()."
        )

    def project(self, eta: Flat) -> Flat:
        """Return the projection on the row space that is kept; NaN if it is not known.

        **Arguments:**

        - `eta`: a flat vector in orthonormal coordinates.
        """
        return jnp.full_like(eta, jnp.nan)

    @property
    def log_spread(self) -> Scalar | None:
        """The logarithm of the heaviest over the lightest weight of the rows that decide, in G.

        `None` where the factors do not separate the weights from the rows.
        """
        return None

    @property
    def knows_row_space(self) -> bool:
        """Whether `project` costs two products only."""
        return False

    @property
    def kernel_exact(self) -> bool:
        """Whether solutions are right on the kernel of Ã by construction.

        They are images of Ãᵀ or combinations of its right singular vectors, say, and no residual
        sees that part. Where it is `False`, solutions of an undamped inverse are tested with a
        vector of the kernel, which takes two more solves.
        """
        return False

    @property
    def decomposition(self) -> AbstractDecomposition | None:
        """The exact decomposition behind the factors; `None` if there is none.

        A filter that is neither damped nor a full pseudo-inverse is certified with it.
        """
        return None

    @property
    def formed_rows(self) -> AbstractRows | None:
        """The rows with a dense Ã that the factorisation formed anyway; `None` if there is none.

        Products with them skip the model.
        """
        return None

    @property
    def places(self) -> Places:
        """Where the matrices are, if samples are spread over devices, for a report."""
        return Places()

    @property
    def blurred(self) -> Array:
        """Whether a singular value was dropped that may be more than rounding of a mean.

        Of a solution that it could change, the factors return NaN.
        """
        return jnp.asarray(False)

    @property
    def valid(self) -> Array:
        """Whether every ingredient was admissible, e.g. a positive definite preconditioner."""
        return jnp.asarray(True)


class AbstractSolver(eqx.Module):
    """A way to compute an inverse. To write one, give `check` and `factorise`."""

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def check(self, inverse: AbstractInverse) -> None:
        """Raise a `ValueError`, when things are built, for an inverse it cannot compute.

        **Arguments:**

        - `inverse`: the inverse asked for.
        """

    @abc.abstractmethod
    def factorise(self, rows: AbstractRows, inverse: AbstractInverse) -> AbstractFactors:
        """Factorise Ã.

        **Arguments:**

        - `rows`: Ã as an operator: `mv`, `rmv`, `unit_rows`, `scale`, `gram`, `shape`, `dtype`.
        - `inverse`: which inverse.
        """

    def resolve(
        self, rows: AbstractRows, inverse: AbstractInverse
    ) -> "tuple[AbstractSolver, AbstractRows]":
        """Return the concrete solver that will run, and the rows with what was found on the way.

        **Arguments:**

        - `rows`: what is to be factorised.
        - `inverse`: which inverse.
        """
        return self, rows

    @property
    def quick(self) -> "AbstractSolver":
        """The same solver without what is much to compile and rarely needed.

        Where it would be needed, a quick solver returns NaN. It is tried first where there can be
        a second try, in `natural_gradient` and in steps that are not inside somebody's `jit`.
        """
        return self

    def cost(self, setting: Setting, inverse: AbstractInverse) -> Cost | None:
        """Return the cost estimate; `None` if there is none.

        **Arguments:**

        - `setting`: the shapes.
        - `inverse`: which inverse.
        """
        return None

    def obstacle(self, inverse: AbstractInverse) -> str | None:
        """Return what keeps it from `factorise_leafwise`; `None` if nothing does.

        Sharded parameters are then copied to every device.

        **Arguments:**

        - `inverse`: which inverse.
        """
        return f"solver={self.name}()"

    def factorise_leafwise(self, rows: LeafwiseRows, inverse: AbstractInverse) -> Any:
        """Return factors whose vectors on the parameters are never ravelled.

        **Arguments:**

        - `rows`: A as an operator on the leaves of the parameters, which stay sharded.
        - `inverse`: which inverse.
        """
        raise NotImplementedError

    @property
    def inverts_blocks(self) -> bool:
        """Whether the metric that it inverts is made of the diagonal blocks of G, and is not G.

        Its factors then have `blocks`. What needs G itself (a projection, a rank, a flow) raises.
        """
        return False

    @property
    def name(self) -> str:
        """What to call it in reports."""
        return type(self).__name__


def skip_zero(solve: Callable[[Flat], Flat], g: Flat) -> Flat:
    """Return solve(g); zero without solving if g is, for often nothing is outside the range."""
    # A method of a module that holds tracers cannot be hashed, a function can.
    return jax.lax.cond(jnp.any(g != 0), lambda g: solve(g), jnp.zeros_like, g)


def refuse_filter(solver: str, what: str, inverse: AbstractInverse) -> ValueError:
    """Return the error for an inverse that a solver cannot apply."""
    return ValueError(
        f"solver={solver}(...) {what}, which {type(inverse).__name__} needs. Use "
        "solver=pullback.solver.SVD(), which applies any filter, or a damped inverse: "
        "inverse=pullback.Tikhonov(...)."
    )
