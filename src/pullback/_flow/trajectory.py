"""What a flow returns: the curve in the parameters and on the model, where it stopped, and why."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._base.results import RESULTS
from .._base.tree import Structure
from .._base.types import Outputs, Params, Scalar
from .._problem.composite import Batch, Composite
from .clock import AbstractClock
from .fields import Inspection


class Trajectory(eqx.Module):
    """A flow θ(t), stopped at `t`: beyond, it stays where it is."""

    t0: Scalar
    """The time of the start."""
    t: Scalar
    """The time of the end: `t1`, or that of an event."""
    params: Params
    """The parameters at the end."""
    result: RESULTS
    event: Int[Array, ""]
    """Which of the events stopped the flow, -1 if none."""
    inspection: Inspection
    """The field at the end: its rank and condition."""
    start: Inspection
    """The field at the start."""
    times: Float[Array, " n"]
    """The times of the accepted steps, `inf` in the unused part of the buffer; see `steps`."""
    values: Float[Array, " n"]
    """The losses at these times."""
    saved: Params
    """The parameters at the times `ts` asked for, stacked; those beyond the end are the parameters
    at the end. `None` if dense.
    """
    right_hand_sides: Int[Array, ""]
    """How often the field was computed by an explicit integrator (-1 for an implicit one), event
    conditions not counted.
    """
    accepted: Int[Array, ""]
    rejected: Int[Array, ""]
    interpolation: dfx.DenseInterpolation | None
    problem: Composite
    batch: Batch
    carried: Any
    clock: AbstractClock
    like: Structure = eqx.field(static=True)
    descriptions: tuple[str, ...] = eqx.field(static=True)

    def evaluate(self, t: Any) -> Params:
        """θ(t), on the dense output. A stopped flow stays where it is: for t beyond the end, the
        parameters at the end.

        **Arguments:**

        - `t`: a time, or a 1-D array of times (then every leaf is stacked along a first axis); not
            before the start.
        """
        if self.interpolation is None:
            raise ValueError(
                "no dense output was kept because ts=... was given; look at `saved`, or leave ts out: flow(..., ts=None)."
            )
        t = jnp.asarray(t, self.t.dtype)
        if not isinstance(t, jax.core.Tracer) and not bool(jnp.all(t >= self.t0)):
            raise ValueError(
                f"evaluate(t): the flow starts at t0 = {float(self.t0):g}; t must be a time from there on."
            )
        reading = self.clock.read(jnp.clip(t, self.t0, self.t) - self.t0)
        # The last reading is not the same float as that of the stop.
        reading = jnp.minimum(reading, self.interpolation.t1)
        ended = t >= self.t

        def one(reading, ended):
            assert self.interpolation is not None
            flat = jnp.where(
                ended, self.like.ravel(self.params), self.interpolation.evaluate(reading)
            )
            return self.like.unravel(flat)

        moving = jax.vmap(one)(reading, ended) if t.ndim else one(reading, ended)
        return eqx.combine(moving, self.carried)

    def outputs(self, t: Any) -> Outputs:
        """z(t) = f(θ(t)): the flow on the model.

        **Arguments:**

        - `t`: a time, or a 1-D array of times.
        """
        if jnp.ndim(t):
            return jax.lax.map(self.outputs, jnp.asarray(t, self.t.dtype))
        return self.problem.outputs(self.evaluate(t), self.batch.inputs)

    def value(self, t: Any) -> Scalar:
        """The loss at a time.

        **Arguments:**

        - `t`: a time, or a 1-D array of times.
        """
        if jnp.ndim(t):
            return jax.lax.map(self.value, jnp.asarray(t, self.t.dtype))
        return self.problem.value(self.outputs(t), self.batch)

    @property
    def steps(self) -> tuple[Array, Array]:
        """The times of the accepted steps and the losses there; outside `jit`."""
        there = jnp.isfinite(self.times)
        return self.times[there], self.values[there]

    @property
    def message(self) -> str:
        """How it ended, in words; outside `jit`."""
        if bool(self.result == RESULTS.successful):
            return f"reached t1 = {float(self.t):g}"
        text = RESULTS[self.result]
        if int(self.event) >= 0:
            text = f"stopped at t = {float(self.t):.9g}: {self.descriptions[int(self.event)]}"
        if bool(self.result == RESULTS.rank_changed):
            start, now = self.start, self.inspection
            ranks = f"rank {int(start.rank)} at the start, {int(now.rank)} here"
            values = f"smallest singular value {float(start.smallest):.1e} at the start, {float(now.smallest):.1e} here"
            text = f"stopped at t = {float(self.t):.9g} ({ranks}; {values}). {text}"
        return text

    def __str__(self) -> str:
        values = self.steps[1]
        ends = (
            f"loss {float(values[0]):.6g} -> {float(values[-1]):.6g}" if values.size else "no step"
        )
        count = int(self.right_hand_sides)
        cost = f"{count} right-hand sides" if count >= 0 else "an implicit integrator"
        return f"{self.message}\n{ends}; {int(self.accepted)} steps and {int(self.rejected)} rejected, {cost}"
