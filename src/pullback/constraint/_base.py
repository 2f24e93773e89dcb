r"""Parameter spaces that are not all of \(R^P\): a closed set \(C\), how far inside it a point is,
and the projection onto it.

Three methods keep a step in \(C\), or near it. Under a reparametrisation \(\theta = f(\xi)\):

- Projection, `constraint(params)`: the nearest point of \(C\) in the Euclidean distance of these
  parameters. In other parameters it is another point, because "nearest" is not a notion of the
  model; only isometries \(f\) leave it unchanged.
- `Clipping`: each coordinate is clipped to its interval. The result is the same for increasing
  changes of single coordinates (units), if the bounds are changed with them, and another for an
  \(f\) that mixes coordinates.
- `Penalty`: no point is projected; the differential of the penalty, a covector, is added to the
  gradient. The result is the same, to the order of the step, if the penalty is a function of the
  model. If it is a function of the parameters, it stays the same *function* \(p \circ f\), but the
  part of its differential outside the range of \(G\) is dropped.

A step that violates nothing is not changed, so that inside \(C\) all invariance is that of the
step. A set is a function from parameters to parameters, and a penalty one from parameters to a
number: what an optimiser takes as `constraint=` and as `penalty=`.
"""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base.checks import is_concrete
from .._base.show import settings
from .._base.tree import split
from .._base.types import Params, Scalar


class AbstractConstraint(eqx.Module):
    """A closed set C of parameters.

    To write one, give `slack` and `__call__`:

        class Ball(pullback.constraint.AbstractConstraint):
            def slack(self, params):
                return 1 - jnp.linalg.norm(params)

            def __call__(self, params):
                return params / jnp.maximum(1.0, jnp.linalg.norm(params))
    """

    def __repr__(self) -> str:
        return settings(self)

    @abc.abstractmethod
    def slack(self, params: Params) -> Scalar:
        """Return how far inside a point is.

        Positive in the interior of C, zero on its boundary, negative outside; continuous.

        **Arguments:**

        - `params`: a point.
        """

    @abc.abstractmethod
    def __call__(self, params: Params) -> Params:
        """Return the projection of a point, the nearest point of C.

        **Arguments:**

        - `params`: a point.
        """

    def violation(self, params: Params) -> Scalar:
        """Return how far outside a point is, at least zero.

        **Arguments:**

        - `params`: a point.
        """
        return jnp.maximum(-self.slack(params), 0.0)

    def refuse(self, params: Params) -> None:
        """Raise a `ValueError` for a point outside C or not finite; does nothing under `jit`.

        A projection lies on the boundary up to rounding only, so a point that differs from its own
        projection by rounding counts as one of C.

        **Arguments:**

        - `params`: a point.
        """
        slack = self.slack(params)
        if is_concrete(slack) and not float(slack) >= 0 and not self._keeps(params):
            raise ValueError(
                f"params violates the constraint {type(self).__name__} by {-float(slack):.3g}. "
                "Project it first: params = constraint(params)."
            )

    def _keeps(self, params: Params) -> bool:
        """Whether the projection of a point is the point itself, up to rounding."""
        once = self(params)
        # How exact a projection is shows where it changes nothing but rounding: at its own result.
        known = max(map(_off, _moving(self(once)), _moving(once)), default=0.0)
        for given, kept in zip(_moving(params), _moving(once), strict=True):
            size = float(jnp.max(jnp.abs(given), initial=0.0))
            rounding = 8 * (float(jnp.finfo(given.dtype).eps) * size + known)
            # Written so that a NaN is none of C.
            if not (_off(given, kept) <= rounding < math.inf):
                return False
        return True


def _moving(params: Params) -> list[Array]:
    """The leaves that a step moves."""
    return jax.tree.leaves(split(params)[0])


def _off(x: Array, y: Array) -> float:
    """The largest difference of two arrays."""
    return float(jnp.max(jnp.abs(x - y), initial=0.0))
