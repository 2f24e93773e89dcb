"""What the steps of this room share: a problem on flat parameters, and the record of a step."""

from html import escape
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from .._base.results import RESULTS, failed
from .._base.tree import Structure, split, structure
from .._base.types import Count, Flat, Params, Scalar
from .._problem.batch import Batch
from .._problem.composite import Composite, Objective
from .._problem.validate import check_batch, is_traced


class ProximalStep(eqx.Module):
    """A step and its certificate. Numbers that do not apply are NaN.

    step = pullback.proximal_step(problem, params, (x, y), weight=10.0)
    step.params, step.residual
    """

    params: Params
    """The new point."""
    value: Scalar
    """The loss there."""
    residual: Scalar
    """The norm of what must vanish (the gradient of the inner problem), relative to the gradient of
    the loss at the old point."""
    least: Scalar
    """The least eigenvalue of the Hessian of the inner problem, relative to the largest: not
    negative at a minimum."""
    steps: Count
    """The number of inner steps."""
    result: RESULTS
    """A code that is data; `RESULTS[result]` is its message."""

    def __repr__(self) -> str:
        if not self._single:
            return f"ProximalStep(value: {self.value.dtype}{list(self.value.shape)})"
        parts = ", ".join(f"{name} {text}" for name, text in self._lines())
        return f"ProximalStep({parts})"

    def __str__(self) -> str:
        if not self._single:
            return repr(self)
        return "\n".join(f"{name:<18}{text}" for name, text in self._lines())

    def _repr_html_(self) -> str:
        if not self._single:
            return f"<p>{escape(repr(self))}</p>"
        row = "<tr><td>{}</td><td>{}</td></tr>".format
        return f"<table>{''.join(row(name, escape(text)) for name, text in self._lines())}</table>"

    @property
    def _single(self) -> bool:
        """Whether this is one step with known numbers: neither traced nor a batch of them."""
        return not is_traced(self.value) and jnp.ndim(self.value) == 0

    def _lines(self) -> list[tuple[str, str]]:
        numbers = (("residual", self.residual, ".1e"), ("least eigenvalue", self.least, ".3g"))
        shown = [(name, format(float(x), how)) for name, x, how in numbers if not jnp.isnan(x)]
        return [
            ("loss", f"{float(self.value):.6g}"),
            *shown,
            ("inner steps", str(int(self.steps))),
            ("result", RESULTS[self.result] or "successful"),
        ]


class Point(eqx.Module):
    """A problem on a batch, as a function of flat parameters near a point."""

    objective: Objective
    params: Params
    like: Structure = eqx.field(static=True)

    def __init__(self, problem: Composite, params: Params, batch: Batch):
        check_batch(problem, params, batch)
        self.objective = problem.at(batch)
        self.params = params
        self.like = structure(params)

    @property
    def flat(self) -> Flat:
        """The point itself."""
        return self.like.ravel(self.params)

    @property
    def nan(self) -> Scalar:
        """A number that does not apply."""
        return jnp.asarray(jnp.nan, self.like.dtype)

    def whole(self, flat: Flat) -> Params:
        """Return the parameters of a flat vector."""
        return eqx.combine(self.like.unravel(flat), split(self.params)[1])

    def value(self, flat: Flat) -> Scalar:
        """Return the loss at a flat vector."""
        return self.objective.value(self.whole(flat))

    def step(
        self, flat: Flat, residual: Scalar, least: Scalar, steps: Count | int, result: Any
    ) -> ProximalStep:
        """Return the record of a step to a flat vector."""
        steps = jnp.asarray(steps, jnp.int32)
        return ProximalStep(self.whole(flat), self.value(flat), residual, least, steps, result)


def raised(step: ProximalStep, throw: bool) -> ProximalStep:
    """Return the step; raise a `RuntimeError` if it failed, `throw` is set and it is concrete."""
    if throw and not is_traced(step) and bool(failed(step.result)):
        raise RuntimeError(
            f"{RESULTS[step.result]} (residual {float(step.residual):.1e}; throw=False returns the "
            "state.)"
        )
    return step
