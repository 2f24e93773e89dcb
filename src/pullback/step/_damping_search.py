"""`DampingSearch`: the best of a grid of dampings, all from one factorisation."""

import jax
import jax.numpy as jnp

from .._base.checks import positive
from ..inverse._base import AbstractInverse
from ..inverse._dampable import Dampable
from ._base import AbstractStep, move


class DampingSearch(AbstractStep):
    """The best of λ = s² · (relative damping), with s the largest singular value of A.

    No memory, no constants to tune: far from a minimum it finds a short step along the gradient,
    near one the undamped step.
    """

    relative: tuple[float, ...]

    def __init__(self, relative: tuple[float, ...] | None = None):
        """Choose the grid.

        **Arguments:**

        - `relative`: the dampings relative to the largest eigenvalue of G; defaults to 1, 1/10,
            ..., 10⁻³⁰.
        """
        if relative is None:
            relative = tuple(10.0**-k for k in range(31))
        relative = tuple(float(x) for x in relative)
        if not relative:
            raise ValueError(
                "DampingSearch(relative=()): give at least one damping, e.g. "
                "DampingSearch((1e-2, 1e-6, 0.0))."
            )
        for x in relative:
            positive("DampingSearch", "relative", x, zero=True)
        self.relative = relative

    def check(self, problem, inverse):
        refuse_damped("DampingSearch", inverse)

    def factorises(self, inverse):
        return Dampable(inverse)

    def step(self, sub, state):
        largest = sub.factorised.spectrum.largest
        # A matrix-free solver does not know s: then the dampings are absolute.
        unit = jnp.where(jnp.isfinite(largest) & (largest > 0), largest * largest, 1.0)
        dampings = unit * jnp.asarray(self.relative, sub.dtype)

        def value(damping):
            damped = sub.damped(damping)
            return sub.value_at(damped.curve(damped.direction())(1.0))

        values = jax.lax.map(value, dampings)
        best = jnp.argmin(values)
        # Solved once more for the best: 31 directions would take 31 times the memory of one.
        damped = sub.damped(dampings[best])
        curve = damped.curve(damped.direction())
        better = values[best] < sub.value
        return move(damped, curve, 1.0, values[best], better, dampings.size), state


def refuse_damped(owner: str, inverse: AbstractInverse) -> None:
    """Raise a `ValueError` for an inverse that a rule which damps cannot damp."""
    name = type(inverse).__name__
    if inverse.damping is not None:
        raise ValueError(
            f"step={owner}() finds its own damping, and inverse={name}({inverse.damping}) gives "
            "another. Leave inverse= out (or give MoorePenrose(rtol, gauge) for the cut-off and "
            "the gauge)."
        )
    if not inverse.pseudo_inverse:
        raise ValueError(
            f"step={owner}() damps a pseudo-inverse, 1/s² to 1/(s² + λ), and {name} is another "
            "filter. Leave inverse= out, or take a rule that does not damp: "
            "step=pullback.step.LineSearch()."
        )
