r"""The optimiser: \(\theta_{k+1} = \theta_k + t\,d\), d by a momentum and t by a step rule.

Without a momentum, \(d\) is the natural gradient step \(-\delta\). A step rule may choose the
damping instead of \(t\).

State and record have a fixed structure and fixed dtypes, so that `step` may be jitted, scanned and
mapped over seeds. `step` does not raise for what happens at run time: a step that failed (a NaN in
the batch) or was rejected returns the parameters that it was given, and the record has the reason.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import error, function
from .._base.functions import canonical
from .._base.results import among
from .._base.show import table
from .._base.stateful import any_spoilt, covector_at, renewed
from .._base.tree import as_data, cast_like, has_half, structure
from .._base.types import Covector, Params, Scalar
from .._compat.devices import Layout, shared
from .._compat.xla import jit
from .._natural.effort import EFFORTS, Efforts, effort
from .._natural.outcome import RETRIED, retried
from .._natural.subproblem import subproblem
from .._problem.batch import AnyBatch
from .._problem.layout import find_layout
from .._problem.problem import AbstractProblem
from .._problem.spread import spread
from .._problem.validate import (
    check_point,
    check_problem,
    half_explained,
    is_traced,
    validate,
    validate_metric_batch,
)
from .._rows.rows import MEMORY
from ..constraint._penalty import check_places
from ..inverse._base import AbstractInverse
from ..momentum._base import AbstractMomentum, aimed, as_momentum, kept_memory, recall
from ..solver._base import AbstractSolver
from ..solver._strategy import Strategy
from ..step._base import AbstractStep, first_state, proceed
from ..step._fixed import as_rule
from ..step._line_search import LineSearch
from . import shown
from .half import confined
from .loss import HasLoss
from .metric_memory import MetricMemory, as_memory, check_memory, updated
from .moved import judged, state_judged
from .record import USABLE, DescentState, Record, record_of
from .weighting import as_weighting, next_weights, weighed


class NaturalGradientDescent(HasLoss):
    """Descent along natural gradients.

    ```python
    opt = pb.NaturalGradientDescent(problem, step=pb.step.LevenbergMarquardt())
    params, state, record = opt.step(params, opt.init(params), (x, y))
    ```
    """

    problem: AbstractProblem
    strategy: Strategy
    rule: AbstractStep
    momentum: AbstractMomentum
    metric_batch: AnyBatch | None
    constraint: Callable[[Params], Params] | None
    penalty: Callable[[Params], Scalar] | None
    metric_memory: MetricMemory | None
    weighting: Callable[..., Any] | None

    def __init__(
        self,
        problem: AbstractProblem,
        inverse: AbstractInverse | None = None,
        solver: AbstractSolver | None = None,
        step: AbstractStep | float | Scalar | Callable | None = None,
        momentum: AbstractMomentum | None = None,
        metric_batch: Any = None,
        constraint: Callable[[Params], Params] | None = None,
        penalty: Callable[[Params], Scalar] | None = None,
        memory: int = MEMORY,
        metric_memory: MetricMemory | float | Scalar | None = None,
        weighting: Callable[..., Any] | None = None,
    ):
        """Build an optimiser.

        **Arguments:**

        - `problem`: a `Composite`, or `Terms` of several.
        - `inverse`: which generalised inverse; defaults to `MoorePenrose()`. Rules that damp
            (`LevenbergMarquardt`) take an undamped one.
        - `solver`: how it is computed; defaults to `solver.Auto()`.
        - `step`: how far, one of `pullback.step`; a number is `Fixed(number)`, and so
            is a schedule (Optax's are such). Defaults to `LineSearch()`, which does not let the
            loss rise on the batch.
        - `momentum`: `Spring(mu)` or `HeavyBall(mu)`; defaults to none.
        - `metric_batch`: `(inputs,)` or `(inputs, targets)` to average the metric over, e.g. for
            the Fisher metric of a population; defaults to the batch of each step. `step` takes
            one too.
        - `constraint`: `constraint(params) -> params` projects parameters to where they may be,
            e.g. `pullback.constraint.Simplex()`. The step rule uses the loss there.
        - `penalty`: `penalty(params) -> scalar`, added to the loss (weight decay, a prior,
            `pullback.constraint.Penalty(...)`). It has no part in the metric: its differential is a
            parameter covector. `MoorePenrose` and `TruncatedRank` follow the part of it in the
            range of the metric and leave the rest; `Tikhonov` and `LevenbergMarquardt` divide the
            rest by the damping. `Record.range_share` is the fraction in the range.
        - `memory`: bound in bytes on the working storage of Jacobian blocks.
        - `metric_memory`: an average of the metric over steps, `MetricMemory(0.6)`, or its factor;
            defaults to the metric of each step alone.
        - `weighting`: how the weights of `Terms` change after each step: one of
            `pullback.weights`, or a function `rule(losses, norms, traces, weights) -> weights` of
            numbers per term. Defaults to the weights of the problem.
        """
        check_problem(problem)
        problem.check_loss()
        strategy = Strategy(inverse, solver, memory)
        rule = LineSearch() if step is None else as_rule(step)
        if not isinstance(rule, AbstractStep):
            raise ValueError(
                "step must be one of pullback.step, e.g. step=pullback.step.LineSearch(), a "
                f"number or a schedule, got {step!r}."
            )
        example = "NaturalGradientDescent({}=lambda params: ...)".format
        for name, given in (("constraint", constraint), ("penalty", penalty)):
            if given is not None:
                function("NaturalGradientDescent", name, given, example(name))
        check_places("NaturalGradientDescent", constraint, penalty)
        rule.check(problem, strategy.inverse)
        self.problem = problem
        self.strategy = strategy.with_inverse(rule.factorises(strategy.inverse))
        self.rule = rule
        self.momentum = as_momentum(momentum)
        self.metric_batch = None if metric_batch is None else problem.as_batch(metric_batch)
        self.constraint = canonical(constraint)
        self.penalty = canonical(penalty)
        self.metric_memory = as_memory(metric_memory)
        self.weighting = as_weighting(weighting, problem)
        check_memory(self.metric_memory, problem, self.metric_batch, self.weighting)

    def __repr__(self) -> str:
        parts = [f"{name}={text}" for name, text in shown.parts(self)]
        return f"NaturalGradientDescent({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return table(shown.parts(self))

    def __hash__(self) -> int:
        # `jax.jit(opt.step)` hashes the optimiser, which may hold arrays (the weights of samples):
        # those count by shape here, by value in `==`.
        leaves, treedef = jax.tree.flatten(self)
        described = ((x.shape, x.dtype.name) if eqx.is_array(x) else x for x in leaves)
        return hash((treedef, tuple(described)))

    def init(self, params: Params) -> DescentState:
        """Return the state before the first step.

        **Arguments:**

        - `params`: the parameters.
        """
        like = structure(check_point(self.problem, params))
        memory = self.momentum.init(like.size, like.dtype)
        metric = None
        if self.metric_memory is not None:
            metric = self.metric_memory.init(like.size, like.dtype)
        weights = None if self.weighting is None else getattr(self.problem, "scales", None)
        rule = first_state(self.rule, like.dtype)
        return DescentState(jnp.zeros((), jnp.int32), rule, memory, metric, weights)

    def step(
        self,
        params: Params,
        state: DescentState,
        batch: Any = None,
        *,
        metric_batch: Any = None,
        gradient: Covector | None = None,
    ) -> tuple[Params, DescentState, Record]:
        """Return the new parameters, the new state and the `Record` of one step.

        A pure function: it may be jitted, scanned and mapped over seeds. Called directly, it is
        compiled once for each shape.

        **Arguments:**

        - `params`, `state`: the point, and the state before the step.
        - `batch`: `(inputs, targets)`, `(inputs,)`; for a model without data `(None, targets)` or
            `None`. For `Terms` a dictionary, or a tuple, of one such batch per term.
        - `metric_batch`: what the metric is averaged over in this step; defaults to the
            `metric_batch` of the optimiser.
        - `gradient`: a covector to follow in place of the gradient of the problem, e.g. a clipped
            one; `as_optax` passes one. Complex leaves are as `jax.grad` returns them.
        """
        arguments = self._arguments(params, state, batch, metric_batch, gradient)
        traced = is_traced(arguments)
        _, point, _, data, other, *_ = arguments
        with half_explained(params):
            level = None
            if not traced:
                level = effort(self.problem, point, data, other).at(int(state.count))
            run, arguments = _program(level, arguments)
            moved, new, record = run(*arguments, careful=traced)
        if not traced and retried(record.result):
            moved, new, record = run(*arguments, careful=True)
        return cast_like(moved, params), new, record

    def attempt(
        self, params: Params, state: DescentState, batch: Any
    ) -> tuple[Params, DescentState, Record, Array]:
        """Return what `step` returns, from a program without what is rarely needed.

        The last value tells that there is no answer, and that `step` is to be called. `fit` does.

        **Arguments:**

        - `params`, `state`, `batch`: as of `step`.
        """
        arguments = self._arguments(params, state, batch, None, None)
        with half_explained(params):
            run, arguments = _program(None, arguments)
            moved, new, record = run(*arguments, careful=False)
        return cast_like(moved, params), new, record, among(record.result, RETRIED)

    def efforts(self, params: Params, batch: AnyBatch) -> Efforts:
        """Return how hard XLA works on the steps of a loop with such batches. `fit` calls it.

        **Arguments:**

        - `params`, `batch`: as of `step`; shapes are enough.
        """
        return effort(self.problem, params, batch, self.metric_batch)

    def as_data(self) -> "NaturalGradientDescent":
        """Return the optimiser with its numbers as arrays: another rate or damping is then data.

        `step` and `fit` use it, so that a changed number compiles nothing.
        """
        where = lambda o: (o.strategy, o.rule, o.momentum, o.metric_memory, o.weighting)
        numbers = (self.strategy.as_data(), *map(as_data, where(self)[1:]))
        return eqx.tree_at(where, self, numbers, is_leaf=lambda x: x is None)

    def _arguments(self, params, state, batch, metric_batch, gradient) -> tuple[Any, ...]:
        """Return the arguments of `_step`, checked."""
        if not isinstance(state, DescentState):
            example = "opt.step(params, opt.init(params), batch)"
            raise error("step", "state", state, "what opt.init(params) returned", example)
        short = params if has_half(params) else None
        params, data = validate(self.problem, params, batch, spread=True)
        gradient = covector_at(params, gradient)
        other = self.metric_batch if metric_batch is None else metric_batch
        other = validate_metric_batch(self.problem, other, data)
        check_memory(self.metric_memory, self.problem, other, self.weighting)
        return self.as_data(), params, state, data, other, gradient, short


def _step(
    opt: NaturalGradientDescent,
    params: Params,
    state: DescentState,
    batch: AnyBatch,
    metric_batch: AnyBatch | None,
    gradient: Covector | None,
    short: Params | None,
    careful: bool,
) -> tuple[Params, DescentState, Record]:
    like = structure(params)
    problem, memory = weighed(opt.problem, state.weights), opt.metric_memory
    if memory is not None:
        problem = memory.stacked(problem, state.metric, batch)
        batch = memory.batches(batch)
    covector = None if gradient is None else like.ravel_covector(gradient)
    sub = subproblem(
        problem, params, batch, opt.strategy, metric_batch,
        penalty=opt.penalty,
        constraint=confined(opt.constraint, short),
        covector=covector, least=opt.rule.least_damping(state.rule), careful=careful,
    )  # fmt: skip
    sub = aimed(opt.momentum, sub, state.previous)
    move, rule = proceed(opt.rule, sub, state.rule)
    # What is certified is the solution behind the move; it is not solved for again.
    solved = (
        sub if sub.natural is not None else sub.damped(move.damping, move.solution, move.second)
    )
    # A model that mixes samples shows it in the first step, or in its residual.
    stats, result = solved.judge(state.count == 0, move.solves)
    if memory is not None:
        result = memory.judged(result, opt.problem, sub.evaluation)
    fresh = sub.evaluation.linear.state
    if opt.problem.stateful:
        result = state_judged(params, fresh, result)
    failed = ~among(result, USABLE)
    # Made once: this point is compared, measured and returned. Trials have seen the old state.
    there = renewed(sub.point(move.displacement), fresh)
    recalled = recall(opt.momentum, solved, state.previous, move.direction)
    spoilt, forgotten = any_spoilt(state.rule, rule), any_spoilt(state.previous, recalled)
    own = (opt.momentum.remembers, opt.constraint is not None)
    result, leaf = judged(solved, move, there, result, (spoilt, forgotten), own)
    accepted = move.accepted & among(result, USABLE)
    keep = lambda new, old: jnp.where(accepted, new, old) if eqx.is_array(new) else new
    new_params = jax.tree.map(keep, there, params)
    kept = lambda new, old, lost=failed: jnp.where(lost, old, new).astype(old.dtype)
    renew = lambda: next_weights(opt.weighting, sub.evaluation)
    new_state = DescentState(
        count=state.count + 1,
        rule=jax.tree.map(partial(kept, lost=failed | spoilt), rule, state.rule),
        previous=kept_memory(opt.momentum, sub, state.previous, recalled, accepted, failed),
        metric=updated(memory, sub.evaluation.rows, state.metric, failed),
        weights=None if state.weights is None else jax.tree.map(kept, renew(), state.weights),
    )
    change = like.ravel(new_params) - like.ravel(params)
    record = record_of(state.count, sub, move, stats, result, accepted, leaf, change)
    if memory is not None:
        record = memory.told(record, opt.problem, state.metric)
    return new_params, new_state, record


def _shared_step(
    layout: Layout,
    opt: NaturalGradientDescent,
    params: Params,
    state: DescentState,
    batch: AnyBatch,
    metric_batch: AnyBatch | None,
    gradient: Covector | None,
    short: Params | None,
    careful: bool,
) -> tuple[Params, DescentState, Record]:
    """Return what `_step` returns, for samples that are spread over devices."""

    def one(common, samples):
        opt, params, state, gradient, short = common
        batch, metric_batch = samples
        opt = eqx.tree_at(lambda o: o.problem, opt, spread(opt.problem, layout))
        return _step(opt, params, state, batch, metric_batch, gradient, short, careful), None

    common = (opt, params, state, gradient, short)
    return shared(layout, one, common, (batch, metric_batch))[0]


_jitted = {level: jit(_step, level) for level in EFFORTS}
_shared = {level: jit(_shared_step, level) for level in EFFORTS}


def _program(level: int | None, arguments: tuple[Any, ...]) -> tuple[Callable, tuple[Any, ...]]:
    """Return the program for the devices on which the samples are, and its arguments there."""
    opt, params, state, data, other, gradient, short = arguments
    # The metric of earlier steps belongs to no sample.
    separable = opt.metric_memory is None
    common = (opt, params, state, gradient, short)
    layout, (common, (data, other)) = find_layout(
        opt.problem, params, (data, other), common, separable
    )
    if layout is None:
        return _jitted[level], arguments
    opt, params, state, gradient, short = common
    return partial(_shared[level], layout), (opt, params, state, data, other, gradient, short)
