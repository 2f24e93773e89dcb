r"""The formula, once: a problem at a point, evaluated, factorised, solved and judged.

\[ \delta = A^+ r + G^+ g_x, \]

with \(Sr = c\) and, if part of \(c\) is outside the range of \(M\), \(g_x = J^\top(c - Sr)\), so that
\(\delta = G^+ J^\top c\) always. A gradient whose metric is averaged over another batch has no
\(r\), and \(g_x = J^\top c\); a penalty \(R(\theta)\) adds \(\partial R\) to \(g_x\).

With \(g = \partial(L + R)\) and the pullback metric in the place of the Hessian, a displacement
\(d\) is predicted to change the loss by

\[ q(d) = g^\top d + \tfrac12 \|A d\|^2 , \]

which \(d = -\delta\) minimises. A natural gradient, a step of the optimiser, the right-hand side of
a flow and a tangent kernel are four readers of this object.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.results import RESULTS
from .._base.tree import split
from .._base.types import Flat, OutputCovector, Params, Scalar
from .._problem.batch import Batch
from .._problem.composite import Composite
from .._rows.rows import Rows
from ..inverse._base import AbstractInverse
from ..solver._base import AbstractFactors
from ..solver._strategy import Strategy
from .derivative import stop, with_derivative
from .evaluate import Evaluation, evaluate, follow, lift
from .outcome import outcome
from .stats import Stats, statistics


class Curve(eqx.Module):
    """t ↦ t d + t² a/2, a displacement of the parameters."""

    velocity: Flat
    acceleration: Flat | None

    def __call__(self, t: Scalar | float) -> Flat:
        """Return the displacement at t.

        **Arguments:**

        - `t`: how far along.
        """
        t = jnp.asarray(t, self.velocity.dtype)
        straight = t * self.velocity
        return straight if self.acceleration is None else straight + t * t / 2 * self.acceleration


class Subproblem(eqx.Module):
    """A problem near a point: evaluated once, factorised once, solved once."""

    evaluation: Evaluation
    rows: Rows
    """e^-shift A, in the gauge of the inverse."""
    inverse: AbstractInverse
    factors: AbstractFactors
    damping: Scalar | None
    """λ, of the inverse or of `damped`; `None` if the solution is undamped."""
    shift: Scalar
    """The logarithm of a common factor that was divided out of A."""
    natural: Flat
    """δ, the natural gradient, in the coordinates of the parameters."""
    penalty: Callable | None = None
    constraint: Callable | None = None
    bend: float | None = eqx.field(static=True, default=None)
    """The largest ratio of acceleration to velocity of a bent curve; `None` for straight lines."""
    solver: str = eqx.field(static=True, default="")

    @property
    def value(self) -> Scalar:
        """The loss at the point, penalty included."""
        return self.evaluation.value.astype(self.dtype)

    @property
    def dtype(self) -> Any:
        """The dtype of the linear algebra."""
        return self.rows.dtype

    # ---- solutions ------------------------------------------------------------------------------

    def solve(self, r: Float[Array, " m"] | None, g: Flat | None) -> Flat:
        """Return A⁺(e^ℓ r) + G⁺ g for any right-hand sides.

        **Arguments:**

        - `r`: a lifted covector, its grading divided out; `None` for zero.
        - `g`: a flat parameter covector; `None` for zero.
        """
        eta = _solve(self.factors, self.rows, self.solver, r, self._scaled(g))
        return self.rows.to_params(eta)

    def solve_output(self, c: OutputCovector) -> Flat:
        """Return G⁺ Jᵀ c for an output covector on the batch of the metric.

        **Arguments:**

        - `c`: an output covector.
        """
        lifted = lift(self.evaluation.rows, c)
        outside = lifted.outside
        return self.solve(
            lifted.r, None if outside is None else self.evaluation.rows.pull_output(outside)
        )

    def damped(self, damping: Scalar) -> "Subproblem":
        """Return the same subproblem with (G + λ)⁻¹ on what the inverse keeps.

        **Arguments:**

        - `damping`: λ ≥ 0.
        """
        damping = damping.astype(self.dtype)
        factors = self.factors.damped(damping)
        evaluation = self.evaluation
        g = self._scaled(evaluation.outside)
        eta = _solve(factors, self.rows, self.solver, evaluation.lifted, g)
        where = lambda s: (s.factors, s.damping, s.natural)
        new = (factors, damping, self.rows.to_params(eta))
        return eqx.tree_at(where, self, new, is_leaf=lambda x: x is None)

    def bent(self, bound: float) -> "Subproblem":
        """Return the same subproblem, with curves along which the outputs move straight.

        **Arguments:**

        - `bound`: the largest ‖a‖/‖d‖ with which the second order is used.
        """
        return eqx.tree_at(lambda s: s.bend, self, bound, is_leaf=lambda x: x is None)

    def judge(self, vector: Flat | None = None, check_samples: bool = False) -> tuple[Stats, RESULTS]:
        """Return the statistics of a solution, and whether anything went wrong on the way to it.

        **Arguments:**

        - `vector`: a solution δ of this subproblem; defaults to `natural`.
        - `check_samples`: whether to compare the batch with single samples.
        """
        evaluation = self.evaluation
        vector = self.natural if vector is None else vector
        stats = statistics(
            self.rows,
            self.inverse,
            self.factors,
            self.solver,
            self.damping,
            self.rows.from_params(vector),
            evaluation.lifted,
            self._scaled(evaluation.outside),
            evaluation.share,
            self.shift,
        )
        damped = self.damping is not None
        result = outcome(
            evaluation, self.rows, self.inverse, self.factors, damped, vector, stats, check_samples
        )
        return stats, result

    def _scaled(self, g: Flat | None) -> Flat | None:
        """Return a parameter covector for e^-shift A, in orthonormal coordinates."""
        return None if g is None else self.rows.pull(jnp.exp(-2 * self.shift) * g)

    # ---- where to -------------------------------------------------------------------------------

    def direction(self, previous: Flat | None = None) -> Flat:
        """Return the step d of least (d - p)ᵀW(d - p) among those that minimise q, W the gauge.

        It is p - A⁺(r + A p) - G⁺ g_x: the previous step p, corrected by no more than what the
        metric asks for. Damped, it is the trade-off between the two.

        **Arguments:**

        - `previous`: p; defaults to zero, which is the natural gradient step.
        """
        if previous is None:
            return -self.natural
        return previous - self.natural - self.solve(self.unit_push(previous), None)

    def curve(self, d: Flat) -> Curve:
        r"""Return the curve that sets out along d.

        Bent: \(f(\theta + td + t^2a/2) = f + t\,Jd + \tfrac12 t^2\,(d^2f[d, d] + Ja) + O(t^3)\), and
        \(a = -A^+ S^\top d^2f[d, d]\) takes away of the second-order term what the model can, so
        that the outputs move along a straight line. The factors are those of the step.

        **Arguments:**

        - `d`: a flat vector.
        """
        if self.bend is None:
            return Curve(d, None)
        a = self.acceleration(d)
        return Curve(d, jnp.where(self.curvature(d, a) <= self.bend, a, 0.0))

    def acceleration(self, d: Flat) -> Flat:
        """Return a of `curve`.

        **Arguments:**

        - `d`: a flat vector.
        """
        rows = self.evaluation.rows
        like, carried = rows.structure, split(rows.params)[1]
        v = d.astype(like.dtype)

        def outputs(flat):
            return rows.objective.outputs(eqx.combine(like.unravel(flat), carried))

        def velocity(flat):
            return eqx.filter_jvp(outputs, (flat,), (v,))[1]

        _, second = eqx.filter_jvp(velocity, (like.ravel(rows.params),), (v,))
        return -self.solve(rows.unit_output(second), None)

    def curvature(self, d: Flat, a: Flat) -> Scalar:
        """Return ‖a‖/‖d‖; 0 for a step of length zero.

        **Arguments:**

        - `d`, `a`: velocity and acceleration.
        """
        size = jnp.linalg.norm(d)
        return jnp.where(size > 0, jnp.linalg.norm(a) / jnp.where(size > 0, size, 1.0), 0.0)

    # ---- how far --------------------------------------------------------------------------------

    def point(self, displacement: Flat) -> Params:
        """Return the parameters there, brought back to the constraint if there is one.

        **Arguments:**

        - `displacement`: a flat vector.
        """
        rows = self.evaluation.rows
        like, carried = rows.structure, split(rows.params)[1]
        flat = like.ravel(rows.params) + displacement.astype(like.dtype)
        params = eqx.combine(like.unravel(flat), carried)
        return params if self.constraint is None else self.constraint(params)

    def value_at(self, displacement: Flat) -> Scalar:
        """Return the loss there, penalty included; +inf where it is not finite.

        **Arguments:**

        - `displacement`: a flat vector.
        """
        params = self.point(displacement)
        value = self.evaluation.objective.value(params)
        if self.penalty is not None:
            value = value + self.penalty(params).astype(value.dtype)
        return jnp.where(jnp.isfinite(value), value, jnp.inf).astype(self.dtype)

    def slope(self, d: Flat) -> Scalar:
        """Return -g·d, the decrease to first order.

        **Arguments:**

        - `d`: a flat vector.
        """
        return -jnp.vdot(self.evaluation.covector, d)

    def predicted(self, d: Flat) -> Scalar:
        """Return -q(d), the decrease predicted with the metric for a Hessian.

        **Arguments:**

        - `d`: a flat vector.
        """
        return self.slope(d) - self.norm(d) ** 2 / 2

    def norm(self, d: Flat) -> Scalar:
        """Return ‖A d‖, the length in the metric.

        **Arguments:**

        - `d`: a flat vector.
        """
        return jnp.linalg.norm(self.evaluation.rows.scale * self.unit_push(d))

    def unit_push(self, d: Flat) -> Float[Array, " m"]:
        """Return Â d, from the rows of the factors if they were formed.

        **Arguments:**

        - `d`: a flat vector.
        """
        return self.rows.unit_push(d)

    def divergence(self, displacement: Flat) -> Scalar:
        """Return how far the outputs move, in the metric's divergence; NaN if it has none.

        It is ½‖Ad‖² to second order.

        **Arguments:**

        - `displacement`: a flat vector.
        """
        rows = self.evaluation.rows
        if not rows.objective.has_divergence:
            return jnp.asarray(jnp.nan, rows.dtype)
        moved = rows.objective.outputs(self.point(displacement))
        return rows.objective.divergence(moved, rows.outputs).astype(rows.dtype)


def subproblem(
    problem: Composite,
    params: Params,
    batch: Batch,
    strategy: Strategy,
    metric_batch: Batch | None = None,
    *,
    penalty: Callable | None = None,
    constraint: Callable | None = None,
    covector: Flat | None = None,
) -> Subproblem:
    """Evaluate, plan, factorise and solve a problem at a point.

    `covector` is a gradient to follow in place of the own one; `constraint` brings parameters back
    to where they may be.
    """
    evaluation = evaluate(problem, params, batch, metric_batch, strategy.memory, penalty)
    if covector is not None:
        evaluation = follow(evaluation, covector)
    return factorise(evaluation, strategy, penalty, constraint)


def factorise(
    evaluation: Evaluation,
    strategy: Strategy,
    penalty: Callable | None = None,
    constraint: Callable | None = None,
) -> Subproblem:
    """Plan, factorise and solve what was evaluated."""
    inverse = strategy.inverse
    plain = evaluation.rows
    # A common factor of A cancels in a homogeneous inverse: divide it out, or a batch that is
    # saturated as a whole would underflow.
    shift = jnp.zeros((), plain.dtype)
    if inverse.homogeneous:
        shift = stop(plain.largest_log_scale)
    rows = plain.divided_by(shift).in_gauge(inverse.gauge)
    solver, planned = strategy.solver.resolve(stop(rows), stop(inverse))
    factors = solver.factorise(planned, stop(inverse))
    _check_factors(factors, solver.name)
    # Rows that a solver formed make products cheaper than a pass through the model.
    formed = getattr(factors, "rows", None)
    cheap = formed if isinstance(formed, Rows) and formed.dense is not None else None
    g = evaluation.outside
    g = None if g is None else rows.pull(jnp.exp(-2 * shift) * g)
    eta = stop(_solve(factors, rows, solver.name, stop(evaluation.lifted), stop(g)))
    r = evaluation.lifted
    r = jnp.zeros(rows.shape[0], rows.dtype) if r is None else r
    g = jnp.zeros(rows.shape[1], rows.dtype) if g is None else g
    eta = with_derivative(eta, rows, inverse, r, g, factors=factors)
    damping = None if inverse.damping is None else jnp.asarray(inverse.damping, rows.dtype)
    return Subproblem(
        evaluation=evaluation,
        rows=rows if cheap is None else cheap,
        inverse=inverse,
        factors=factors,
        damping=damping,
        shift=shift,
        natural=rows.to_params(eta),
        penalty=penalty,
        constraint=constraint,
        solver=solver.name,
    )


def _solve(
    factors: AbstractFactors,
    rows: Rows,
    solver: str,
    r: Float[Array, " m"] | None,
    g: Flat | None,
) -> Flat:
    """Return Ã⁺(e^ℓ r) + (ÃᵀÃ)⁺ g in orthonormal coordinates."""
    if r is None:
        r = jnp.zeros(rows.shape[0], rows.dtype)
    eta = _checked(factors.solve_lifted(r), rows, f"{solver}: solve_lifted(r)")
    if g is None:
        return eta
    return eta + _checked(factors.solve_covector(g), rows, f"{solver}: solve_covector(g)")


def _checked(eta: Any, rows: Rows, what: str) -> Flat:
    """Raise a `ValueError` if factors return another shape or dtype than that of a vector."""
    shape, dtype = jnp.shape(eta), jnp.result_type(eta)
    if shape != (rows.shape[1],) or dtype != rows.dtype:
        raise ValueError(
            f"{what} must return a flat vector of shape {(rows.shape[1],)} and dtype {rows.dtype}, "
            f"got shape {shape} and dtype {dtype}."
        )
    return eta


def _check_factors(factors: Any, solver: str) -> None:
    if not isinstance(factors, AbstractFactors):
        raise ValueError(
            f"{solver}.factorise(rows, inverse) must return pullback.solver.AbstractFactors, got "
            f"{type(factors).__name__}."
        )
