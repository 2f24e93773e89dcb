"""What is reported beside a natural gradient: pure functions of it."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.types import Count, Flat, Scalar
from .._rows.pullback import PullbackMetric
from ..inverse._base import Tikhonov
from ..solver._base import Factorised


class Stats(eqx.Module):
    """How a natural gradient came about. NaN, and -1 for the rank, where the solver does not
    compute a number.
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
    """The share of the output covector that the metric of the outputs sees, ‖S r‖/‖c‖; 1 if c is in
    its range.
    """
    tangent_share: Scalar
    """The share of the ambient gradient that the model can follow, ‖Π(M⁺c)‖/‖M⁺c‖ in the metric; 1
    for an onto Jacobian.
    """
    covector_share: Scalar
    """The share of the parameter covector in the range of G, ‖Πg‖/‖g‖; what is outside has no
    natural gradient.
    """
    residual: Scalar
    """The residual of the normal equations, recomputed from the solution with products of A,
    relative to the covector.
    """
    fallback: Array
    """Whether a Cholesky factorisation failed its test and eigenvectors took its place."""
    graded: Array
    """Whether rank and cut-off are those of the rows without their grading (a saturating family,
    undamped).
    """
    solver: str = eqx.field(static=True)
    """The solver that ran."""
    shape: tuple[int, int] = eqx.field(static=True)
    """(m, P), the shape of A."""

    @property
    def condition(self) -> Scalar:
        """The condition number of what was kept, largest/smallest."""
        return jnp.where(
            self.smallest > 0,
            self.largest / jnp.where(self.smallest > 0, self.smallest, 1.0),
            jnp.nan,
        )

    def __str__(self) -> str:
        m, p = self.shape
        lines = [
            f"solver          {self.solver}, A is {m} x {p}"
            + (" (rank and cut-off of the ungraded rows)" if bool(self.graded) else ""),
            f"rank            {int(self.rank) if int(self.rank) >= 0 else 'not computed by this solver'}",
            f"singular values {self.largest:.3e} ... {self.smallest:.3e}, cut-off {self.cutoff:.1e}, condition {self.condition:.1e}",
            f"in range        outputs {self.output_share:.6f}, tangent {self.tangent_share:.6f}, covector {self.covector_share:.6f}",
            f"residual        {self.residual:.1e}"
            + (", Cholesky fell back on eigenvectors" if bool(self.fallback) else ""),
        ]
        return "\n".join(lines)


def ratio(a: Scalar, b: Scalar) -> Scalar:
    """a/b, and 1 for 0/0."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 1.0)


def largest_log_scale(metric: PullbackMetric) -> Scalar:
    """The logarithm of the heaviest row weight of A; zero if every row is absent."""
    top = jnp.max(jnp.where(metric.active, metric.log_scale, -jnp.inf), initial=-jnp.inf)
    return jnp.where(jnp.isfinite(top), top, 0.0)


def measure(
    factorised: Factorised,
    eta: Flat,
    r: Float[Array, " m"] | None,
    g: Flat | None,
    output_share: Scalar,
    shift: Scalar,
) -> Stats:
    """The statistics of a solution."""
    operator, spectrum = factorised.operator, factorised.spectrum
    active, norm = operator.metric.active, jnp.linalg.norm
    damping = factorised.inverse.damping if isinstance(factorised.inverse, Tikhonov) else 0.0
    image = operator.mv(eta)
    lifted = jnp.zeros_like(image) if r is None else operator.scale * jnp.where(active, r, 0.0)
    tangent = jnp.asarray(jnp.nan, eta.dtype) if r is None else ratio(norm(image), norm(lifted))
    total = operator.rmv(lifted)
    left = operator.rmv(lifted - image) - jnp.asarray(damping, eta.dtype) * eta
    if g is None:
        residual = norm(left) / jnp.where(jnp.any(total != 0), norm(total), 1.0)
    else:
        # What is left outside the range is no residual: look at what A sees of it.
        total, left = total + g, left + g
        seen = norm(operator.mv(total))
        residual = norm(operator.mv(left)) / jnp.where(seen > 0, seen, 1.0)
    share = jnp.ones((), eta.dtype)
    if g is not None or factorised.factors.resolved:
        inside = ratio(norm(factorised.factors.project(total)), norm(total))
        # Without a g of its own the covector is Aᵀr, in the range by construction.
        share = (
            inside
            if g is None
            else jnp.where(jnp.any(g != 0) | factorised.factors.resolved, inside, 1.0)
        )
    unit = jnp.exp(shift)
    return Stats(
        rank=spectrum.rank,
        largest=unit * spectrum.largest,
        smallest=unit * spectrum.smallest,
        cutoff=unit * spectrum.cutoff,
        output_share=output_share,
        tangent_share=tangent,
        covector_share=share,
        residual=residual,
        fallback=spectrum.fallback,
        graded=spectrum.graded,
        solver=factorised.solver,
        shape=operator.shape,
    )
