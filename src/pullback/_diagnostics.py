"""What is reported beside a natural gradient: pure functions of it."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._inverse import Tikhonov
from ._types import Count, Flat, Scalar
from .solver._base import Factorised


class Stats(eqx.Module):
    """How a natural gradient came about. NaN, and -1 for the rank, where the solver does not compute a number."""

    rank: Count
    """The rank of A that the inverse saw."""
    largest: Scalar
    """The largest singular value of A (of the rows without their grading, if `graded`)."""
    smallest: Scalar
    """The smallest one that was kept."""
    cutoff: Scalar
    """Singular values at or below this counted as zero."""
    output_share: Scalar
    """The share of the output covector that the metric of the outputs sees, ‖S r‖/‖c‖; 1 if c is in its range."""
    tangent_share: Scalar
    """The share of the ambient gradient that the model can follow, ‖Π(M⁺c)‖/‖M⁺c‖ in the metric; 1 for an onto Jacobian."""
    covector_share: Scalar
    """The share of the parameter covector in the range of G, ‖Πg‖/‖g‖; what is outside has no natural gradient."""
    residual: Scalar
    """The residual of the normal equations, recomputed from the solution with products of A, relative to the covector."""
    fallback: Array
    """Whether a Cholesky factorisation failed its test and eigenvectors took its place."""
    graded: Array
    """Whether rank and cut-off are those of the rows without their grading (a saturating family, undamped)."""
    solver: str = eqx.field(static=True)
    """The solver that ran."""
    shape: tuple[int, int] = eqx.field(static=True)
    """(m, P), the shape of A."""

    @property
    def condition(self) -> Scalar:
        """The condition number of what was kept, largest/smallest."""
        return jnp.where(self.smallest > 0, self.largest / jnp.where(self.smallest > 0, self.smallest, 1.0), jnp.nan)

    def __str__(self) -> str:
        m, p = self.shape
        lines = [
            f"solver          {self.solver}, A is {m} x {p}" + (" (rank and cut-off of the ungraded rows)" if bool(self.graded) else ""),
            f"rank            {int(self.rank) if int(self.rank) >= 0 else 'not computed by this solver'}",
            f"singular values {self.largest:.3e} ... {self.smallest:.3e}, cut-off {self.cutoff:.1e}, condition {self.condition:.1e}",
            f"in range        outputs {self.output_share:.6f}, tangent {self.tangent_share:.6f}, covector {self.covector_share:.6f}",
            f"residual        {self.residual:.1e}" + (", Cholesky fell back on eigenvectors" if bool(self.fallback) else ""),
        ]
        return "\n".join(lines)


def ratio(a: Scalar, b: Scalar) -> Scalar:
    """a/b, and 1 for 0/0.

    **Arguments:**

    - `a`, `b`: two norms.
    """
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1.0), 1.0)


def measure(
    factorised: Factorised,
    eta: Flat,
    r: Float[Array, " m"] | None,
    g: Flat | None,
    output_share: Scalar,
) -> Stats:
    """The statistics of a solution.

    **Arguments:**

    - `factorised`: the factors.
    - `eta`: the solution in orthonormal coordinates.
    - `r`: the lifted covector, its grading divided out; `None` if there was none.
    - `g`: the covector in orthonormal coordinates; `None` if there was none.
    - `output_share`: the share of the output covector in the range of the metric.
    """
    operator, spectrum = factorised.operator, factorised.spectrum
    metric, dtype = operator.metric, eta.dtype
    damping = jnp.asarray(factorised.inverse.damping, dtype) if isinstance(factorised.inverse, Tikhonov) else jnp.zeros((), dtype)
    undamped = not isinstance(factorised.inverse, Tikhonov)
    # Undamped, a common factor of A and r cancels: divide it out, or a uniformly saturated batch would underflow below.
    top = jnp.max(jnp.where(metric.active, metric.log_scale, -jnp.inf), initial=-jnp.inf)
    shift = jnp.where(undamped & jnp.isfinite(top), top, 0.0)
    operator = eqx.tree_at(lambda o: o.metric.log_scale, operator, metric.log_scale - shift)
    image = operator.mv(eta)
    nan = jnp.asarray(jnp.nan, dtype)
    total, tangent = jnp.zeros_like(eta), nan
    left = -image
    if r is not None:
        lifted = operator.scale * jnp.where(metric.active, r, 0.0)
        total, left = operator.rmv(lifted), lifted - image
        tangent = ratio(jnp.linalg.norm(image), jnp.linalg.norm(lifted))
    left = operator.rmv(left) - damping * eta
    if g is None:
        residual = jnp.linalg.norm(left) / jnp.where(jnp.any(total != 0), jnp.linalg.norm(total), 1.0)
    else:
        g = jnp.exp(-2 * shift) * g
        total, left = total + g, left + g
        residual = jnp.linalg.norm(operator.mv(left)) / jnp.where(jnp.any(total != 0), jnp.linalg.norm(operator.mv(total)), 1.0)
    share = jnp.ones((), dtype)
    if g is not None or factorised.factors.resolved:
        inside = ratio(jnp.linalg.norm(factorised.factors.project(total)), jnp.linalg.norm(total))
        # Without a g of its own the covector is Aᵀr, in the range by construction.
        share = inside if g is None else jnp.where(jnp.any(g != 0) | factorised.factors.resolved, inside, 1.0)
    return Stats(
        spectrum.rank, spectrum.largest, spectrum.smallest, spectrum.cutoff, output_share, tangent, share, residual,
        spectrum.fallback, spectrum.graded, factorised.solver, operator.shape,
    )  # fmt: skip
