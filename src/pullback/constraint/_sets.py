r"""Parameter spaces that are not all of \(R^d\): a set \(C\), how deep inside it a point is, and
three ways back.

| way back | the new point | under a reparametrisation \(\theta = f(\xi)\) |
|---|---|---|
| back-projection, `constraint(params)` | the nearest point of \(C\) in the Euclidean distance of these parameters | another point: "nearest" is not a notion of the model; the same for isometries \(f\) only |
| `Clipping` | each coordinate clipped to its interval | the same for increasing changes of single coordinates (units), if the bounds are changed with them; another for any \(f\) that mixes coordinates |
| `Penalty` | no point moves back; its differential, a covector, joins the gradient | the same, to the order of the step, if the penalty is a function of the model; if it is one of the parameters, it stays the same *function* \(p \circ f\), but what of its differential is outside the range of \(G\) is dropped |

A step that violates nothing is not touched, so that inside \(C\) all invariance is that of the
step. `constraint(params)` has the signature of a `constraint=` of an optimiser: parameters in,
parameters out.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array

from .._base.tree import split
from .._base.types import Covector, Params, Scalar


class AbstractConstraint(eqx.Module):
    """A closed set C of parameters. To add one: a class with `slack` and `__call__`."""

    @abc.abstractmethod
    def slack(self, params: Params) -> Scalar:
        """How far inside: positive in the interior of C, zero on its boundary, negative outside;
        continuous.

        **Arguments:**

        - `params`: a point.
        """

    @abc.abstractmethod
    def __call__(self, params: Params) -> Params:
        """Back-projection: the nearest point of C.

        **Arguments:**

        - `params`: a point.
        """

    def violation(self, params: Params) -> Scalar:
        """How far outside, at least zero.

        **Arguments:**

        - `params`: a point.
        """
        return jnp.maximum(-self.slack(params), 0.0)

    def refuse(self, params: Params) -> None:
        """Raise a `ValueError` for a start outside C (or not finite); does nothing under `jit`.

        **Arguments:**

        - `params`: a concrete point.
        """
        slack = self.slack(params)
        if not isinstance(slack, jax.core.Tracer) and not float(slack) >= 0:
            raise ValueError(
                f"params violates the constraint {type(self).__name__} by {-float(slack):.3g}. Project it first: params = constraint(params)."
            )


class Clipping(AbstractConstraint):
    """Every coordinate in [lower, upper]: weight clipping, which for a box is also the
    back-projection.
    """

    lower: Any
    upper: Any

    def __init__(self, lower: Any, upper: Any):
        """Bound the coordinates.

        **Arguments:**

        - `lower`, `upper`: numbers, or pytrees like the parameters.
        """
        if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((lower, upper))):
            pairs = zip(jax.tree.leaves(lower), jax.tree.leaves(upper), strict=False)
            if not all(bool(jnp.all(jnp.asarray(a) <= jnp.asarray(b))) for a, b in pairs):
                raise ValueError(
                    f"Clipping(lower={lower!r}, upper={upper!r}): lower must not exceed upper."
                )
        self.lower, self.upper = lower, upper

    def _bounds(self, moving):
        def spread(bound):
            one = len(jax.tree.leaves(bound)) == 1 and jnp.ndim(jax.tree.leaves(bound)[0]) == 0
            return jax.tree.map(lambda x: jnp.asarray(bound, x.dtype), moving) if one else bound

        return spread(self.lower), spread(self.upper)

    def slack(self, params):
        moving = split(params)[0]
        distance = lambda x, a, b: jnp.min(jnp.minimum(x - a, b - x))
        return jnp.min(
            jnp.stack(jax.tree.leaves(jax.tree.map(distance, moving, *self._bounds(moving))))
        )

    def __call__(self, params):
        moving, carried = split(params)
        return eqx.combine(
            jax.tree.map(lambda x, a, b: jnp.clip(x, a, b), moving, *self._bounds(moving)), carried
        )


class Simplex(AbstractConstraint):
    """Probability vectors: the last axis of every array is not negative and sums to one.

    The slack is the smallest entry, once the sum is one up to rounding (else minus the distance of
    the sum from one). The step should stay in the plane of sum one by itself: a natural gradient in
    probabilities does.
    """

    def slack(self, params):
        def one(p):
            off = jnp.max(jnp.abs(jnp.sum(p, axis=-1) - 1))
            tolerance = jnp.sqrt(jnp.finfo(p.dtype).eps)
            return jnp.where(off <= tolerance, jnp.min(p), jnp.minimum(jnp.min(p), -off))

        return jnp.min(jnp.stack([one(p) for p in jax.tree.leaves(split(params)[0])]))

    def __call__(self, params):
        moving, carried = split(params)
        return eqx.combine(jax.tree.map(_nearest_on_simplex, moving), carried)


def _nearest_on_simplex(p: Array) -> Array:
    """max(p - τ, 0) with the τ that makes the sum one: sort, find how many entries stay positive."""
    ordered = jnp.flip(jnp.sort(p, axis=-1), axis=-1)
    count = jnp.arange(1, p.shape[-1] + 1, dtype=p.dtype).reshape((1,) * (p.ndim - 1) + (-1,))
    level = (jnp.cumsum(ordered, axis=-1) - 1) / count
    last = jnp.sum(ordered > level, axis=-1, keepdims=True) - 1
    off = jnp.abs(jnp.sum(p, axis=-1, keepdims=True) - 1)
    # A point of the set stays what it is, to the last bit.
    there = jnp.all(p >= 0, axis=-1, keepdims=True) & (off <= p.shape[-1] * jnp.finfo(p.dtype).eps)
    return jnp.where(there, p, jnp.maximum(p - jnp.take_along_axis(level, last, axis=-1), 0.0))


class PositiveDefinite(AbstractConstraint):
    """Symmetric matrices (last two axes of every array) with eigenvalues of at least `floor`:
    covariance matrices.

    **Arguments:**

    - `floor`: the least eigenvalue; zero admits singular ones.
    """

    floor: float = 0.0

    def slack(self, params):
        def one(matrix):
            transposed = jnp.swapaxes(matrix, -1, -2)
            size = jnp.max(jnp.abs(matrix))
            asymmetry = jnp.max(jnp.abs(matrix - transposed))
            least = jnp.min(jnp.linalg.eigvalsh((matrix + transposed) / 2)) - self.floor
            return jnp.where(
                asymmetry <= jnp.sqrt(jnp.finfo(matrix.dtype).eps) * size,
                least,
                jnp.minimum(least, -asymmetry),
            )

        return jnp.min(jnp.stack([one(x) for x in jax.tree.leaves(split(params)[0])]))

    def __call__(self, params):
        def one(matrix):
            transposed = jnp.swapaxes(matrix, -1, -2)
            values, vectors = jnp.linalg.eigh((matrix + transposed) / 2)
            nearest = (vectors * jnp.maximum(values, self.floor)[..., None, :]) @ jnp.swapaxes(
                vectors, -1, -2
            )
            # A point of the set stays what it is, to the last bit.
            there = (values[..., 0] >= self.floor) & jnp.all(matrix == transposed, axis=(-2, -1))
            return jnp.where(there[..., None, None], matrix, nearest)

        moving, carried = split(params)
        return eqx.combine(jax.tree.map(one, moving), carried)


class At(AbstractConstraint):
    """A constraint on a part of the parameters.

    **Arguments:**

    - `where`: picks the part, as in `equinox.tree_at`: `lambda params: params["covariance"]`.
    - `constraint`: the constraint on it.
    """

    where: Callable[[Params], Any]
    constraint: AbstractConstraint

    def slack(self, params):
        return self.constraint.slack(self.where(params))

    def __call__(self, params):
        return eqx.tree_at(self.where, params, self.constraint(self.where(params)))


class Penalty(eqx.Module):
    """strength · violation²/2: zero inside, and outside a covector that points back. Points may
    stay outside, the farther the weaker it is.

    **Arguments:**

    - `constraint`: the set.
    - `strength`: a positive number.
    """

    constraint: AbstractConstraint
    strength: float

    def __check_init__(self):
        if not isinstance(self.strength, jax.core.Tracer) and not float(self.strength) > 0:
            raise ValueError(f"Penalty(strength={self.strength}): the strength must be positive.")

    def value(self, params: Params) -> Scalar:
        """The penalty at a point.

        **Arguments:**

        - `params`: a point.
        """
        return self.strength * self.constraint.violation(params) ** 2 / 2

    def covector(self, params: Params) -> Covector:
        """Its differential.

        **Arguments:**

        - `params`: a point.
        """
        moving, carried = split(params)
        return jax.grad(lambda moving: self.value(eqx.combine(moving, carried)))(moving)
