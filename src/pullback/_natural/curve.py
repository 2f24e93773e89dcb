r"""The curve of a step: a straight line, or one along which the outputs move straight.

\[ f(\theta + td + t^2a/2) = f + t\,Jd + \tfrac12 t^2\,(d^2f[d, d] + Ja) + O(t^3) , \]

and \(a = -A^+ S^\top d^2f[d, d]\) takes away of the second-order term what the model can.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._base.tree import split
from .._base.types import Flat, Scalar
from .._rows.rows import AbstractRows
from .factorised import SecondSolve


class Curve(eqx.Module):
    """t ↦ t d + t² a/2, a displacement of the parameters; t is at most `limit`."""

    velocity: Flat
    acceleration: Flat | None
    limit: Scalar | None = None
    """The largest t, of a momentum that bounds its steps; `None` for no bound."""
    curvature: Scalar | None = None
    """‖a‖/‖d‖ of what is used, zero if that is nothing; NaN where a is not finite."""
    bend: SecondSolve | None = None
    """-a and its right-hand side, to be certified; `None` for a straight line."""

    def within(self, t: Scalar | float) -> Scalar:
        """Return t, or `limit` if t is beyond it.

        **Arguments:**

        - `t`: how far along.
        """
        t = jnp.asarray(t, self.velocity.dtype)
        return t if self.limit is None else jnp.minimum(t, self.limit)

    def __call__(self, t: Scalar | float) -> Flat:
        """Return the displacement at t.

        **Arguments:**

        - `t`: how far along.
        """
        t = self.within(t)
        straight = t * self.velocity
        return straight if self.acceleration is None else straight + t * t / 2 * self.acceleration

    @staticmethod
    def bent(d: Flat, found: SecondSolve, bound: Any, limit: Scalar | None) -> "Curve":
        """Return the curve with a = -`found`; a straight line if ‖a‖/‖d‖ is above the bound."""
        ratio = curvature(d, found.vector)
        small = ratio <= jnp.asarray(bound, d.dtype)
        # What is not used is not certified either. A NaN is not small.
        used = jax.tree.map(lambda x: jnp.where(small, x, 0.0), found)
        known = jnp.where(jnp.isfinite(ratio), 0.0, jnp.nan)
        return Curve(d, -used.vector, limit, jnp.where(small, ratio, known), used)


def curvature(d: Flat, a: Flat) -> Scalar:
    """Return ‖a‖/‖d‖; 0 for a step of length zero."""
    size = jnp.linalg.norm(d)
    return jnp.where(size > 0, jnp.linalg.norm(a) / jnp.where(size > 0, size, 1.0), 0.0)


def second_order(rows: AbstractRows, d: Flat) -> Float[Array, " m"]:
    """Return Sᵀ d²f[d, d], its grading divided out."""
    like, carried = rows.structure, split(rows.params)[1]
    v = d.astype(like.dtype)

    def outputs(flat):
        return rows.objective.outputs(eqx.combine(like.unravel(flat), carried))

    def velocity(flat):
        return eqx.filter_jvp(outputs, (flat,), (v,))[1]

    _, second = eqx.filter_jvp(velocity, (like.ravel(rows.params),), (v,))
    # Where the outputs are linear in the parameters there is no tangent at all.
    zero = lambda z, s: s if s is not None or z is None else jnp.zeros_like(z)
    absent = lambda x: x is None
    second = jax.tree.map(zero, split(rows.outputs)[0], second, is_leaf=absent)
    return rows.unit_output(second).astype(d.dtype)
