"""Checks of the arguments of `flow`, before anything is compiled."""

from collections.abc import Sequence
from typing import Any

import diffrax as dfx
import jax.numpy as jnp
import numpy as np

from .._base.checks import error, instance, integer, positive
from .._base.tree import Structure, structure
from .._base.types import Params
from .._problem.batch import AnyBatch
from .._problem.problem import AbstractProblem
from .._problem.validate import is_traced
from .._rows.rows import MEMORY
from ..constraint import AbstractConstraint
from ..event import AbstractEvent, RankChange
from .clock import AbstractClock
from .fields import AbstractFlow
from .metric_controller import MetricControl

KINDS = {
    "kind": (AbstractFlow, "a flow", "NaturalFlow()"),
    "clock": (AbstractClock, "a clock", "LogTime()"),
    "solver": (dfx.AbstractSolver, "a solver of diffrax", "diffrax.Tsit5()"),
    "control": (MetricControl, "a MetricControl", "MetricControl(1e-6)"),
    "rank": (RankChange, "a RankChange or None", "event.RankChange(1e-6)"),
    "constraint": (AbstractConstraint, "one of pullback.constraint", "constraint.Simplex()"),
}
"""The class of each argument, in words, and an example."""


def check_pieces(**given: Any) -> None:
    """Raise a `ValueError` for an argument that is neither `None` nor of its class."""
    for name, value in given.items():
        kind, wanted, example = KINDS[name]
        if value is not None:
            instance("flow", name, value, kind, wanted, f"flow(..., {name}={example})")


def check_times(t0: Any, t1: Any, ts: Any) -> None:
    """Raise a `ValueError` unless the times are finite and increase."""
    if is_traced((t0, t1, ts)):
        return
    if not (np.isfinite(t0) and np.isfinite(t1) and t0 < t1):
        raise ValueError(
            f"flow(t0={t0}, t1={t1}): both must be finite, t0 < t1. For a flow to its limit use a "
            "large t1, events and LogTime()."
        )
    if ts is not None:
        ordered = np.ndim(ts) == 1 and np.size(ts) > 0 and np.all(np.diff(ts) > 0)
        if not (ordered and t0 <= ts[0] and ts[-1] <= t1):
            example = "flow(..., ts=jnp.linspace(t0, t1, 50))"
            raise error("flow", "ts", ts, "a 1-D array of increasing times in [t0, t1]", example)


def check_numbers(rtol: Any, atol: Any, max_steps: Any) -> None:
    """Raise a `ValueError` unless tolerances and the number of steps are usable."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None:
            positive("flow", name, value, zero=True, example=f"flow(..., {name}=1e-8)")
    integer("flow", "max_steps", max_steps, least=1, example="flow(..., max_steps=4096)")


def check_memory(like: Structure, max_steps: int) -> None:
    """Raise a `ValueError` if dense output would not fit."""
    need = 9 * max_steps * like.size * jnp.dtype(like.dtype).itemsize
    if need > 4 * MEMORY:
        raise ValueError(
            f"dense output for {like.size} parameters and max_steps={max_steps} would take "
            f"{need / 2**30:.1f} GiB. Keep single times, flow(..., ts=jnp.linspace(t0, t1, 50)), "
            "or lower max_steps."
        )


def check_events(
    events: Sequence[AbstractEvent],
    t0: Any,
    problem: AbstractProblem,
    params: Params,
    batch: AnyBatch,
) -> None:
    """Raise a `ValueError` for what is not an event, or has happened already at the start."""
    wanted, example = "a sequence of events", "flow(..., events=[event.LossBelow(1e-6)])"
    instance("flow", "events", events, Sequence, wanted, example)
    for event in events:
        if isinstance(event, RankChange):
            raise ValueError(
                f"flow(events=[{event!r}]): a change of rank is not an event, pass "
                f"flow(..., rank={event!r})."
            )
        instance("flow", "events", event, AbstractEvent, wanted, example)
        if is_traced((t0, params, batch)):
            continue
        value = event.condition(jnp.asarray(t0, structure(params).dtype), params, problem, batch)
        if is_traced(value) or jnp.issubdtype(value.dtype, jnp.bool_):
            continue
        if float(value) <= 0:
            raise ValueError(
                f"an event has happened already at the start: {event.description}. Nothing is left "
                "to follow."
            )
