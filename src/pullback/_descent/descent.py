r"""The optimiser: \(\theta_{k+1} = \theta_k + t\,d\), with \(d\) the natural gradient step or what
a momentum makes of it, and \(t\) (or the damping) by a step rule.

State goes in and comes out; both it and the record have a fixed structure and fixed dtypes, so that
`step` may be jitted, scanned and mapped over seeds. Nothing is raised: a step that failed (a NaN in
the batch) or was rejected returns the parameters it was given, and the record says why.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.results import RESULTS
from .._base.tree import all_finite, structure
from .._base.types import Count, Covector, Flat, Params, Scalar
from .._natural.outcome import is_traced, prepare
from .._natural.subproblem import Local, localise
from .._problem.composite import as_batch, check_params
from .._rows.pullback import MEMORY
from ..inverse._base import AbstractInverse
from ..momentum._base import AbstractMomentum, as_momentum, remember
from ..solver._base import AbstractSolver
from ..step._base import AbstractStep, Move
from ..step._damping import redamp
from ..step._fixed import Fixed

SOLVERS = ("SVD", "Primal", "Dual", "Krylov")
"""The names behind `Record.solver`."""

USABLE = (
    RESULTS.successful,
    RESULTS.rank_zero,
    RESULTS.unconverged,
    RESULTS.unresolved,
    RESULTS.saturated,
)
"""Results whose direction is finite and may be followed, complete or not; the record tells which it
was.
"""


class DescentState(eqx.Module):
    """What is kept between steps."""

    count: Count
    """The number of steps made, failed and rejected ones included."""
    rule: Any
    """The state of the step rule."""
    previous: Flat
    """The last direction, for the momentum; of size zero if there is none."""


class Record(eqx.Module):
    """What one step was. Numbers that do not apply are NaN, counts -1."""

    step: Count
    """The number of this step, from 0."""
    loss: Scalar
    """Before the step, penalty included."""
    loss_after: Scalar
    """After it, on the same batch; that before if the step was not taken."""
    norm: Scalar
    """The Euclidean norm of the change of the parameters."""
    metric_norm: Scalar
    """The norm of that change in the metric, ‖A Δθ‖."""
    divergence: Scalar
    """How far the outputs moved in the metric's true divergence; ½ metric_norm² to second order."""
    rate: Scalar
    """Which part of the direction was taken."""
    damping: Scalar
    """λ of the step, by the rule or by the inverse."""
    gain: Scalar
    """The decrease of the loss over the one that the quadratic model predicts, of the step that was
    proposed.
    """
    curvature: Scalar
    """‖a‖/‖d‖ of the second-order correction that was used."""
    trials: Count
    """How many points the rule tried."""
    accepted: Array
    """Whether the step was taken."""
    rank: Count
    """The rank of A."""
    cutoff: Scalar
    """Singular values at or below this counted as zero."""
    range_share: Scalar
    """The share of the gradient in the range of the metric G; a penalty may lie outside."""
    output_share: Scalar
    """The share of the output covector that the metric of the outputs sees."""
    tangent_share: Scalar
    """The share of the ambient gradient that the model can follow."""
    solver: Count
    """Which solver ran, a place in `SOLVERS`; -1 for one of your own."""
    result: RESULTS
    """A code that is data: what went wrong, if anything did."""

    @property
    def failed(self) -> Array:
        """Whether there was no direction to follow."""
        return _unusable(self.result)

    @property
    def solver_name(self) -> str:
        """The name of the solver that ran (of a single record)."""
        return SOLVERS[int(self.solver)] if int(self.solver) >= 0 else "another"


def _unusable(result: RESULTS) -> Array:
    bad = result != USABLE[0]
    for fine in USABLE[1:]:
        bad = bad & (result != fine)
    return bad


class NaturalGradientDescent(eqx.Module):
    """Descent along natural gradients."""

    problem: Any
    inverse: AbstractInverse
    solver: AbstractSolver
    rule: AbstractStep
    momentum: AbstractMomentum
    metric_batch: Any
    constraint: Callable | None
    penalty: Callable | None
    memory: int = eqx.field(static=True)

    def __init__(
        self,
        problem: Any,
        inverse: AbstractInverse | None = None,
        solver: AbstractSolver | None = None,
        step: AbstractStep | None = None,
        momentum: AbstractMomentum | None = None,
        metric_batch: Any = None,
        constraint: Callable[[Params], Params] | None = None,
        penalty: Callable[[Params], Scalar] | None = None,
        memory: int = MEMORY,
    ):
        """Put an optimiser together.

        **Arguments:**

        - `problem`: a `Composite`.
        - `inverse`: which generalised inverse; `MoorePenrose()` if left out. Rules that damp
            (`LevenbergMarquardt`) take an undamped one.
        - `solver`: how it is computed; `solver.Auto()` if left out.
        - `step`: how far, one of `pullback.step`; `Fixed(1.0)`, the whole natural gradient, if left
            out.
        - `momentum`: `Spring(mu)` or `HeavyBall(mu)`; none if left out.
        - `metric_batch`: `(inputs,)` or `(inputs, targets)` to average the metric over, if not over
            the batch of the step: the Fisher metric of a population rather than of the training
            samples. May also be given step by step.
        - `constraint`: `constraint(params) -> params` brings parameters back to where they may be.
            The step rule judges the loss there.
        - `penalty`: `penalty(params) -> scalar`, added to the loss (weight decay, a prior). It has
            no share in the metric: its differential is a parameter covector. `MoorePenrose` and
            `TruncatedRank` follow the part of it in the range of the metric and leave the rest,
            `Tikhonov` and `LevenbergMarquardt` divide the rest by the damping; `Record.range_share`
            says how much is in the range.
        - `memory`: bound in bytes on the working storage of Jacobian blocks.
        """
        problem, _, _, _, inverse_, solver_ = prepare(
            problem, jnp.zeros(1), None, inverse, solver, None, memory
        )
        step = Fixed() if step is None else step
        if not isinstance(step, AbstractStep):
            raise ValueError(
                f"step must be one of pullback.step, e.g. step=pullback.step.LineSearch(), got {step!r}."
            )
        for name, given in (("constraint", constraint), ("penalty", penalty)):
            if given is not None and not callable(given):
                raise ValueError(
                    f"{name} must be a function of the parameters, got {type(given).__name__}."
                )
        step.check(problem, inverse_)
        self.problem, self.solver, self.rule = problem, solver_, step
        self.inverse = inverse_ if inverse is None else inverse
        self.momentum, self.constraint, self.penalty, self.memory = (
            as_momentum(momentum),
            constraint,
            penalty,
            memory,
        )
        self.metric_batch = None if metric_batch is None else as_batch(metric_batch)

    def __hash__(self) -> int:
        # `jax.jit(opt.step)` hashes the optimiser, which may hold arrays (the weights of samples):
        # those count by shape here, by value in `==`.
        leaves, treedef = jax.tree.flatten(self)
        return hash(
            (treedef, tuple((x.shape, x.dtype.name) if eqx.is_array(x) else x for x in leaves))
        )

    def init(self, params: Params) -> DescentState:
        """The state before the first step.

        **Arguments:**

        - `params`: the parameters.
        """
        check_params(params)
        like = structure(params)
        size = like.size if self.momentum.remembers else 0
        return DescentState(
            jnp.zeros((), jnp.int32), self.rule.init(like.dtype), jnp.zeros(size, like.dtype)
        )

    def step(
        self,
        params: Params,
        state: DescentState,
        batch: Any = None,
        *,
        metric_batch: Any = None,
        gradient: Covector | None = None,
    ) -> tuple[Params, DescentState, Record]:
        """One step. A pure function: jit it, scan it, map it over seeds; called as it is, it is
        compiled once for each shape.

        **Arguments:**

        - `params`, `state`: where we are.
        - `batch`: `(inputs, targets)`, `(inputs,)`, or `None` for a model without data.
        - `metric_batch`: what the metric is averaged over in this step, if not what the optimiser
            was made with.
        - `gradient`: a covector to follow in place of the gradient of the problem (clipped, say);
            Optax gives one.

        **Returns:**

        The new parameters, the new state, and the `Record`.
        """
        other = self.metric_batch if metric_batch is None else metric_batch
        _, params, data, other, inverse, _ = prepare(
            self.problem, params, batch, self.inverse, self.solver, other, self.memory
        )
        args = (self, inverse, params, state, data, other, gradient)
        return _step(*args) if is_traced(args) else _jitted(*args)


def _step(
    opt: NaturalGradientDescent, inverse, params, state: DescentState, batch, metric_batch, gradient
):
    like = structure(params)
    local = _localise(
        opt,
        inverse,
        params,
        batch,
        metric_batch,
        None if gradient is None else like.ravel(gradient),
    )
    move, rule = opt.rule.step(local, opt.momentum.aim(state.previous), state.rule)
    judged = local
    if opt.rule.damps:
        damping = jnp.where(jnp.isfinite(move.damping), move.damping, 0.0)
        judged = local.with_factors(redamp(local.factorised, damping))
    stats, result = judged.judged()
    failed = _unusable(result)
    # The point is made once, and is what is compared, measured and returned.
    there = local.point(move.displacement)
    accepted = move.accepted & ~failed & all_finite(there)
    keep = lambda new, old: jnp.where(accepted, new, old) if eqx.is_array(new) else new
    new_params = jax.tree.map(keep, there, params)
    state = DescentState(
        count=state.count + 1,
        rule=jax.tree.map(
            lambda new, old: jnp.where(failed, old, new).astype(old.dtype), rule, state.rule
        ),
        previous=remember(opt.momentum, state.previous, move.direction, accepted, failed),
    )
    change = like.ravel(new_params) - like.ravel(params)
    return (
        new_params,
        state,
        _record(opt, state.count - 1, local, move, stats, result, accepted, change, like.dtype),
    )


_jitted = eqx.filter_jit(_step)


def _localise(opt: NaturalGradientDescent, inverse, params, batch, metric_batch, covector) -> Local:
    return localise(
        opt.problem,
        params,
        batch,
        metric_batch,
        inverse,
        opt.solver,
        opt.memory,
        damped=opt.rule.damps,
        penalty=opt.penalty,
        constraint=opt.constraint,
        covector=covector,
        bend=opt.rule.bend,
    )


def _record(
    opt, count, local: Local, move: Move, stats, result, accepted, change: Array, dtype
) -> Record:
    own = getattr(opt.inverse, "damping", jnp.nan)
    zero = jnp.zeros((), dtype)
    taken = lambda x: jnp.where(accepted, x.astype(dtype), zero)
    flat = change.astype(local.metric.dtype)
    return Record(
        step=count,
        loss=local.value.astype(dtype),
        loss_after=jnp.where(accepted, move.value, local.value).astype(dtype),
        norm=taken(jnp.linalg.norm(flat)),
        metric_norm=taken(local.norm(flat)),
        divergence=taken(local.divergence(flat)),
        rate=taken(move.rate),
        damping=jnp.where(
            jnp.isnan(move.damping), jnp.asarray(own, local.metric.dtype), move.damping
        ).astype(dtype),
        gain=move.gain.astype(dtype),
        curvature=move.curvature.astype(dtype),
        trials=move.trials,
        accepted=accepted,
        rank=stats.rank,
        cutoff=stats.cutoff.astype(dtype),
        range_share=stats.covector_share.astype(dtype),
        output_share=stats.output_share.astype(dtype),
        tangent_share=stats.tangent_share.astype(dtype),
        solver=jnp.asarray(
            SOLVERS.index(stats.solver) if stats.solver in SOLVERS else -1, jnp.int32
        ),
        result=result,
    )
