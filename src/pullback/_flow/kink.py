r"""Is the field of a flow that got stuck discontinuous there, and which tolerance passes it?

A relu or an absolute value makes the field \(v\) jump across a surface. Where both sides point to
the surface, the integrator can only step from one side to the other: the error of a step \(h\) is
about \(h\) times the jump, whatever its order, and the steps shrink in proportion to the tolerance.

A jump is told from a steep but smooth field by bisection. Halving a segment halves the difference
of a smooth field between its ends; that of a jump stays in one of the halves.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.types import Flat, Scalar
from .._compat.xla import jit
from .equation import Equation, velocity

HALVINGS = 20
RECENT = 16
"""How many steps before the end are used for their size."""
LARGEST = 0.1
"""A relative tolerance beyond this is no tolerance."""


class Kink(eqx.Module):
    """A jump of the field where a flow got stuck, and the tolerances that are about to pass it."""

    jump: float
    """How far the field jumps, relative to its size."""
    rtol: float
    """The relative tolerance, or that of `MetricControl`, with which steps are long enough."""
    atol: float
    """The absolute tolerance to go with it; NaN with `MetricControl`."""

    @property
    def advice(self) -> str:
        """What to do about it, in one sentence."""
        smooth = "smooth the model (softplus for relu, sqrt(1 + x²) for |x|)"
        if not self.rtol <= LARGEST:
            return f"No tolerance passes it before t1: {smooth}, or stop there with an event."
        pass_it = f"rtol={self.rtol:g}, atol={self.atol:g}"
        if math.isnan(self.atol):
            pass_it = f"control=MetricControl({self.rtol:g})"
        return f"To pass it, use about {pass_it}; or {smooth}, or stop there with an event."


def find_kink(sol: Any, t1: Scalar, settings: Any) -> Kink | None:
    """Return the kink at the end of a flow that did not reach t1; `None` if the field is smooth."""
    equation, times = sol.equation, sol.steps[0]
    if times.size < 2:
        return None
    readings = equation.reading(times[-RECENT - 1 :])
    sizes = jnp.diff(readings)
    y = equation.like.ravel(sol.params)
    size, first, last = (float(x) for x in _bisect(equation, readings[-1], y, jnp.max(sizes)))
    # A singularity grows as the segment shrinks; a jump does not.
    if not (first >= 1e-2 * size and 0.1 * first <= last <= 4 * first):
        return None
    left = float(equation.reading(t1) - readings[-1])
    factor = max(10.0, 4 * left / settings.max_steps / float(jnp.mean(sizes)))
    if settings.control is not None:
        return Kink(last / size, _round(factor * float(settings.control.tolerance)), math.nan)
    rtol, atol = (_round(factor * float(x)) for x in (settings.rtol, settings.atol))
    return Kink(last / size, rtol, atol)


def _round(x: float) -> float:
    """Return the next power of ten."""
    return 10.0 ** math.ceil(math.log10(x)) if x > 0 else 0.0


@jit
def _bisect(equation: Equation, s: Scalar, y: Flat, h: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Return the size of the field, and its difference over a segment before and after halving."""
    field = lambda y: velocity(s, y, equation)
    here = field(y)
    reach = 4 * h * here
    norm = jnp.linalg.norm

    def halve(_, ends: tuple[Array, Array, Array, Array]):
        a, b, fa, fb = ends
        middle = (a + b) / 2
        found = field(middle)
        nearer = norm(found - fa) >= norm(fb - found)
        keep = lambda x, y: jnp.where(nearer, x, y)
        return keep(a, middle), keep(middle, b), keep(fa, found), keep(found, fb)

    a, b = y - reach, y + reach
    ends = a, b, field(a), field(b)
    _, _, fa, fb = jax.lax.fori_loop(0, HALVINGS, halve, ends)
    return norm(here), norm(ends[3] - ends[2]), norm(fb - fa)
