"""What a flow returns: the curve in the parameters and on the model, where it stopped, and why."""

from html import escape

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._base.checks import error
from .._base.results import RESULTS
from .._base.types import Count, Outputs, Params, Scalar
from .._problem.validate import is_traced
from ..event import AbstractEvent, Inspection
from .equation import Equation


class Trajectory(eqx.Module):
    """A flow θ(t) from `t0` to `t`; for later times it stays where it stopped. Made by `flow`.

    sol = pullback.flow(problem, params, batch, t1=10.0)
    sol.evaluate(3.0), sol.value(3.0), sol.message
    """

    t: Scalar
    """The time of the end: `t1`, or that of an event."""
    params: Params
    """The parameters at the end."""
    result: RESULTS
    """A code that is data; `message` is its text."""
    event: Count
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
    """The parameters at the times `ts`, stacked; for times beyond the end, those at the end. `None`
    if `ts` was not given."""
    right_hand_sides: Count
    """How often an explicit integrator computed the field, without the conditions to stop; -1 for
    an implicit one."""
    accepted: Count
    """The number of accepted steps."""
    rejected: Count
    """The number of rejected steps."""
    interpolation: dfx.DenseInterpolation | None
    """The dense output; `None` if `ts` was given."""
    equation: Equation
    """What was integrated."""
    events: tuple[AbstractEvent, ...]
    """The events that could stop the flow."""

    @property
    def t0(self) -> Scalar:
        """The time of the start."""
        return self.equation.t0

    def evaluate(self, t: ArrayLike) -> Params:
        """Return θ(t) from the dense output; for t beyond the end, the parameters at the end.

        **Arguments:**

        - `t`: a time, or a 1-D array of times (then every leaf is stacked along a first axis); not
            before the start.
        """
        if self.interpolation is None:
            raise ValueError(
                "no dense output was kept because ts=... was given: use `saved`, or leave ts out, "
                "flow(..., ts=None)."
            )
        t = jnp.asarray(t, self.t.dtype)
        if not is_traced(t) and not bool(jnp.all(t >= self.t0)):
            start = float(self.t0)
            raise error("evaluate", "t", t, f"at least t0: the flow starts at t0 = {start:g}")
        like = self.equation.like
        # Rounding may take the reading of the end beyond that of the interpolation.
        reading = self.equation.reading(jnp.clip(t, self.t0, self.t))
        reading = jnp.minimum(reading, self.interpolation.t1)
        end = like.ravel(self.params)

        def one(reading, ended):
            assert self.interpolation is not None
            return like.unravel(jnp.where(ended, end, self.interpolation.evaluate(reading)))

        ended = t >= self.t
        moving = jax.vmap(one)(reading, ended) if t.ndim else one(reading, ended)
        return eqx.combine(moving, self.equation.carried)

    def outputs(self, t: ArrayLike) -> Outputs:
        """Return z(t) = f(θ(t)), the flow on the model.

        **Arguments:**

        - `t`: a time, or a 1-D array of times.
        """
        if jnp.ndim(t):
            return jax.lax.map(self.outputs, jnp.asarray(t, self.t.dtype))
        return self.equation.objective.outputs(self.evaluate(t))

    def value(self, t: ArrayLike) -> Scalar:
        """Return the loss at a time.

        **Arguments:**

        - `t`: a time, or a 1-D array of times.
        """
        if jnp.ndim(t):
            return jax.lax.map(self.value, jnp.asarray(t, self.t.dtype))
        return self.equation.objective.value(self.evaluate(t))

    @property
    def steps(self) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """The times of the accepted steps and the losses there; outside `jit`."""
        used = jnp.isfinite(self.times)
        return self.times[used], self.values[used]

    @property
    def message(self) -> str:
        """How the flow ended, in words; outside `jit`."""
        if bool(self.result == RESULTS.successful):
            return f"reached t1 = {float(self.t):g}"
        text = RESULTS[self.result]
        if int(self.event) >= 0:
            text = f"stopped at t = {float(self.t):.9g}: {self.events[int(self.event)].description}"
        if bool(self.result == RESULTS.rank_changed):
            start, now = self.start, self.inspection
            text = (
                f"stopped at t = {float(self.t):.9g} (rank {int(start.rank)} at the start, "
                f"{int(now.rank)} here; smallest singular value {float(start.smallest):.1e} at the "
                f"start, {float(now.smallest):.1e} here). {text}"
            )
        return text

    def __repr__(self) -> str:
        kind = type(self.equation.kind).__name__
        if not self._single:
            return f"Trajectory({kind}, t: {self.t.dtype}{list(self.t.shape)})"
        span = f"t = {float(self.t0):g} ... {float(self.t):g}"
        # The first clause of the text; what to do about it is in `message`.
        text = RESULTS[self.result] or "Reached t1."
        ending = text.split(": ")[0].split(". ")[0].removesuffix(".")
        return f"Trajectory({kind}, {span}, {self._losses()}. {ending}.)"

    def __str__(self) -> str:
        return f"{self.message}\n{self._losses()}; {self._cost()}" if self._single else repr(self)

    def _repr_html_(self) -> str:
        if not self._single:
            return f"<p>{escape(repr(self))}</p>"
        lines = {
            "flow": type(self.equation.kind).__name__,
            "end": self.message,
            "loss": self._losses().removeprefix("loss "),
            "cost": self._cost(),
        }
        row = "<tr><td>{}</td><td>{}</td></tr>".format
        return f"<table>{''.join(row(name, escape(text)) for name, text in lines.items())}</table>"

    @property
    def _single(self) -> bool:
        """Whether this is one trajectory with known numbers: neither traced nor a batch of them."""
        return not is_traced(self.t) and jnp.ndim(self.t) == 0

    def _losses(self) -> str:
        """Return the losses at the start and at the end, in words."""
        values = self.steps[1]
        return (
            f"loss {float(values[0]):.6g} -> {float(values[-1]):.6g}" if values.size else "no step"
        )

    def _cost(self) -> str:
        """Return the numbers of steps and of right-hand sides, in words."""
        count = int(self.right_hand_sides)
        cost = f"{count} right-hand sides" if count >= 0 else "an implicit integrator"
        return f"{int(self.accepted)} steps and {int(self.rejected)} rejected, {cost}"
