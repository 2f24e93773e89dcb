"""Statistics of a natural gradient: pure functions of the solution and its factors."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._base.types import Count, Flat, Scalar
from .evaluate import Evaluation, fraction
from .factorised import Factorised


class Stats(eqx.Module):
    """How a natural gradient came about. Prints as a table.

    Numbers that the solver does not compute are NaN, and -1 for the rank.
    """

    rank: Count
    """The rank of A that the inverse saw."""
    largest: Scalar
    """The largest singular value of A (of the rows without their grading, if `graded`)."""
    smallest: Scalar
    """The smallest one that was kept."""
    cutoff: Scalar
    """Singular values at or below this counted as zero."""
    output_share: Scalar
    """The fraction of the output covector in the range of the metric, ‖S r‖/‖c‖."""
    tangent_share: Scalar
    """The fraction of the ambient gradient that the model can follow, ‖Π(M⁺c)‖/‖M⁺c‖ in the metric;
    1 for an onto Jacobian."""
    covector_share: Scalar
    """The fraction of the parameter covector in the range of G, ‖Πg‖/‖g‖; what is outside has no
    natural gradient."""
    residual: Scalar
    """The certificate: the relative residual recomputed from the solution with products of A."""
    fallback: Array
    """Whether a Cholesky factorisation failed its test and eigenvectors took its place."""
    graded: Array
    """Whether rank and cut-off are those of the rows without their grading."""
    solver: str = eqx.field(static=True)
    """The solver that ran."""
    shape: tuple[int, int] = eqx.field(static=True)
    """(m, P), the shape of A."""

    @property
    def condition(self) -> Scalar:
        """The condition number of what was kept, largest/smallest."""
        positive = self.smallest > 0
        return jnp.where(positive, self.largest / jnp.where(positive, self.smallest, 1.0), jnp.nan)

    def __str__(self) -> str:
        return "\n".join(f"{name:<16}{value}" for name, value in self._lines())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in self._lines())
        return f"<table>{rows}</table>"

    def _lines(self) -> list[tuple[str, Any]]:
        m, p = self.shape
        graded = " (rank and cut-off of the ungraded rows)" if bool(self.graded) else ""
        fallback = ", Cholesky fell back on eigenvectors" if bool(self.fallback) else ""
        rank = int(self.rank)
        return [
            ("solver", f"{self.solver}, A is {m} x {p}{graded}"),
            ("rank", rank if rank >= 0 else "not computed by this solver"),
            (
                "singular values",
                f"{self.largest:.3e} ... {self.smallest:.3e}, cut-off {self.cutoff:.1e}, "
                f"condition {self.condition:.1e}",
            ),
            (
                "in range",
                f"outputs {self.output_share:.6f}, tangent {self.tangent_share:.6f}, "
                f"covector {self.covector_share:.6f}",
            ),
            ("residual", f"{self.residual:.1e}{fallback}"),
        ]


def statistics(evaluation: Evaluation, factorised: Factorised, vector: Flat) -> Stats:
    """Return the statistics of a solution δ."""
    rows, factors = factorised.rows, factorised.factors
    eta = rows.from_params(vector)
    lifted, g = factorised.graded(evaluation.lifted), factorised.scaled(evaluation.outside)
    norm, image = jnp.linalg.norm, rows.mv(eta)
    tangent = jnp.asarray(jnp.nan, eta.dtype)
    if evaluation.lifted is not None:
        tangent = fraction(norm(image), norm(lifted))
    share = jnp.ones((), eta.dtype)
    if g is not None or factors.knows_row_space:
        total = rows.rmv(lifted) if g is None else rows.rmv(lifted) + g
        inside = fraction(norm(factors.project(total)), norm(total))
        # Without a g of its own the covector is Aᵀr, in the range by construction.
        known = g is None or jnp.any(g != 0) | factors.knows_row_space
        share = jnp.where(known, inside, 1.0)
    spectrum = factorised.spectrum
    return Stats(
        rank=spectrum.rank,
        largest=spectrum.largest,
        smallest=spectrum.smallest,
        cutoff=spectrum.cutoff,
        output_share=evaluation.share,
        tangent_share=tangent,
        covector_share=share,
        residual=factorised.residual(vector, evaluation.lifted, evaluation.outside),
        fallback=spectrum.fallback,
        graded=spectrum.graded,
        solver=factorised.solver,
        shape=rows.shape,
    )
