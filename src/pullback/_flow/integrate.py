r"""`flow`: integrate \(\dot\theta = -v(\theta)\) from a point, with diffrax."""

import warnings
from collections.abc import Sequence
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, ArrayLike, Float

from .._base.results import RESULTS, among, failed
from .._base.tree import as_data, structure
from .._base.types import Count, Flat, Params, Scalar
from .._compat.xla import jit
from .._natural.failure import raise_failure
from .._problem.problem import AbstractProblem
from .._problem.validate import check_batch, is_traced, validate
from ..constraint import AbstractConstraint
from ..event import AbstractEvent, Inspection, RankChange
from .arguments import check_events, check_memory, check_numbers, check_pieces, check_times
from .clock import AbstractClock, Time
from .equation import Equation, inspect, loss, velocity
from .fields import AbstractFlow, NaturalFlow
from .kink import find_kink
from .metric_controller import MetricControl, MetricController
from .stops import Stops
from .trajectory import Trajectory

RANK = RankChange()


def flow(
    problem: AbstractProblem,
    params: Params,
    batch: Any = None,
    *,
    t1: ArrayLike,
    t0: ArrayLike = 0.0,
    kind: AbstractFlow | None = None,
    clock: AbstractClock | None = None,
    solver: dfx.AbstractSolver | None = None,
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    control: MetricControl | None = None,
    events: Sequence[AbstractEvent] = (),
    rank: RankChange | None = RANK,
    constraint: AbstractConstraint | None = None,
    ts: ArrayLike | None = None,
    max_steps: int = 4096,
    progress: bool = False,
    throw: bool = True,
) -> Trajectory:
    """Return the trajectory of dθ/dt = -G⁺g (natural), -g (Euclidean) or -H⁺g (Newton).

    The error of each step is controlled. The data are arguments of the compiled program: another
    dataset of the same shape compiles nothing.

        sol = pullback.flow(problem, params, (x, y), t1=10.0)
        sol.evaluate(3.0), sol.message

    **Arguments:**

    - `problem`, `params`, `batch`: the problem and the start, as for `natural_gradient`.
    - `t1`, `t0`: the end and the start.
    - `kind`: `NaturalFlow(inverse, solver)`, `EuclideanFlow()` or `NewtonFlow()`; defaults to
        `NaturalFlow()`.
    - `clock`: the variable the integrator steps in: `Time()`, or `LogTime()` for flows that slow
        down, up to t = 1e100; defaults to `Time()`.
    - `solver`: a diffrax solver, explicit or implicit (`diffrax.Kvaerno5()`); defaults to
        `diffrax.Tsit5()`.
    - `rtol`, `atol`: tolerances on the error of each step, coordinate by coordinate; default to
        1e-8 and 1e-10 (1e-4 and 1e-6 in single precision).
    - `control`: `MetricControl(tolerance)` to measure the error of each step in the metric norm
        instead.
    - `events`: reasons to stop before `t1`: `event.LossBelow`, `event.GradientBelow`,
        `event.When(...)`.
    - `rank`: where to stop before a change of rank; defaults to `event.RankChange()`. `None`
        continues.
    - `constraint`: one of `pullback.constraint`, which the start must satisfy; the flow stops at
        its boundary.
    - `ts`: times at which to keep the parameters. By default the whole curve is kept (dense
        output), in memory of 9 · max_steps · P numbers.
    - `max_steps`: bound on the number of steps.
    - `progress`: whether to show a progress bar.
    - `throw`: whether a failure raises; with `False`, check `result`.
    """
    check_pieces(
        kind=kind, clock=clock, solver=solver, control=control, rank=rank, constraint=constraint
    )
    check_times(t0, t1, ts)
    check_numbers(rtol, atol, max_steps)
    params, data = validate(problem, params, batch)
    like = structure(params)
    if ts is None:
        check_memory(like, max_steps)
    check_events(events, t0, problem, params, data)
    if constraint is not None:
        constraint.refuse(params)
    if rtol is None and atol is None:
        rtol, atol = (1e-8, 1e-10) if jnp.finfo(like.dtype).bits >= 64 else (1e-4, 1e-6)
    number = lambda x: jnp.asarray(0.0 if x is None else x, like.dtype)
    kind = NaturalFlow() if kind is None else kind
    clock = Time() if clock is None else clock
    settings = Settings(
        integrator=dfx.Tsit5() if solver is None else solver,
        rtol=number(rtol),
        atol=number(atol),
        control=as_data(control),
        ts=None if ts is None else jnp.asarray(ts, like.dtype),
        max_steps=max_steps,
        progress=progress,
    )
    equation = Equation(problem, params, data, kind.as_data(), clock, number(t0))
    stops = Stops(as_data(rank), as_data(constraint), as_data(tuple(events)))
    sol = _integrate(equation, like.ravel(params), number(t1), stops, settings)
    if throw and not is_traced(sol):
        raise_failure(sol.start.result, problem, params, data)
    return _with_kink(sol, number(t1), settings, throw)


def _with_kink(sol: Trajectory, t1: Scalar, settings: "Settings", throw: bool) -> Trajectory:
    """Return a trajectory with the kink where it got stuck, if there is one; or raise."""
    if is_traced(sol) or not bool(failed(sol.result)):
        return sol
    kink = None
    if bool(among(sol.result, (RESULTS.flow_max_steps, RESULTS.flow_stalled))):
        kink = find_kink(sol, t1, settings)
    if kink is not None:
        code: Any = RESULTS.flow_kink
        where = lambda x: (x.result, x.kink)
        sol = eqx.tree_at(where, sol, (code, kink), is_leaf=lambda x: x is None)
    if not throw:
        return sol
    advice = "" if kink is None else f" {kink.advice}"
    raise RuntimeError(
        f"{RESULTS[sol.result]}{advice} It got to t = {float(sol.t):.9g}; throw=False returns the "
        "state there."
    )


class Settings(eqx.Module):
    """How a flow is integrated, and what is kept of it."""

    integrator: dfx.AbstractSolver
    rtol: Scalar
    atol: Scalar
    control: MetricControl | None
    ts: Float[Array, " n"] | None
    max_steps: int = eqx.field(static=True)
    progress: bool = eqx.field(static=True)

    def controller(self, end: Scalar) -> dfx.AbstractStepSizeController:
        """Return the controller of the step size, for an integration from 0 to `end`."""
        least = 4 * jnp.finfo(end.dtype).eps * end
        if self.control is not None:
            return MetricController(jnp.asarray(self.control.tolerance, end.dtype), least)
        return dfx.PIDController(
            self.rtol, self.atol, dtmin=least, force_dtmin=False, pcoeff=0.3, icoeff=0.4
        )

    @property
    def tolerance(self) -> Scalar:
        """The relative error of a step, at least that of rounding."""
        given = self.rtol if self.control is None else jnp.asarray(self.control.tolerance)
        return jnp.maximum(given, jnp.finfo(self.rtol.dtype).eps)

    def saves(self, equation: Equation) -> dfx.SaveAt:
        """Return what diffrax keeps: the end, the loss at every step, and the curve or times."""
        subs = [dfx.SubSaveAt(t1=True), dfx.SubSaveAt(t0=True, steps=True, fn=loss)]
        if self.ts is not None:
            subs.append(dfx.SubSaveAt(ts=equation.reading(self.ts)))
        return dfx.SaveAt(subs=subs, dense=self.ts is None)

    def right_hand_sides(self, steps: Count) -> Count:
        """Return how many stages were computed in so many steps; -1 for an implicit integrator."""
        if not isinstance(self.integrator, dfx.AbstractERK):
            return jnp.full_like(steps, -1)
        tableau: Any = self.integrator.tableau
        # With FSAL the last stage of a step is the first one of the next. Two more stages choose
        # the first step size.
        return steps * (tableau.num_stages - int(tableau.fsal)) + 2


@jit
def _integrate(
    equation: Equation, y0: Flat, t1: Scalar, stops: Stops, settings: Settings
) -> Trajectory:
    """Integrate from flat parameters, a pure function of arrays."""
    params = equation.params(y0)
    check_batch(equation.problem, params, equation.batch)
    start = equation.kind.inspect(equation.problem, params, equation.batch, check=True)
    end = equation.reading(t1)
    tolerance = float(jnp.finfo(y0.dtype).eps) ** 0.6
    # diffrax locates events in the default precision only. In another one a condition stops the
    # flow at the end of its step.
    located = stops.locatable and y0.dtype == jnp.result_type(float)
    finder = optx.Newton(tolerance, tolerance) if located else None
    with warnings.catch_warnings():
        # The state is real; complex numbers are data.
        warnings.filterwarnings("ignore", "Complex dtype support in Diffrax")
        solution = dfx.diffeqsolve(
            dfx.ODETerm(velocity),
            settings.integrator,
            t0=jnp.zeros_like(end),
            t1=end,
            dt0=None,
            y0=y0,
            args=equation,
            saveat=settings.saves(equation),
            stepsize_controller=settings.controller(end),
            event=dfx.Event(stops.conditions(start, settings.tolerance), finder, direction=False),
            max_steps=settings.max_steps,
            progress_meter=dfx.TextProgressMeter() if settings.progress else dfx.NoProgressMeter(),
            throw=False,
        )
    return _trajectory(solution, equation, t1, start, stops, settings)


def _trajectory(
    solution: dfx.Solution,
    equation: Equation,
    t1: Scalar,
    start: Inspection,
    stops: Stops,
    settings: Settings,
) -> Trajectory:
    """Return the trajectory from what diffrax returned; the order of times is that of `saves`."""
    ts: Any = solution.ts
    ys: Any = solution.ys
    mask: Any = solution.event_mask
    final = ys[0][0]
    now = inspect(final, equation)
    result = stops.result(solution.result, mask, start, now, settings.tolerance)
    saved = None
    if settings.ts is not None:
        kept = jnp.where(jnp.isfinite(ts[2])[:, None], ys[2], final[None, :])
        saved = eqx.combine(jax.vmap(equation.like.unravel)(kept), equation.carried)
    return Trajectory(
        t=jnp.where(result == RESULTS.successful, t1, equation.time(ts[0][0])),
        params=equation.params(final),
        result=result,
        event=mask.event(),
        inspection=now,
        start=start,
        times=equation.time(ts[1]),
        values=ys[1],
        saved=saved,
        right_hand_sides=settings.right_hand_sides(solution.stats["num_steps"]),
        accepted=solution.stats["num_accepted_steps"],
        rejected=solution.stats["num_rejected_steps"],
        interpolation=solution.interpolation,
        equation=equation,
        events=stops.events,
        kink=None,
    )
