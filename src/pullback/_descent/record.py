"""What the optimiser keeps between steps, and what it reports of each."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._base.results import RESULTS, among
from .._base.show import table
from .._base.types import Count, Flat, Scalar
from .._natural.stats import Stats
from .._natural.subproblem import Subproblem
from ..step._base import Move
from . import shown

SOLVERS = ("SVD", "Primal", "Dual", "Krylov", "Blocks")
"""The names behind `Record.solver`."""

USABLE = (
    RESULTS.successful,
    RESULTS.rank_zero,
    RESULTS.unconverged,
    RESULTS.unresolved,
    RESULTS.saturated,
)
"""Results whose direction is finite and may be followed, complete or not."""


class DescentState(eqx.Module):
    """The state of the optimiser between steps, returned by `opt.init` and `opt.step`."""

    count: Count
    """The number of steps made, failed and rejected ones included."""
    rule: Any
    """The state of the step rule."""
    previous: Any
    """What the momentum remembers: the last direction, or what its `remember` returned.

    Of size zero if there is no momentum."""
    metric: Any = None
    """What `MetricMemory` keeps; `None` if the metric is not averaged over steps."""
    weights: Any = None
    """The weights of several `Terms` in the next step, if they adapt."""

    def __repr__(self) -> str:
        return shown.state(self)


class Record(eqx.Module):
    """The record of one step: losses, norms, rank, outcome.

    ```python
    params, state, record = opt.step(params, state, (x, y))
    record.loss, record.accepted, record.result
    ```

    Numbers that do not apply are NaN, counts -1.
    """

    step: Count
    """The number of this step, from 0."""
    loss: Scalar
    """Before the step, penalty included."""
    loss_after: Scalar
    """After the step, on the same batch; the loss before it if the step was not taken."""
    norm: Scalar
    """The Euclidean norm of the change of the parameters."""
    metric_norm: Scalar
    """The norm of the same change in the metric, ‖A Δθ‖."""
    gradient_norm: Scalar
    """The Euclidean norm of the gradient before the step, penalty included, that was followed."""
    divergence: Scalar
    """How far the outputs moved in the metric's true divergence; ½ metric_norm² to second order."""
    rate: Scalar
    """The fraction of the direction that was taken."""
    damping: Scalar
    """λ of the step, from the rule or from the inverse."""
    gain: Scalar
    """The decrease of the loss over the decrease that the quadratic model predicts.

    It is that of the proposed step, taken or not."""
    curvature: Scalar
    """‖a‖/‖d‖ of the second-order correction that was used: 0 if none was, because it was too long;
    NaN if it was not finite."""
    trials: Count
    """The number of points that the rule tried."""
    accepted: Array
    """Whether the step was taken."""
    rank: Count
    """The rank of A; -1 if it was not computed."""
    cutoff: Scalar
    """Singular values at or below this counted as zero."""
    range_share: Scalar
    """The fraction of the gradient in the range of the metric G; a penalty may lie outside."""
    output_share: Scalar
    """The fraction of the output covector in the range of the metric on the outputs."""
    tangent_share: Scalar
    """The fraction of the ambient gradient that the model can follow."""
    alignment: Scalar
    """The cosine of the angle to the natural gradient, or a lower bound (`Stats.alignment`)."""
    solver: Count
    """The solver that ran, an index into `SOLVERS`; -1 for a solver of your own."""
    result: RESULTS
    """The outcome of the solve and of the move, a code that is data."""
    leaf: Count
    """The first differentiable leaf in which a move is not finite, as `jax.tree.leaves` counts.

    -1 if there is none, or if a rate that is not finite spoils all of them."""
    losses: PyTree = None
    """The loss of each of several `Terms` before the step, without its weight."""
    weights: PyTree = None
    """The weight of each of several `Terms` in this step."""

    @property
    def failed(self) -> Array:
        """Whether there was no direction to follow, or no move that is finite."""
        return ~among(self.result, USABLE)

    def __repr__(self) -> str:
        return shown.line(self, SOLVERS)

    def _repr_html_(self) -> str:
        return table(shown.lines(self, SOLVERS))

    @property
    def solver_name(self) -> str:
        """The name of the solver that ran, for a single record."""
        return SOLVERS[int(self.solver)] if int(self.solver) >= 0 else "another"


def record_of(
    count: Count,
    sub: Subproblem,
    move: Move,
    stats: Stats,
    result: RESULTS,
    accepted: Array,
    leaf: Count,
    change: Flat,
) -> Record:
    """Return the record of a step that changed the parameters by `change`."""
    dtype, problem = change.dtype, sub.evaluation.objective.problem
    zero = jnp.zeros((), dtype)
    taken = lambda x: jnp.where(accepted, x.astype(dtype), zero)
    flat = change.astype(sub.dtype)
    solver = SOLVERS.index(stats.solver) if stats.solver in SOLVERS else -1
    return Record(
        step=count,
        loss=sub.value.astype(dtype),
        loss_after=jnp.where(accepted, move.value, sub.value).astype(dtype),
        norm=taken(jnp.linalg.norm(flat)),
        metric_norm=taken(sub.norm(flat)),
        gradient_norm=jnp.linalg.norm(sub.evaluation.covector).astype(dtype),
        divergence=taken(sub.divergence(flat)),
        rate=taken(move.rate),
        damping=move.damping.astype(dtype),
        gain=move.gain.astype(dtype),
        curvature=move.curvature.astype(dtype),
        trials=move.trials,
        accepted=accepted,
        rank=stats.rank,
        cutoff=stats.cutoff.astype(dtype),
        range_share=stats.covector_share.astype(dtype),
        output_share=stats.output_share.astype(dtype),
        tangent_share=stats.tangent_share.astype(dtype),
        alignment=stats.alignment.astype(dtype),
        solver=jnp.asarray(solver, jnp.int32),
        result=result,
        leaf=leaf,
        losses=jax.tree.map(lambda x: x.astype(dtype), sub.evaluation.losses),
        weights=jax.tree.map(lambda x: x.astype(dtype), problem.reported_weights),
    )
