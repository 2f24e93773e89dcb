"""Statistics of a natural gradient: pure functions of the solution and its factors."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.axis import Axis
from .._base.show import applies, facts, is_single, number, ratio, several, table
from .._base.types import Count, Flat, Scalar
from .._rows.base import AbstractRows
from ..solver._base import Places
from .alignment import alignment
from .evaluate import Evaluation, fraction
from .factorised import Factorised, SecondSolve

UNKNOWN = "not computed by this solver"


class Where(NamedTuple):
    """Over which devices a natural gradient was computed, and what each of them had."""

    devices: int
    """Their number."""
    axes: tuple[str, ...]
    """The axes of the mesh."""
    whole: tuple[str, ...]
    """What every device had."""
    parts: tuple[str, ...]
    """Of what every device had a part."""

    @staticmethod
    def of(axis: Axis | None, places: Places) -> "Where | None":
        """Return where samples and matrices were; `None` on one device."""
        if axis is None or axis.size == 1:
            return None
        whole, parts = ("parameters", *places.whole), ("samples", *places.parts)
        return Where(axis.size, axis.names, whole, parts)

    def __str__(self) -> str:
        axes = ", ".join(map(repr, self.axes))
        whole = f"{', '.join(self.whole)} on each; " if self.whole else ""
        return f"{self.devices} over {axes}; {whole}{', '.join(self.parts)} in parts"


class Stats(eqx.Module):
    """Statistics of a solve: rank, edges of the spectrum, cut-off, fractions, residual.

    ```python
    stats = pb.natural_gradient(problem, params, (x, y)).stats
    print(stats)  # a table
    stats.rank, stats.residual
    ```

    Numbers that the solver does not compute are NaN, and -1 for the rank.
    """

    rank: Count
    """The rank of A that the inverse saw; the sum over the blocks of a block-diagonal metric."""
    largest: Scalar
    """The largest singular value of A (of the rows without their grading, if `graded`); of blocks,
    that of the worst conditioned one."""
    smallest: Scalar
    """The smallest one that was kept."""
    cutoff: Scalar
    """Singular values at or below this counted as zero."""
    output_share: Scalar
    """The fraction of the output covector in the range of the metric, ‖S r‖/‖c‖."""
    tangent_share: Scalar
    """The fraction of the ambient gradient that the model can follow, ‖Π(M⁺c)‖/‖M⁺c‖ in the metric;
    1 for an onto Jacobian; a damped inverse follows less. NaN where Aδ is no projection of it: for
    a block-diagonal metric, and where a part of the gradient is no lifted output covector (one
    outside the range of the metric, a penalty, `metric_batch=`)."""
    covector_share: Scalar
    """The fraction of the parameter covector in the range of G, ‖Πg‖/‖g‖; what is outside has no
    natural gradient."""
    residual: Scalar
    """The certificate: the relative residual recomputed from the solution with products of A; in a
    step with `Spring` or `Geodesic` the largest of those of its solves."""
    alignment: Scalar
    """The cosine, in the metric, of the angle to the natural gradient: 1 but for a solver that
    inverts blocks of G. Of `solver.Blocks` a lower bound, or, with `certify=True`, the cosine."""
    fallback: Array
    """Whether a Cholesky factorisation failed its test and eigenvectors took its place."""
    graded: Array
    """Whether rank and cut-off are those of the rows without their grading."""
    solver: str = eqx.field(static=True)
    """The solver that ran."""
    shape: tuple[int, int] = eqx.field(static=True)
    """(m, P), the shape of A."""
    blocks: int = eqx.field(static=True, default=0)
    """The number of blocks of a block-diagonal metric; 0 for G itself."""
    where: Where | None = eqx.field(static=True, default=None)
    """The devices, and what was where; `None` on one device."""

    @property
    def condition(self) -> Scalar:
        """The condition number of what was kept, largest/smallest."""
        positive = self.smallest > 0
        return jnp.where(positive, self.largest / jnp.where(positive, self.smallest, 1.0), jnp.nan)

    def __repr__(self) -> str:
        return f"Stats({several(self.rank)}{self._text()})"

    def __str__(self) -> str:
        return "\n".join(f"{name:<16}{value}" for name, value in self._lines())

    def _repr_html_(self) -> str:
        return table(self._lines())

    def _text(self) -> str:
        """Return solver, shape, rank, condition and residual, as far as they are computed."""
        m, size = self.shape
        parts = [f"{self.solver}, A is {m} x {size}"]
        parts += facts(rank=self.rank, condition=self._condition(), residual=self.residual)
        parts += [] if self.where is None else [f"{self.where.devices} devices"]
        return ", ".join(parts)

    def _condition(self) -> np.ndarray | None:
        """Return `condition` without compiling anything; `None` if it is not known."""
        return ratio(self.largest, self.smallest)

    def _edges(self) -> str:
        """Return the singular values at the edges, cut-off and condition."""
        cutoff = f"cut-off {number(self.cutoff, '.1e')}"
        condition = f"condition {number(self._condition(), '.1e')}"
        edges = f"{number(self.largest, '.3e')} ... {number(self.smallest, '.3e')}"
        return f"{edges}, {cutoff}, {condition}"

    def _lines(self) -> list[tuple[str, str]]:
        m, p = self.shape
        single = is_single(self.rank)
        graded = " (rank and cut-off of the ungraded rows)" if single and self.graded else ""
        fallback = ", Cholesky fell back on eigenvectors" if single and self.fallback else ""
        unknown = single and int(self.rank) < 0
        edges = applies(self.largest)
        shares = (
            f"outputs {number(self.output_share, '.6f')}, "
            f"tangent {number(self.tangent_share, '.6f')}, "
            f"covector {number(self.covector_share, '.6f')}"
        )
        lines = [
            ("solver", f"{self.solver}, A is {m} x {p}{graded}"),
            ("rank", UNKNOWN if unknown else number(self.rank, "d")),
            ("singular values", UNKNOWN if unknown and not edges else self._edges()),
            ("in range", shares),
            ("residual", f"{number(self.residual, '.1e')}{fallback}"),
        ]
        if self.where is not None:
            lines.append(("devices", str(self.where)))
        if self.blocks:
            cosine = f"{number(self.alignment, '.4f')} or more, to the natural gradient"
            lines.insert(1, ("metric", f"{self.blocks} diagonal blocks of G, inverted one by one"))
            lines.append(("alignment", cosine))
        return lines


def statistics(
    evaluation: Evaluation,
    factorised: Factorised,
    vector: Flat,
    others: Sequence[SecondSolve] = (),
) -> Stats:
    """Return the statistics of a solution δ; `others` are certified with it."""
    rows, factors = factorised.rows, factorised.factors
    eta = rows.from_params(vector)
    lifted, g = factorised.graded(evaluation.lifted), factorised.scaled(evaluation.outside)
    norm, image = jnp.linalg.norm, rows.mv(eta)
    tangent = jnp.asarray(jnp.nan, eta.dtype)
    if evaluation.lifted is not None and not factorised.blocks:
        tangent = fraction(norm(image), norm(lifted))
        if g is not None:
            # A δ is of r and g together; of r alone it is not known.
            tangent = jnp.where(jnp.any(g != 0), jnp.nan, tangent)

    def inside(g: Flat | None) -> Scalar:
        total = rows.rmv(lifted) if g is None else rows.rmv(lifted) + g
        return fraction(norm(factors.project(total)), norm(total))

    # Without a g of its own the covector is Aᵀr, in the range by construction.
    share = jnp.ones((), eta.dtype)
    if factors.knows_row_space:
        share = inside(g)
    elif g is not None and factorised.damping is not None:
        # The row space is not known.
        share = jnp.where(jnp.any(g != 0), jnp.nan, share)
    elif g is not None:
        share = jax.lax.cond(jnp.any(g != 0), inside, lambda g: jnp.ones((), g.dtype), g)
    spectrum = factorised.spectrum
    return Stats(
        rank=spectrum.rank,
        largest=spectrum.largest,
        smallest=spectrum.smallest,
        cutoff=spectrum.cutoff,
        output_share=evaluation.share,
        tangent_share=tangent,
        covector_share=share,
        residual=_residual(evaluation, factorised, vector, others),
        alignment=alignment(factorised, vector, image, evaluation.lifted, evaluation.outside),
        fallback=spectrum.fallback,
        graded=spectrum.graded,
        solver=factorised.solver,
        shape=(row_count(rows), rows.shape[1]),
        blocks=len(factorised.blocks),
        where=Where.of(rows.axis, factors.places),
    )


def _residual(
    evaluation: Evaluation,
    factorised: Factorised,
    vector: Flat,
    others: Sequence[SecondSolve],
) -> Scalar:
    """Return the largest certificate of some solutions."""
    r, g = evaluation.lifted, evaluation.outside
    if not others:
        return factorised.residual(vector, r, g)
    first = (vector, jnp.zeros_like(others[0].r) if r is None else r)
    columns = [first, *((x.vector, x.r) for x in others)]
    vectors, right = (jnp.stack(x) for x in zip(*columns, strict=True))
    if g is not None:
        g = jnp.zeros_like(vectors).at[0].set(g)
    # In a loop the certificate is compiled once.
    return jnp.max(jax.lax.map(lambda x: factorised.residual(*x), (vectors, right, g)))


def row_count(rows: AbstractRows) -> int:
    """Return the number of rows, those apart that fill up the shares of devices."""
    count = rows.shape[0]
    for term in rows.terms:
        counts, entries = term.objective.problem.measure.counts, term.objective.count
        if counts is not None:
            everywhere = entries if rows.axis is None else entries * rows.axis.size
            count -= (everywhere - sum(counts)) * (term.shape[0] // entries)
    return count
