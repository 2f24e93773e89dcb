"""What a flow returns: the curve in the parameters and on the model, where it stopped, and why."""

from collections.abc import Sequence
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._base.checks import error
from .._base.pairs import real_pairs
from .._base.results import RESULTS, outcome
from .._base.show import is_single, known, number, paragraph, several, table
from .._base.tree import structure
from .._base.types import Count, Outputs, Params, Scalar
from .._problem.validate import is_traced
from ..event import AbstractEvent, Inspection
from .entries import entries
from .equation import Equation
from .kink import Kink

SHOWN = 300
"""How many times a curve is drawn with."""


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
    # A method without its call is shown with the fields; these would fill a page.
    interpolation: dfx.DenseInterpolation | None = eqx.field(repr=False)
    """The dense output; `None` if `ts` was given."""
    equation: Equation = eqx.field(repr=False)
    """What was integrated."""
    events: tuple[AbstractEvent, ...]
    """The events that could stop the flow."""
    kink: Kink | None
    """The jump of the field where the flow got stuck; `None` if there is none, and inside `jit`."""

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
        if outcome(self.result) == "successful":
            return f"reached t1 = {float(self.t):g}"
        text = RESULTS[self.result]
        if self.kink is not None:
            text = f"{text} {self.kink.advice} It got to t = {float(self.t):.9g}."
        if int(self.event) >= 0:
            text = f"stopped at t = {float(self.t):.9g}: {self.events[int(self.event)].description}"
        if outcome(self.result) == "rank_changed":
            start, now = self.start, self.inspection
            text = (
                f"stopped at t = {float(self.t):.9g} (rank {int(start.rank)} at the start, "
                f"{int(now.rank)} here; smallest singular value {float(start.smallest):.1e} at the "
                f"start, {float(now.smallest):.1e} here). {text}"
            )
        return text

    def plot(
        self, outputs: int | Sequence[int | tuple[int, ...]] | None = None, *, axes: Any = None
    ) -> Any:
        """Draw the loss over time and, beside it, some outputs; returns `(figure, axes)`.

            figure, axes = sol.plot(outputs=[0, 3])

        **Arguments:**

        - `outputs`: which outputs, by their place in the ravelled outputs or, if the outputs are
            one array, by an index for each of its axes (complex outputs have one more, of two);
            defaults to none. Needs dense output.
        - `axes`: the axes to draw on, two with outputs; defaults to new ones.
        """
        from ..plot._flows import path, sampled

        if not self._single:
            raise ValueError(
                "Trajectory.plot(): this is a batch of trajectories, or a traced one. Take one of "
                "them outside of jit: jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, sol)."
            )
        t, values = (np.asarray(x) for x in self.steps)
        if outputs is None:
            return path(t, values, axes=axes)
        z = real_pairs(self.equation.objective.outputs(self.params))
        places = entries("Trajectory.plot", outputs, z)
        fine = sampled(t, values, SHOWN)
        z = self.outputs(fine)
        flat = np.asarray(jax.vmap(lambda z: structure(z).ravel(z))(z))
        return path(t, values, {name: (fine, flat[:, i]) for name, i in places.items()}, axes=axes)

    def __repr__(self) -> str:
        kind = type(self.equation.kind).__name__
        if known(self.t) is None:
            return f"Trajectory({kind}, t: {number(self.t)})"
        span = f"t = {number(self.t0, 'g')} ... {number(self.t, 'g')}"
        if not self._single:
            return f"Trajectory({several(self.t)}{kind}, {span}, {outcome(self.result)})"
        # The first clause of the text; what to do about it is in `message`.
        text = RESULTS[self.result] or "Reached t1."
        ending = text.split(": ")[0].split(". ")[0].removesuffix(".")
        return f"Trajectory({kind}, {span}, {self._losses()}. {ending}.)"

    def __str__(self) -> str:
        return f"{self.message}\n{self._losses()}; {self._cost()}" if self._single else repr(self)

    def _repr_html_(self) -> str:
        if not self._single:
            return paragraph(repr(self))
        lines = {
            "flow": type(self.equation.kind).__name__,
            "end": self.message,
            "loss": self._losses().removeprefix("loss "),
            "cost": self._cost(),
        }
        return table(lines.items())

    @property
    def _single(self) -> bool:
        """Whether this is one trajectory with known numbers: neither traced nor a batch of them."""
        return is_single(self.t)

    def _losses(self) -> str:
        """Return the losses at the start and at the end, in words."""
        values = np.asarray(self.values)[np.isfinite(np.asarray(self.times))]
        return f"loss {values[0]:.6g} -> {values[-1]:.6g}" if values.size else "no step"

    def _cost(self) -> str:
        """Return the numbers of steps and of right-hand sides, in words."""
        count = int(self.right_hand_sides)
        cost = f"{count} right-hand sides" if count >= 0 else "an implicit integrator"
        return f"{int(self.accepted)} steps and {int(self.rejected)} rejected, {cost}"
