r"""A natural gradient step in a constrained parameter space: one step of the optimiser with a fixed
rate \(h\), by projection or with a penalty \(p\),

\[ \theta \mapsto \mathrm{proj}_C(\theta - h\,\delta), \qquad \theta \mapsto \theta - h\,(\delta +
G^+ dp) , \]

and what the constraint did to it. `pullback.constraint` has the effect of each on invariance.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._base.checks import error, positive
from .._base.results import RESULTS, describe, failed, outcome
from .._base.show import brief, number, several, table
from .._base.tree import all_finite, split, structure
from .._base.types import Params, Scalar
from .._compat.xla import jit
from .._natural.evaluate import fraction
from .._natural.failure import bad_leaves, raise_failure
from .._natural.outcome import first, warn_of_precision
from .._natural.stats import Stats
from .._natural.subproblem import subproblem
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._problem.validate import is_traced, validate
from ..constraint._base import AbstractConstraint
from ..constraint._penalty import Penalty
from ..inverse._base import AbstractInverse
from ..solver._strategy import Strategy
from ..step._fixed import Fixed


class ConstrainedStep(eqx.Module):
    """A step under a constraint, and the correction that the constraint made.

    ```python
    box = pb.constraint.Clipping(0.0, 1.0)
    moved = pb.constrained_step(problem, params, (x, y), step=0.1, constraint=box)
    moved.params, moved.correction
    ```
    """

    params: Params
    """The new point."""
    free: Params
    """Where the step would have led without the constraint."""
    slack: Scalar
    """How far inside the new point is; negative if outside, which only a penalty allows."""
    correction: Scalar
    """How far the constraint moved the point, ‖params - free‖; zero if it was not met."""
    dropped: Scalar
    """The fraction of the penalty's differential outside the range of G, which the inverse drops;
    zero without a penalty."""
    result: RESULTS
    """A code that is data; `RESULTS[result]` is its message."""

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name} {value}" for name, value in self._numbers())
        return f"ConstrainedStep({several(self.slack)}{numbers}, {outcome(self.result)})"

    def _repr_html_(self) -> str:
        return table([*self._numbers(), ("result", self.message)])

    @property
    def message(self) -> str:
        """The name of the result, and what to do about it if it is a failure."""
        return describe(self.result)

    def _numbers(self) -> list[tuple[str, str]]:
        names = ("slack", "correction", "dropped")
        return [(name, number(getattr(self, name))) for name in names]


def constrained_step(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    step: float | Scalar,
    constraint: AbstractConstraint | Penalty,
    inverse: AbstractInverse | None = None,
    throw: bool = True,
) -> ConstrainedStep:
    """Return a natural gradient step under a constraint, by projection, clipping or a penalty.

    The step is that of `NaturalGradientDescent(problem, step=step.Fixed(h), constraint=...)` or
    `penalty=...`. It is returned also if the loss is not finite at the new point, where the
    optimiser would stay.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, which must satisfy the constraint
        (unless it is a penalty).
    - `step`: the step size, a positive number.
    - `constraint`: one of `pullback.constraint`: `Simplex()`, `PositiveDefinite()` (projection),
        `Clipping(a, b)`, `Penalty(constraint, strength)`.
    - `inverse`: which generalised inverse; defaults to `MoorePenrose()`.
    - `throw`: whether a failure raises; with `False`, check `result`.
    """
    if not isinstance(constraint, AbstractConstraint | Penalty):
        example = "constrained_step(..., constraint=pullback.constraint.Simplex())"
        wanted = "one of pullback.constraint"
        raise error("constrained_step", "constraint", constraint, wanted, example)
    positive("constrained_step", "step", step)
    params, data = validate(problem, params, batch)
    if isinstance(constraint, AbstractConstraint):
        constraint.refuse(params)
    strategy = Strategy(inverse).as_data()
    # The rate travels as data: another step size compiles nothing.
    rule = Fixed(jnp.asarray(step))
    traced = is_traced((problem, params, data, strategy, rule, constraint))
    found, stats = _jitted(problem, params, data, strategy, rule, constraint, not traced)
    if traced:
        if not throw:
            return found
        checked = found.result.error_if(found.params, failed(found.result))
        return eqx.tree_at(lambda s: s.params, found, checked)
    if throw:
        _raise_move(found, constraint)
        raise_failure(found.result, problem, params, data)
    warn_of_precision(stats, stacklevel=3)
    return found


def _step(
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
    strategy: Strategy,
    rule: Fixed,
    constraint: AbstractConstraint | Penalty,
    check_samples: bool,
) -> tuple[ConstrainedStep, Stats]:
    penalty = constraint if isinstance(constraint, Penalty) else None
    projection = None if isinstance(constraint, Penalty) else constraint
    limits = constraint.constraint if isinstance(constraint, Penalty) else constraint
    sub = subproblem(problem, params, batch, strategy, penalty=penalty, constraint=projection)
    move, _ = rule.step(sub, rule.init(sub.dtype))
    stats, result = sub.judge(check_samples)
    moved = sub.point(move.displacement)
    like, carried = structure(params), split(params)[1]
    displacement = move.displacement
    dropped = jnp.zeros((), like.dtype)
    if penalty is not None:
        rows = sub.evaluation.rows
        g = like.ravel_covector(penalty.covector(params)).astype(rows.dtype)
        v = sub.solve(None, g)
        displacement = displacement + move.rate * v
        outside = g - rows.rmv(rows.mv(v))
        # A differential of zero is inside the set: nothing is dropped.
        size = jnp.linalg.norm(g)
        dropped = jnp.where(size > 0, fraction(jnp.linalg.norm(outside), size), 0.0)
    flat = like.ravel(params) + displacement.astype(like.dtype)
    free = eqx.combine(like.unravel(flat), carried)
    slack = limits.slack(moved)
    lost = ~all_finite(free), RESULTS.nonfinite_move
    outside = ~all_finite(moved) | jnp.isnan(slack), RESULTS.nonfinite_constraint
    made = first([lost, outside], None)
    result = RESULTS.where(failed(result) | (made == RESULTS.successful), result, made)
    found = ConstrainedStep(
        params=moved,
        free=free,
        slack=slack,
        correction=jnp.linalg.norm(like.ravel(moved) - like.ravel(free)),
        dropped=dropped.astype(like.dtype),
        result=result,
    )
    return found, stats


def _raise_move(found: ConstrainedStep, constraint: AbstractConstraint | Penalty) -> None:
    """Raise a `RuntimeError` for a step that is not finite, with the piece and the leaf."""
    if bool(found.result == RESULTS.nonfinite_move):
        raise RuntimeError(f"{RESULTS[found.result]}{bad_leaves(found.free, 'free')}")
    if bool(found.result == RESULTS.nonfinite_constraint):
        words = f" Returned by constraint={brief(constraint)}.{bad_leaves(found.params, 'params')}"
        raise RuntimeError(f"{RESULTS[found.result]}{words}")


_jitted = jit(_step)
