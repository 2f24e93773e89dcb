r"""The formula, once: a problem at a point, evaluated, factorised, solved and judged.

\[ \delta = A^+ r + G^+ g_x, \]

with \(Sr = c\) and, if part of \(c\) is outside the range of \(M\), \(g_x = J^\top(c - Sr)\), so
that \(\delta = G^+ J^\top c\) always. A gradient whose metric is averaged over another batch has no
\(r\), and \(g_x = J^\top c\); a penalty \(R(\theta)\) adds \(\partial R\) to \(g_x\).

With \(g = \partial(L + R)\) and the pullback metric in the place of the Hessian, a displacement
\(d\) is predicted to change the loss by

\[ q(d) = g^\top d + \tfrac12 \|A d\|^2 , \]

which \(d = -\delta\) minimises. A natural gradient, a step of the optimiser, the right-hand side of
a flow and a tangent kernel are four readers of this object.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.results import RESULTS
from .._base.show import number
from .._base.tree import split, structure
from .._base.types import Flat, OutputCovector, Params, Scalar
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from ..solver._strategy import Strategy
from .curve import Curve, second_order
from .derivative import stop
from .evaluate import Evaluation, absorb, evaluate, follow, lift, pull_outside
from .factorised import Factorised, SecondSolve, factorise
from .outcome import outcome
from .stats import Stats, statistics


class Subproblem(eqx.Module):
    """A problem near a point: evaluated once, factorised once, solved once."""

    evaluation: Evaluation
    factorised: Factorised
    natural: Flat | None
    """δ, the natural gradient, in the coordinates of the parameters.

    `None` where the inverse waits for a damping (`inverse._dampable`)."""
    penalty: Callable[[Params], Scalar] | None = None
    constraint: Callable[[Params], Params] | None = None
    aim: Callable[["Subproblem"], Flat] | None = None
    """The direction, of a momentum; `None` for the natural gradient step."""
    longest: Callable[[Flat], Scalar | None] | None = None
    """How much of a direction a step may take, of a momentum; `None` for no bound."""
    previous: Flat | None = None
    """p, the step that a momentum corrects; `None` if it corrects none."""
    second: SecondSolve | None = None
    """G⁺ G p, for the correction; `None` where the inverse waits for a damping."""
    bend: float | Scalar | None = None
    """The largest ratio of acceleration to velocity of a bent curve; `None` for straight lines."""

    def __repr__(self) -> str:
        loss = number(self.evaluation.value, ".6g")
        return f"Subproblem(loss {loss}, {self.factorised._text()})"

    @property
    def value(self) -> Scalar:
        """The loss at the point, penalty included."""
        return self.evaluation.value.astype(self.dtype)

    @property
    def dtype(self) -> Any:
        """The dtype of the linear algebra."""
        return self.evaluation.rows.dtype

    @property
    def damping(self) -> Scalar | None:
        """λ, of the inverse or of `damped`; `None` if the solution is undamped."""
        return self.factorised.damping

    # ---- solutions ------------------------------------------------------------------------------

    @property
    def solution(self) -> Flat:
        """δ; raises a `ValueError` where the inverse waits for a damping."""
        if self.natural is None:
            raise ValueError(
                "inverse=Dampable(...) has no solution before it is damped. In a step rule (its "
                "`factorises` returned `Dampable`) take `sub.damped(λ)` first; elsewhere pass "
                "inverse=pullback.Tikhonov(λ), or the inverse inside."
            )
        return self.natural

    def solve(self, r: Float[Array, " m"] | None, g: Flat | None) -> Flat:
        """Return A⁺(e^ℓ r) + G⁺ g for any right-hand sides.

        **Arguments:**

        - `r`: a lifted covector, its grading divided out; `None` for zero.
        - `g`: a flat parameter covector; `None` for zero.
        """
        return self.factorised.solve(r, g)

    def solve_output(self, c: OutputCovector) -> Flat:
        """Return G⁺ Jᵀ c for an output covector on the batch of the metric.

        **Arguments:**

        - `c`: an output covector.
        """
        rows = self.evaluation.rows
        lifted = lift(rows, c, self.factorised.inverse)
        return self.solve(lifted.r, pull_outside(rows, lifted.outside))

    def damped(
        self, damping: Scalar, natural: Flat | None = None, second: SecondSolve | None = None
    ) -> "Subproblem":
        """Return the same subproblem with (G + λ)⁻¹ on what the inverse keeps.

        **Arguments:**

        - `damping`: λ ≥ 0.
        - `natural`: the solution for that damping, if it is known; solved for if left out.
        - `second`: that of a momentum's correction; solved for if left out.
        """
        factorised = self.factorised.damped(damping)
        if natural is None:
            natural = factorised.solve(self.evaluation.lifted, self.evaluation.outside)
        if second is None and self.previous is not None:
            second = _correcting(factorised, self.previous)
        where = lambda s: (s.factorised, s.natural, s.second)
        return eqx.tree_at(where, self, (factorised, natural, second), is_leaf=lambda x: x is None)

    def aimed(
        self,
        aim: Callable[["Subproblem"], Flat],
        longest: Callable[[Flat], Scalar | None] | None = None,
        previous: Flat | None = None,
    ) -> "Subproblem":
        """Return the same subproblem with another direction.

        **Arguments:**

        - `aim`: the direction as a function of the subproblem.
        - `longest`: the largest part of a direction that a step may take; defaults to no bound.
        - `previous`: p, if the direction is made of `correction(p)`.
        """
        second = None
        if previous is not None and self.natural is not None:
            second = _correcting(self.factorised, previous)
        where = lambda s: (s.aim, s.longest, s.previous, s.second)
        given = (aim, longest, previous, second)
        return eqx.tree_at(where, self, given, is_leaf=lambda x: x is None)

    def bent(self, bound: float | Scalar) -> "Subproblem":
        """Return the same subproblem, with curves along which the outputs move straight.

        **Arguments:**

        - `bound`: the largest ‖a‖/‖d‖ with which the second order is used.
        """
        return eqx.tree_at(lambda s: s.bend, self, bound, is_leaf=lambda x: x is None)

    def judge(
        self, check_samples: bool | Array = False, others: Sequence[SecondSolve] = ()
    ) -> tuple[Stats, RESULTS]:
        """Return the statistics of the solution, and whether anything went wrong on the way to it.

        **Arguments:**

        - `check_samples`: whether to compare the batch with single samples, which tells a model
            that mixes them; may be traced.
        - `others`: the other solutions of a step, judged by the same certificate.
        """
        # Reports are constants: nobody differentiates a certificate.
        evaluation, factorised, vector, others = stop(
            (self.evaluation, self.factorised, self.solution, tuple(others))
        )
        stats = statistics(evaluation, factorised, vector, others)
        return stats, outcome(evaluation, factorised, vector, stats, check_samples, others)

    # ---- where to -------------------------------------------------------------------------------

    def direction(self) -> Flat:
        """Return the step d: -δ, or what a momentum makes of it."""
        if self.aim is not None:
            return self.aim(self)
        return -self.solution

    def correction(self, previous: Flat) -> Flat:
        """Return the step d of least (d - p)ᵀW(d - p) among those that minimise q, W the gauge.

        It is p - A⁺(r + A p) - G⁺ g_x: the previous step p, corrected by no more than what the
        metric asks for. Damped, it is the trade-off between the two. A momentum that calls it
        declares p (`AbstractMomentum.corrects`), so that the solve is certified with the step;
        another p gives NaN.

        **Arguments:**

        - `previous`: p.
        """
        if self.previous is None and self.aim is not None:
            raise ValueError(
                "sub.correction(p) solves once more, and a step certifies what it knows of: return "
                "p from the method `corrects(memory)` of the momentum too."
            )
        if self.previous is None or self.second is None:
            return previous - self.solution - _correcting(self.factorised, previous).vector
        apart, size = jnp.linalg.norm(previous - self.previous), jnp.linalg.norm(self.previous)
        declared = apart <= jnp.sqrt(jnp.finfo(self.dtype).eps) * size
        return jnp.where(declared, previous - self.solution - self.second.vector, jnp.nan)

    def curve(self, d: Flat) -> Curve:
        """Return the curve that sets out along d, bent where `bent` says so (`curve.py`).

        **Arguments:**

        - `d`: a flat vector.
        """
        limit = None if self.longest is None else self.longest(d)
        if self.bend is None:
            return Curve(d, None, limit)
        self.factorised.need_whole("a curve of the second order (Geodesic)")
        # The factors are those of the step.
        r = second_order(self.evaluation.rows, d)
        return Curve.bent(d, SecondSolve(self.solve(r, None), r), self.bend, limit)

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
        return params if self.constraint is None else _confined(self.constraint, params)

    def value_at(self, displacement: Flat) -> Scalar:
        """Return the loss there, penalty included; +inf where it is not finite.

        **Arguments:**

        - `displacement`: a flat vector.
        """
        params = self.point(displacement)
        value = self.evaluation.objective.value(params)
        if self.penalty is not None:
            value = value + jnp.asarray(self.penalty(params)).astype(value.dtype)
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
        return self.factorised.unit_push(d)

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
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    strategy: Strategy,
    metric_batch: AnyBatch | None = None,
    *,
    penalty: Callable[[Params], Scalar] | None = None,
    constraint: Callable[[Params], Params] | None = None,
    covector: Flat | None = None,
    least: Scalar | None = None,
    careful: bool = True,
) -> Subproblem:
    """Evaluate, plan, factorise and solve a problem at a point.

    `covector` is a gradient to follow in place of the own one; `constraint` brings parameters back
    to where they may be; `least` is the least λ of `Subproblem.damped`, if it is known. Without
    `careful` there is less to compile, and the solution may be missing although there is one;
    `outcome.retried` tells.
    """
    evaluation = evaluate(problem, params, batch, strategy, metric_batch, penalty, careful=careful)
    if covector is not None:
        evaluation = follow(evaluation, covector)
    if least is not None:
        strategy = strategy.damped_from(_resolved(least, evaluation))
    factorised = factorise(evaluation.rows, strategy, careful)
    evaluation = absorb(evaluation, factorised.given.active)
    natural = None
    if not strategy.inverse.awaits_damping:
        natural = factorised.solve(evaluation.lifted, evaluation.outside)
    return Subproblem(evaluation, factorised, natural, penalty, constraint)


def _correcting(factorised: Factorised, previous: Flat) -> SecondSolve:
    """Return G⁺ G p of a correction of p."""
    factorised.need_whole("a correction of the last step (Spring)")
    r = factorised.unit_push(previous)
    return SecondSolve(factorised.solve(r, None), r)


def _confined(constraint: Callable[[Params], Params], params: Params) -> Params:
    """Return the point that a constraint returns; raise a `ValueError` unless it is like params."""
    found = constraint(params)
    shapes = lambda tree: (structure(tree).treedef, structure(tree).shapes)
    if shapes(found) != shapes(params):
        described = lambda tree: jax.tree.map(jnp.shape, split(tree)[0])
        raise ValueError(
            "constraint(params) must return parameters with the leaves and shapes of params, "
            f"{described(params)}, got {described(found)}. Integers are no parameters."
        )
    return found


def _resolved(least: Scalar, evaluation: Evaluation) -> Scalar:
    """Return the least λ; -1, which asks for a decomposition, where a parameter covector joins.

    Its part in the kernel of A is divided by λ. Only a decomposition tells that part from rounding.
    """
    outside = evaluation.outside
    return least if outside is None else jnp.where(jnp.any(outside != 0), -1.0, least)
