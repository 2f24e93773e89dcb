r"""A problem near a point: what a step rule may ask.

With \(g = \partial(L + R)\) (\(R\) a penalty on the parameters, if there is one) and the pullback
metric in the place of the Hessian, a displacement \(d\) is predicted to change the loss by

\[ q(d) = g^\top d + \tfrac12 \|A d\|^2 , \]

which \(d = -\delta\) minimises. Where it takes the loss in truth, and how far in the metric's own
divergence, is asked of the model.

A penalty has no output covector: \(\partial R\) enters as a parameter covector. `MoorePenrose` and
`TruncatedRank` follow the part of it in the range of \(G\) and leave the rest; a damped inverse
divides the rest by \(\lambda\). `Stats.covector_share` is the share of \(g\) in the range.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.results import RESULTS
from .._base.types import Flat, Params, Scalar
from .._problem.composite import Batch, Composite
from .._rows.gauge import EuclideanGauge
from .._rows.pullback import PullbackMetric
from ..inverse._base import AbstractInverse, MoorePenrose, Tikhonov
from ..solver._base import AbstractSolver, Factorised, whiten
from ..solver._dual import DualFactors
from ..solver._krylov import Krylov
from .evaluate import Assembled, assemble
from .outcome import judge
from .stats import Stats, largest_log_scale, measure


class Curve(eqx.Module):
    """t ↦ t d + t² a/2, a displacement of the parameters."""

    velocity: Flat
    acceleration: Flat | None

    def __call__(self, t: Scalar | float) -> Flat:
        """The displacement at t."""
        t = jnp.asarray(t, self.velocity.dtype)
        straight = t * self.velocity
        return straight if self.acceleration is None else straight + t * t / 2 * self.acceleration


class Local(eqx.Module):
    """The loss near a point, factorised once."""

    assembled: Assembled
    factorised: Factorised
    """The factors of e^-shift A."""
    shift: Scalar
    penalty: Callable | None
    constraint: Callable | None
    bend: float | None = eqx.field(static=True)
    """The largest ratio of acceleration to velocity with which a curve is bent; straight lines if
    `None`.
    """

    @property
    def metric(self) -> PullbackMetric:
        """The pullback metric at the point."""
        return self.assembled.metric

    @property
    def value(self) -> Scalar:
        """The loss at the point, penalty included."""
        return self.assembled.value.astype(self.metric.dtype)

    # ---- where to
    # ---------------------------------------------------------------------------------------------------------

    def direction(self, previous: Flat | None = None) -> Flat:
        """The step d of least (d - p)ᵀW(d - p) among those that minimise q, W the gauge; damped,
        the trade-off between the two.

        It is p - A⁺(r + A p) - G⁺ g_x: the previous step p, corrected by no more than what the
        metric asks for.
        """
        r, g, metric = self.assembled.lifted, self.assembled.outside, self.metric
        right = jnp.zeros(metric.rows, metric.dtype) if r is None else r
        if previous is not None:
            right = right + self.unit_mv(previous)
        d = -self.factorised.lifted(right)
        if g is not None:
            d = d - self.factorised.covector(jnp.exp(-2 * self.shift) * g)
        return d if previous is None else previous + d

    def curve(self, d: Flat) -> Curve:
        r"""The curve that sets out along d.

        Bent: \(f(\theta + td + t^2a/2) = f + t\,Jd + \tfrac12 t^2\,(d^2f[d, d] + Ja) + O(t^3)\),
        and \(a = -A^+ S^\top d^2f[d, d]\) takes away of the second-order term what the model can,
        so that the outputs move along a straight line. The factors are those of the step.
        """
        if self.bend is None:
            return Curve(d, None)
        a = self.acceleration(d)
        return Curve(d, jnp.where(self.curvature(d, a) <= self.bend, a, 0.0))

    def acceleration(self, d: Flat) -> Flat:
        """a of `curve`."""
        metric = self.metric
        v = d.astype(metric.structure.dtype)

        def velocity(flat):
            return eqx.filter_jvp(metric.function, (flat,), (v,))[1]

        _, second = eqx.filter_jvp(velocity, (metric.point,), (v,))
        unit = metric.root.unit_transpose(second).astype(metric.dtype)
        return -self.factorised.lifted(jnp.where(metric.active, unit, 0.0))

    def curvature(self, d: Flat, a: Flat) -> Scalar:
        """‖a‖/‖d‖; 0 for a step of length zero."""
        size = jnp.linalg.norm(d)
        return jnp.where(size > 0, jnp.linalg.norm(a) / jnp.where(size > 0, size, 1.0), 0.0)

    # ---- how far
    # ----------------------------------------------------------------------------------------------------------

    def point(self, displacement: Flat) -> Params:
        """The parameters there, brought back to the constraint if there is one."""
        metric = self.metric
        params = metric._params(metric.point + displacement.astype(metric.structure.dtype))
        return params if self.constraint is None else self.constraint(params)

    def value_at(self, displacement: Flat) -> Scalar:
        """The loss there, penalty included; +inf where it is not finite."""
        a, params = self.assembled, self.point(displacement)
        value = a.metric.problem.value(a.metric.problem.outputs(params, a.batch.inputs), a.batch)
        if self.penalty is not None:
            value = value + self.penalty(params).astype(value.dtype)
        return jnp.where(jnp.isfinite(value), value, jnp.inf).astype(self.metric.dtype)

    def slope(self, d: Flat) -> Scalar:
        """-g·d, the decrease to first order."""
        return -jnp.vdot(self.assembled.covector, d)

    def predicted(self, d: Flat) -> Scalar:
        """-q(d), the decrease that the model with the metric for a Hessian predicts."""
        return self.slope(d) - self.norm(d) ** 2 / 2

    def norm(self, d: Flat) -> Scalar:
        """‖A d‖, the length in the metric."""
        return jnp.linalg.norm(jnp.exp(self.metric.log_scale) * self.unit_mv(d))

    def unit_mv(self, v: Flat) -> Float[Array, " m"]:
        """Â v: that of `metric`, from its rows if they are at hand."""
        operator = self.factorised.operator
        return (
            operator.unit_mv(v)
            if isinstance(operator.gauge, EuclideanGauge)
            else self.metric.unit_mv(v)
        )

    def divergence(self, displacement: Flat) -> Scalar:
        """How far the outputs move, in the metric's divergence, averaged as the metric is; ½‖Ad‖²
        to second order. NaN if it has none.
        """
        metric, problem = self.metric, self.metric.problem
        if not problem.metric.has_divergence or problem.metric.couples_samples:
            return jnp.asarray(jnp.nan, metric.dtype)
        moved = problem.outputs(self.point(displacement), metric.batch.inputs)
        if metric.batch.inputs is None:
            return (
                problem.metric.observe(None, jnp.asarray(0))
                .divergence(moved, metric.outputs)
                .astype(metric.dtype)
            )
        arrays, rest = eqx.partition((moved, metric.outputs, metric.batch.targets), eqx.is_array)

        def one(sample, index):
            u, z, y = eqx.combine(sample, rest)
            return problem.metric.observe(y, index).divergence(u, z)

        count = metric.count
        return problem.measure.total(jax.vmap(one)(arrays, jnp.arange(count))).astype(metric.dtype)

    # ---- what is reported
    # ---------------------------------------------------------------------------------------------------

    def judged(self) -> tuple[Stats, RESULTS]:
        """What is known of the natural gradient here, and whether anything went wrong on the way to
        it.
        """
        a, factorised = self.assembled, self.factorised
        g = (
            None
            if a.outside is None
            else factorised.operator.gauge.pull(jnp.exp(-2 * self.shift) * a.outside)
        )
        right = jnp.zeros(self.metric.rows, self.metric.dtype) if a.lifted is None else a.lifted
        eta = factorised.factors.lifted(right)
        if g is not None:
            eta = eta + factorised.factors.covector(g)
        stats = measure(factorised, eta, a.lifted, g, a.share, self.shift)
        vector = factorised.operator.gauge.lower(eta)
        return stats, judge(a, vector, factorised, stats, False)

    def with_factors(self, factorised: Factorised) -> "Local":
        """The same problem with other factors."""
        return eqx.tree_at(lambda local: local.factorised, self, factorised)


def localise(
    problem: Composite,
    params: Params,
    batch: Batch,
    metric_batch: Batch | None,
    inverse: AbstractInverse,
    solver: AbstractSolver,
    memory: int,
    *,
    damped: bool = False,
    penalty: Callable | None = None,
    constraint: Callable | None = None,
    covector: Array | None = None,
    bend: Any = None,
) -> Local:
    """Assemble and factorise a problem at a point."""
    a = assemble(problem, params, batch, metric_batch, inverse, solver, memory, penalty)
    if covector is not None:
        a = _follow(a, covector.astype(a.metric.dtype))
    shape = (a.metric.rows, a.metric.size)
    solver = solver.resolve(whiten(a.metric, inverse), inverse)
    if (
        damped
        and isinstance(inverse, MoorePenrose)
        and inverse.rtol is None
        and not isinstance(solver, Krylov)
    ):
        # A cut-off that is a number: solvers then do not divide out the grading, with which damping
        # does not commute.
        inverse = MoorePenrose(max(shape) * float(jnp.finfo(a.metric.dtype).eps), inverse.gauge)
    keep = damped or isinstance(inverse, Tikhonov)
    shift = jnp.zeros((), a.metric.dtype) if keep else largest_log_scale(a.metric)
    scaled = eqx.tree_at(lambda m: m.log_scale, a.metric, a.metric.log_scale - shift)
    factorised = scaled.factorise(inverse, solver)
    if isinstance(factorised.factors, DualFactors):
        # Its rows, where it formed them, make products cheaper than a pass through the model.
        factorised = eqx.tree_at(lambda f: f.operator, factorised, factorised.factors.rows.operator)
    return Local(a, factorised, shift, penalty, constraint, bend)


def _follow(a: Assembled, g: Flat) -> Assembled:
    """The same problem with another gradient, g = α (the own one) + e. What is along the own one
    keeps its lift, which squares no condition number; e is a parameter covector, and none if it is
    no more than the rounding of two ways to differentiate one loss.
    """
    own = a.covector
    square = jnp.vdot(own, own)
    alpha = jnp.where(square > 0, jnp.vdot(g, own) / jnp.where(square > 0, square, 1.0), 1.0)
    e = g - alpha * own
    noise = jnp.sqrt(jnp.finfo(own.dtype).eps) * jnp.linalg.norm(g)
    e = jnp.where(jnp.linalg.norm(e) > noise, e, 0.0)
    lifted = None if a.lifted is None else alpha * a.lifted
    outside = e if a.outside is None else alpha * a.outside + e
    return eqx.tree_at(
        lambda x: (x.covector, x.lifted, x.outside),
        a,
        (g, lifted, outside),
        is_leaf=lambda x: x is None,
    )
