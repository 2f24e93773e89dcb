r"""`flow`: integrate \(\dot\theta = -v(\theta)\) from a point. The data travel as arguments:
another dataset of the same shape compiles nothing.
"""

from collections.abc import Sequence
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array

from .._base.results import RESULTS, failed, successful_if
from .._base.tree import Structure, split, structure
from .._base.types import Flat, Params
from .._natural.outcome import is_traced, prepare, raise_failure
from .._problem.composite import Batch, Composite, check_batch, presented
from .._rows.pullback import MEMORY
from ..constraint import AbstractConstraint
from ..event import AbstractEvent, RankChange
from .clock import AbstractClock, Time
from .fields import AbstractFlow, Inspection, NaturalFlow
from .metric_controller import MetricControl, MetricController
from .trajectory import Trajectory


class Arguments(eqx.Module):
    """What the field needs besides the state."""

    problem: Composite
    batch: Batch
    carried: Any
    kind: AbstractFlow
    clock: AbstractClock
    start: Inspection
    collapse: Any
    t0: Array
    like: Structure = eqx.field(static=True)

    def params(self, flat: Flat) -> Params:
        """The parameters of a state."""
        return eqx.combine(self.like.unravel(flat), self.carried)


# Compiled functions of their own, though they are called in compiled code: so they are traced once,
# not at every stage and event.
@eqx.filter_jit
def _field(s, y, args: Arguments):
    return args.kind.velocity(
        args.problem, args.params(y), args.batch, args.clock.log_rate(s)
    ).astype(y.dtype)


@eqx.filter_jit
def _inspect(y, args: Arguments) -> Inspection:
    return args.kind.inspect(args.problem, args.params(y), args.batch)


def _loss(s, y, args: Arguments):
    return args.problem.value(args.problem.outputs(args.params(y), args.batch.inputs), args.batch)


def _changed(now: Inspection, args: Arguments) -> Array:
    """Whether the rank has changed, or is about to."""
    if args.collapse is None:
        return jnp.asarray(False)
    return (now.rank != args.start.rank) | (now.condition < args.collapse * args.start.condition)


def _halts(t, y, args: Arguments, **kwargs):
    now = _inspect(y, args)
    return failed(now.result) | _changed(now, args)


class _Condition(eqx.Module):
    event: AbstractEvent

    def __call__(self, t, y, args: Arguments, **kwargs):
        value = self.event.condition(
            args.t0 + args.clock.elapsed(t), args.params(y), args.problem, args.batch
        )
        return value if jnp.issubdtype(value.dtype, jnp.bool_) else value.astype(y.dtype)


class _Slack(eqx.Module):
    constraint: AbstractConstraint

    def __call__(self, t, y, args: Arguments, **kwargs):
        return self.constraint.slack(args.params(y)).astype(y.dtype)


RANK = RankChange()


def flow(
    problem: Composite,
    params: Params,
    batch: Any = None,
    *,
    t1: Any,
    t0: Any = 0.0,
    kind: AbstractFlow | None = None,
    clock: AbstractClock | None = None,
    solver: dfx.AbstractSolver | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    control: MetricControl | None = None,
    events: Sequence[AbstractEvent] = (),
    rank: RankChange | None = RANK,
    constraint: AbstractConstraint | None = None,
    ts: Any = None,
    max_steps: int = 4096,
    progress: bool = False,
    throw: bool = True,
) -> Trajectory:
    """Follow a flow: dθ/dt = -G⁺g (natural), -g (Euclidean) or -H⁺g (Newton), with control of the
    error.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem and the start, as for `natural_gradient`.
    - `t1`, `t0`: the end and the start.
    - `kind`: `NaturalFlow(inverse, solver)`, `EuclideanFlow()` or `NewtonFlow()`; natural if left
        out.
    - `clock`: what the integrator steps in: `Time()`, or `LogTime()` for flows that slow down, up
        to t = 1e100.
    - `solver`: a diffrax solver, explicit or implicit (`diffrax.Kvaerno5()`); `diffrax.Tsit5()` if
        left out.
    - `rtol`, `atol`: tolerances on the error of each step, coordinate by coordinate; 1e-8 and 1e-10
        (1e-4 and 1e-6 in single precision) if left out.
    - `control`: `MetricControl(tolerance)` to measure the error of each step in the metric norm
        instead.
    - `events`: `event.LossBelow`, `event.GradientBelow`, `event.When(...)`: reasons to stop before
        `t1`.
    - `rank`: `event.RankChange(...)`, on by default: stop at a change of rank; `None` to go on.
    - `constraint`: a constraint (`pullback.constraint`) that the start must satisfy; the flow stops
        at its boundary.
    - `ts`: times at which to keep the parameters. If left out the whole curve is kept (dense
        output), in memory of 9 · max_steps · P numbers.
    - `max_steps`: bound on the number of steps.
    - `progress`: whether to show a progress bar.
    - `throw`: whether a failure raises; otherwise look at `result`.
    """
    kind = NaturalFlow() if kind is None else kind
    if not isinstance(kind, AbstractFlow):
        raise ValueError(
            f"kind must be NaturalFlow(), EuclideanFlow() or NewtonFlow(), got {kind!r}."
        )
    clock = Time() if clock is None else clock
    inverse, linear = (kind.inverse, kind.solver) if isinstance(kind, NaturalFlow) else (None, None)
    problem, params, data, *_ = prepare(problem, params, batch, inverse, linear, None, MEMORY)
    like, carried = structure(params), split(params)[1]
    _check_times(t0, t1, ts)
    _check_memory(like, max_steps, ts)
    _check_events(events, t0, problem, params, presented(problem, data), constraint)
    if rtol is None and atol is None:
        rtol, atol = (1e-8, 1e-10) if jnp.finfo(like.dtype).bits >= 64 else (1e-4, 1e-6)
    tolerances = tuple(jnp.asarray(0.0 if x is None else x, like.dtype) for x in (rtol, atol))
    span = tuple(jnp.asarray(t, like.dtype) for t in (t0, t1))
    ts = None if ts is None else jnp.asarray(ts, like.dtype)
    out = _solve(
        (problem, data, carried, _arrays(kind), clock),
        like.ravel(params),
        span,
        tolerances,
        _arrays(control),
        _arrays(tuple(events)),
        _arrays(rank),
        _arrays(constraint),
        ts,
        like,
        dfx.Tsit5() if solver is None else solver,
        max_steps,
        progress,
        tuple(event.description for event in events),
    )
    if throw and not is_traced((params, data, span)):
        if bool(failed(out.start.result)):
            raise_failure(out.start.result, problem, params, data, None)
        if bool(failed(out.result)):
            raise RuntimeError(
                f"{RESULTS[out.result]} It got to t = {float(out.t):.9g}; throw=False returns the state there."
            )
    return out


def _arrays(tree: Any) -> Any:
    """Numbers become arrays: another level is another input, not another program."""
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, tree)


@eqx.filter_jit
def _solve(
    parts,
    y0,
    span,
    tolerances,
    control,
    events,
    rank,
    constraint,
    ts,
    like,
    solver,
    max_steps,
    progress,
    descriptions,
):
    problem, batch, carried, kind, clock = parts
    params = eqx.combine(like.unravel(y0), carried)
    check_batch(problem, params, batch)
    # What an absent sample contains must not reach a derivative.
    batch = presented(problem, batch)
    start = kind.inspect(problem, params, batch, check=True)
    args = Arguments(
        problem,
        batch,
        carried,
        kind,
        clock,
        start,
        None if rank is None else rank.collapse,
        span[0],
        like,
    )
    s1 = clock.read(span[1] - span[0])
    conditions: list[Any] = [_halts, *([] if constraint is None else [_Slack(constraint)])]
    first = len(conditions)
    conditions.extend(_Condition(event) for event in events)
    subs = [dfx.SubSaveAt(t1=True), dfx.SubSaveAt(t0=True, steps=True, fn=_loss)]
    if ts is not None:
        subs.append(dfx.SubSaveAt(ts=clock.read(ts - span[0])))
    tolerance = float(jnp.finfo(y0.dtype).eps) ** 0.6
    # diffrax locates events in the default precision only; in another one they happen at the end of
    # their step.
    located = len(conditions) > 1 and y0.dtype == jnp.result_type(float)
    finder = optx.Newton(tolerance, tolerance) if located else None
    solution = dfx.diffeqsolve(
        dfx.ODETerm(_field),
        solver,
        jnp.zeros_like(s1),
        s1,
        None,
        y0,
        args=args,
        saveat=dfx.SaveAt(subs=subs, dense=ts is None),
        stepsize_controller=_controller(tolerances, control, s1),
        event=dfx.Event(conditions, finder, direction=[False] * len(conditions)),
        max_steps=max_steps,
        progress_meter=dfx.TextProgressMeter() if progress else dfx.NoProgressMeter(),
        throw=False,
    )
    return _record(
        solution, args, span, first, constraint is not None, ts is not None, solver, descriptions
    )


def _controller(tolerances, control, s1):
    small = 4 * jnp.finfo(s1.dtype).eps * s1
    if control is not None:
        return MetricController(jnp.asarray(control.tolerance, s1.dtype), small)
    return dfx.PIDController(*tolerances, dtmin=small, force_dtmin=False, pcoeff=0.3, icoeff=0.4)


def _record(
    solution,
    args: Arguments,
    span,
    first: int,
    constrained: bool,
    saves: bool,
    solver,
    descriptions,
) -> Trajectory:
    """The trajectory from what diffrax returns."""
    like, carried, clock, (t0, t1) = args.like, args.carried, args.clock, span
    final, end = solution.ys[0][0], solution.ts[0][0]
    now = _inspect(final, args)
    mask = jnp.stack([jnp.asarray(x) for x in solution.event_mask])
    which = jnp.where(jnp.any(mask), jnp.argmax(mask), -1)
    result = _translate(solution.result, which, now, args, constrained)
    saved = None
    if saves:
        there = jnp.isfinite(solution.ts[2])[:, None]
        saved = eqx.combine(
            jax.vmap(like.unravel)(jnp.where(there, solution.ys[2], final[None, :])), carried
        )
    steps = solution.stats["num_steps"]
    cost = jnp.full_like(steps, -1)
    if isinstance(solver, dfx.AbstractERK):
        tableau: Any = solver.tableau
        # The last stage of a step is the first of the next, in methods that say so; two more choose
        # the first step.
        cost = steps * (tableau.num_stages - int(tableau.fsal)) + 2
    return Trajectory(
        t0=t0,
        t=jnp.where(result == RESULTS.successful, t1, t0 + clock.elapsed(end)),
        params=args.params(final),
        result=result,
        event=jnp.where(which >= first, which - first, -1),
        inspection=now,
        start=args.start,
        times=t0 + clock.elapsed(solution.ts[1]),
        values=solution.ys[1],
        saved=saved,
        right_hand_sides=cost,
        accepted=solution.stats["num_accepted_steps"],
        rejected=solution.stats["num_rejected_steps"],
        interpolation=solution.interpolation,
        problem=args.problem,
        batch=args.batch,
        carried=carried,
        clock=clock,
        like=like,
        descriptions=descriptions,
    )


def _translate(
    result: Any, which: Array, now: Inspection, args: Arguments, constrained: bool
) -> RESULTS:
    """Our result from diffrax's and the event that fired."""
    halted: Any = RESULTS.where(_changed(now, args), RESULTS.rank_changed, now.result)
    halted = RESULTS.where(failed(now.result), now.result, halted)
    code: Any = RESULTS.where(which == 0, halted, RESULTS.flow_event)
    code = RESULTS.where((which == 1) & constrained, RESULTS.left_constraint, code)
    # Steps that shrink to nothing while the smallest singular value does so too: the flow ran into
    # a change of rank, also if all singular values vanish together and their ratio tells nothing.
    watched = (args.start.rank >= 0) & (args.collapse is not None)
    ratio = now.smallest / jnp.where(args.start.smallest > 0, args.start.smallest, 1.0)
    stalled: Any = RESULTS.where(
        watched & (ratio < 1e-3), RESULTS.rank_changed, RESULTS.flow_stalled
    )
    endless: Any = RESULTS.where(
        watched & (ratio < 1e-6), RESULTS.rank_changed, RESULTS.flow_max_steps
    )
    other: Any = RESULTS.where(result == dfx.RESULTS.max_steps_reached, endless, stalled)
    other = successful_if(result == dfx.RESULTS.successful, other)
    return RESULTS.where(which >= 0, code, other)


def _check_times(t0: Any, t1: Any, ts: Any) -> None:
    if is_traced((t0, t1, ts)):
        return
    if not (np.isfinite(t0) and np.isfinite(t1) and t0 < t1):
        raise ValueError(
            f"flow(t0={t0}, t1={t1}): both must be finite, t0 < t1. For a flow to its limit take a large t1, events and LogTime()."
        )
    if ts is not None and not (
        np.ndim(ts) == 1 and np.all(np.diff(ts) > 0) and t0 <= ts[0] and ts[-1] <= t1
    ):
        raise ValueError("ts must be a 1-D array of increasing times in [t0, t1].")


def _check_memory(like: Structure, max_steps: int, ts: Any) -> None:
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"max_steps must be a positive integer, got {max_steps!r}.")
    need = 9 * max_steps * like.size * jnp.dtype(like.dtype).itemsize
    if ts is None and need > 4 * MEMORY:
        raise ValueError(
            f"dense output for {like.size} parameters and max_steps={max_steps} would take {need / 2**30:.1f} GiB. Ask for single times, "
            "flow(..., ts=jnp.linspace(t0, t1, 50)), or lower max_steps."
        )


def _check_events(
    events: Any, t0: Any, problem: Composite, params: Params, data: Batch, constraint: Any
) -> None:
    for event in events:
        if not isinstance(event, AbstractEvent):
            raise ValueError(
                f"events takes pullback.event objects, e.g. events=[event.LossBelow(1e-6)], got {event!r}."
            )
        if is_traced((params, data)):
            continue
        value = event.condition(jnp.asarray(t0, structure(params).dtype), params, problem, data)
        if not jnp.issubdtype(value.dtype, jnp.bool_) and float(value) <= 0:
            raise ValueError(
                f"an event has happened already at the start: {event.description}. Nothing is left to follow."
            )
    if constraint is not None:
        if not isinstance(constraint, AbstractConstraint):
            raise ValueError(f"constraint must be one of pullback.constraint, got {constraint!r}.")
        constraint.refuse(params)
