r"""Certificate, statistics and outcome of a solution whose vectors are leaf by leaf.

With \(\rho = g - G\eta - λ\eta\), a damped inverse is certified by \(\|\rho\|/\|g\|\), and so is a
pseudo-inverse without a \(g_x\); with one by \(\|A\rho\|/\|Ag\|\). What counts as rounding is that
of `certificate.py`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.leaves import Vector
from .._base.results import RESULTS
from .._base.tree import all_finite
from .._base.types import Scalar
from .._rows.leafwise import LeafwiseRows
from ..inverse._base import AbstractInverse
from ..solver._leafwise import LeafwiseFactors
from .certificate import Solution, relative, tolerance
from .evaluate import Evaluation, fraction
from .outcome import (
    all_admitted,
    dropped,
    finite_data,
    first,
    is_metric,
    mixes_samples,
    nothing_left,
    saturated,
    underflows,
)  # fmt: skip
from .rounding import noise_of
from .stats import Stats, row_count


class Solved(eqx.Module):
    """A problem at a point and its solution, in tuples of leaves."""

    evaluation: Evaluation
    """`covector` and `outside` are tuples of leaves, `lifted` has the rows of this device."""
    given: LeafwiseRows
    """e^-shift A."""
    inverse: AbstractInverse
    factors: LeafwiseFactors
    g: Vector | None
    """g_x, what enters as a parameter covector, for e^-shift A."""
    vector: Vector
    solver: str = eqx.field(static=True)

    @property
    def damping(self) -> Scalar | None:
        """λ."""
        return self.factors.damping

    @property
    def r(self) -> Float[Array, " m"]:
        """The right-hand side on the rows of this device, with its grading."""
        rows, lifted = self.given, self.evaluation.lifted
        assert lifted is not None
        return rows.scale * jnp.where(rows.active, lifted, 0.0)

    @property
    def present(self) -> Array:
        """Whether there is a g_x that is not zero."""
        return jnp.asarray(False) if self.g is None else self.given.leaves.largest(self.g) != 0


def judge(solved: Solved, check_samples: bool) -> tuple[Stats, RESULTS]:
    """Return the statistics of a solution, and whether anything went wrong on the way to it."""
    stats = _statistics(solved)
    return stats, _outcome(solved, stats, check_samples)


def _statistics(solved: Solved) -> Stats:
    rows, leaves, evaluation = solved.given, solved.given.leaves, solved.evaluation
    one, image, r = jnp.ones((), rows.dtype), rows.mv(solved.vector), solved.r
    total = rows.rmv(r) if solved.g is None else _add(rows.rmv(r), solved.g)
    # A δ is of r and g together; of r alone it is not known.
    tangent = jnp.where(solved.present, jnp.nan, fraction(rows.norm(image), rows.norm(r)))
    share = one
    if solved.g is not None and solved.damping is not None:
        share = jnp.where(solved.present, jnp.nan, one)
    elif solved.g is not None:
        inside = lambda g: fraction(leaves.norm(solved.factors.project(g)), leaves.norm(g))
        share = jax.lax.cond(solved.present, inside, lambda g: one, total)
    spectrum = solved.factors.spectrum
    return Stats(
        rank=spectrum.rank,
        largest=spectrum.largest,
        smallest=spectrum.smallest,
        cutoff=spectrum.cutoff,
        output_share=evaluation.share,
        tangent_share=tangent,
        covector_share=share,
        residual=_certificate(solved, image, total),
        alignment=one,
        fallback=spectrum.fallback,
        graded=spectrum.graded,
        solver=solved.solver,
        shape=(row_count(rows.rows), rows.shape[1]),
    )


def _certificate(solved: Solved, image: Array, total: Vector) -> Scalar:
    """Return the relative residual of a solution, recomputed with products of A."""
    rows, leaves, damping, g = solved.given, solved.given.leaves, solved.damping, solved.g
    residual = solved.r - image
    rest = rows.rmv(residual) if g is None else _add(rows.rmv(residual), g)
    if damping is not None:
        rest = jax.tree.map(lambda x, y: x - damping * y, rest, solved.vector)
    sizes = (
        leaves.norm(solved.vector), rows.norm(residual), rows.norm(solved.r), leaves.norm(total),
        leaves.norm(rest),
    )  # fmt: skip

    # `Solution` knows of vectors by their norms only.
    leafwise: Any = (rows, solved.inverse, solved.factors, solved.factors, damping, solved.vector)
    right: Any = (g, total, rest)

    def solution(largest: Scalar) -> Solution:
        noise = noise_of(leafwise[0], largest, *sizes)
        return Solution(*leafwise, *right, sizes[3], sizes[4], noise)

    def everywhere(solution: Solution) -> Scalar:
        return relative(solution.rest_size, solution.total_size, solution.allowed)

    zero = jnp.zeros((), rows.dtype)
    doubt = ~(everywhere(solution(zero)) <= tolerance(rows.dtype)) | solved.present
    estimate = lambda: leaves.norm(rows.rmv(rows.probe()))
    found = solution(jax.lax.cond(doubt, estimate, lambda: zero))
    if g is None:
        return everywhere(found)
    if damping is not None:
        # Along the kernel of A an error of η is one of ρ/λ.
        hidden = 10 * found.noise.rest > damping * sizes[0]
        return jnp.where(hidden & solved.present, jnp.nan, everywhere(found))
    # What is left of g_x in the kernel is no residual: use what A sees of it, in units of its own.
    unit = jnp.hypot(sizes[3], sizes[4])
    unit = jnp.where(unit > 0, unit, 1.0)
    seen = lambda v: rows.norm(rows.mv(tuple(x / unit for x in v)))
    allowed = found.noise.largest * (found.allowed / unit) + found.unresolved * (sizes[4] / unit)
    return relative(seen(rest), seen(total), allowed)


def _outcome(solved: Solved, stats: Stats, check_samples: bool) -> RESULTS:
    """Return the code of a solution, in the order of `outcome.py`."""
    no, damped = jnp.asarray(False), solved.damping is not None
    rows, leaves, evaluation = solved.given, solved.given.leaves, solved.evaluation
    plain = evaluation.rows
    finite_inputs, finite_outputs = finite_data(evaluation, plain)
    couples = no
    if check_samples:
        couples = mixes_samples(plain.objective, plain.params, plain.outputs)
    differential = (evaluation.value, evaluation.differential)
    top = leaves.largest(solved.vector)
    hidden = dropped(plain, solved.factors.spectrum, solved.inverse, rows.shape)
    covector: Any = evaluation.covector
    lost = (top == 0) & (leaves.largest(covector) > 0)
    verdicts = [
        (~all_finite(plain.params), RESULTS.nonfinite_params),
        (~finite_inputs, RESULTS.nonfinite_batch),
        (~finite_outputs, RESULTS.nonfinite_outputs),
        (couples, RESULTS.coupled_samples),
        (~all_admitted(evaluation), RESULTS.bad_targets),
        (~all_finite(differential), RESULTS.nonfinite_loss),
        (~is_metric(plain), RESULTS.bad_metric),
        (~leaves.all_finite(covector), RESULTS.nonfinite_jacobian),
        (no if damped else saturated(evaluation), RESULTS.saturated),
        (no if damped else hidden, RESULTS.unresolved),
        (evaluation.steep, RESULTS.steep),
        (~leaves.all_finite(solved.vector), RESULTS.nonfinite_vector),
        (underflows(evaluation.underflow, solved.damping, top), RESULTS.underflow),
        (no if damped else nothing_left(evaluation, top), RESULTS.underflow),
        (~(stats.residual <= tolerance(rows.dtype)), RESULTS.unconverged),
        (no if damped else lost, RESULTS.vanished),
    ]
    return first(verdicts, plain.axis)


def _add(a: Vector, b: Vector) -> Vector:
    return jax.tree.map(jnp.add, a, b)
