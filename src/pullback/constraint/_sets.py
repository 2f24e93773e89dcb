"""The sets: boxes, probability vectors, covariance matrices, and any of these on a part of the
parameters.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.checks import function, instance, is_concrete, positive, shown
from .._base.functions import canonical
from .._base.pairs import Pairs, as_pair, is_complex, real_dtype, real_pairs
from .._base.tree import refuse_complex, split
from .._base.types import Params, Scalar
from ._base import AbstractConstraint


class Clipping(AbstractConstraint):
    """Every coordinate in [lower, upper]: weight clipping.

    For a box, clipping is also the projection. A complex number has two coordinates, its real and
    its imaginary part: a complex bound has a bound for each, a real one bounds both.

        pullback.constraint.Clipping(0.0, 1.0)
    """

    lower: Any
    upper: Any

    def __init__(self, lower: Any, upper: Any):
        """Bound the coordinates.

        **Arguments:**

        - `lower`: a number, or a pytree like the parameters.
        - `upper`: a number, or a pytree like the parameters; nowhere below `lower`.
        """
        if not _ordered(lower, upper):
            raise ValueError(
                f"Clipping(lower={shown(lower)}, upper={shown(upper)}): lower must not exceed "
                "upper, e.g. Clipping(lower=0.0, upper=1.0)."
            )
        self.lower = lower
        self.upper = upper

    def slack(self, params):
        moving = split(params)[0]
        distance = lambda x, a, b: jnp.min(jnp.minimum(x - a, b - x), initial=jnp.inf)
        found = jax.tree.map(distance, real_pairs(moving), *self._bounds(moving))
        return _smallest("Clipping", jax.tree.leaves(found))

    def __call__(self, params):
        moving, carried = split(params)
        pairs = Pairs.of(moving)
        clipped = jax.tree.map(jnp.clip, real_pairs(moving), *self._bounds(moving))
        return eqx.combine(clipped if pairs is None else pairs.whole(clipped), carried)

    def _bounds(self, moving: Params) -> tuple[Params, Params]:
        """Return both bounds as trees like the coordinates of the differentiable leaves."""

        def spread(bound):
            if _is_number(bound):
                return jax.tree.map(lambda x: _coordinates(bound, x), moving)
            return jax.tree.map(lambda x, b: _coordinates(b, x), moving, bound)

        return spread(self.lower), spread(self.upper)


def _coordinates(bound: Any, leaf: Array) -> Array:
    """Return the bounds of the coordinates of a leaf."""
    bound, kind = jnp.asarray(bound), real_dtype(leaf.dtype)
    if not is_complex(bound.dtype):
        bound = bound.astype(kind)
        return bound[..., None] if is_complex(leaf.dtype) and bound.ndim else bound
    if not is_complex(leaf.dtype):
        raise ValueError("Clipping: a real parameter has a complex bound: pass its real part.")
    return as_pair(jnp.broadcast_to(bound, leaf.shape)).astype(kind)


def _is_number(bound: Any) -> bool:
    return jax.tree.structure(bound) == jax.tree.structure(0.0) and jnp.ndim(bound) == 0


def _ordered(lower: Any, upper: Any) -> bool:
    """Return whether no lower bound exceeds its upper one, as far as their values are known."""
    low, high = jax.tree.leaves(lower), jax.tree.leaves(upper)
    if _is_number(lower):
        low = low * len(high)
    elif _is_number(upper):
        high = high * len(low)
    pairs = list(zip(low, high, strict=True)) if len(low) == len(high) else []
    # With NumPy: inside `jit`, JAX traces what it does with known numbers, too.
    known = [(a, b) for a, b in pairs if is_concrete(a) and is_concrete(b)]
    return bool(pairs) and all(_below(np.asarray(a), np.asarray(b)) for a, b in known)


def _below(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether no bound exceeds another one, in both parts if one of them is complex."""
    parts = [(np.real(a), np.real(b))]
    if np.iscomplexobj(a) or np.iscomplexobj(b):
        other = lambda x: np.imag(x) if np.iscomplexobj(x) else x
        parts.append((other(a), other(b)))
    return all(bool(np.all(x <= y)) for x, y in parts)


class Simplex(AbstractConstraint):
    """Probability vectors: the last axis of every array is not negative and sums to one.

    The slack is the smallest entry if the sum is one up to rounding, otherwise minus the distance
    of the sum from one. A natural gradient in probabilities stays in the plane of sum one by
    itself.

        pullback.constraint.Simplex()
    """

    def slack(self, params):
        refuse_complex(params, "Simplex()", _REAL)

        def one(p):
            off = jnp.max(jnp.abs(jnp.sum(p, axis=-1) - 1))
            tolerance = jnp.sqrt(jnp.finfo(p.dtype).eps)
            return jnp.where(off <= tolerance, jnp.min(p), jnp.minimum(jnp.min(p), -off))

        return _least("Simplex", _VECTORS, one, params)

    def __call__(self, params):
        refuse_complex(params, "Simplex()", _REAL)
        return _each("Simplex", _VECTORS, _nearest_on_simplex, params)


_REAL = 'Probabilities are real: constrain a part, At(lambda params: params["p"], Simplex()).'


def _nearest_on_simplex(p: Array) -> Array:
    """Return max(p - τ, 0) with the τ that makes the sum one.

    τ follows from the number of entries that stay positive, found by sorting.
    """
    # A number added to every entry changes nothing, and far away the one would be lost beside it.
    away = p - jnp.max(p, axis=-1, keepdims=True)
    ordered = jnp.flip(jnp.sort(away, axis=-1), axis=-1)
    count = jnp.arange(1, p.shape[-1] + 1, dtype=p.dtype).reshape((1,) * (p.ndim - 1) + (-1,))
    level = (jnp.cumsum(ordered, axis=-1) - 1) / count
    last = jnp.sum(ordered > level, axis=-1, keepdims=True) - 1
    off = jnp.abs(jnp.sum(p, axis=-1, keepdims=True) - 1)
    # A point of the set stays what it is, to the last bit.
    there = jnp.all(p >= 0, axis=-1, keepdims=True) & (off <= p.shape[-1] * jnp.finfo(p.dtype).eps)
    nearest = jnp.maximum(away - jnp.take_along_axis(level, last, axis=-1), 0.0)
    return jnp.where(there, p, nearest)


class PositiveDefinite(AbstractConstraint):
    """Symmetric matrices with eigenvalues of at least `floor`: covariance matrices.

    The matrices are the last two axes of every array. Complex ones are Hermitian.

        pullback.constraint.PositiveDefinite(0.01)

    **Arguments:**

    - `floor`: the least eigenvalue; zero admits singular matrices.
    """

    floor: float | Scalar = 0.0

    def __check_init__(self):
        positive("PositiveDefinite", "floor", self.floor, zero=True)

    def slack(self, params):
        def one(matrix):
            transposed = jnp.conj(jnp.swapaxes(matrix, -1, -2))
            size = jnp.max(jnp.abs(matrix))
            asymmetry = jnp.max(jnp.abs(matrix - transposed))
            least = jnp.min(jnp.linalg.eigvalsh((matrix + transposed) / 2))
            least = least - jnp.asarray(self.floor, least.dtype)
            tolerance = jnp.sqrt(jnp.finfo(matrix.dtype).eps) * size
            return jnp.where(asymmetry <= tolerance, least, jnp.minimum(least, -asymmetry))

        return _least("PositiveDefinite", _MATRICES, one, params)

    def __call__(self, params):
        def one(matrix):
            transposed = jnp.conj(jnp.swapaxes(matrix, -1, -2))
            values, vectors = jnp.linalg.eigh((matrix + transposed) / 2)
            floor = jnp.asarray(self.floor, values.dtype)
            lifted = vectors * jnp.maximum(values, floor).astype(matrix.dtype)[..., None, :]
            nearest = lifted @ jnp.conj(jnp.swapaxes(vectors, -1, -2))
            # A point of the set stays what it is, to the last bit.
            there = (values[..., 0] >= floor) & jnp.all(matrix == transposed, axis=(-2, -1))
            return jnp.where(there[..., None, None], matrix, nearest)

        return _each("PositiveDefinite", _MATRICES, one, params)


class At(AbstractConstraint):
    """A constraint on a part of the parameters.

        pullback.constraint.At(lambda params: params["covariance"], PositiveDefinite())

    **Arguments:**

    - `where`: selects the part, as in `equinox.tree_at`.
    - `constraint`: the constraint on that part.
    """

    where: Callable[[Params], Any] = eqx.field(converter=canonical)
    constraint: AbstractConstraint

    def __check_init__(self):
        example = 'At(lambda params: params["p"], Simplex())'
        function("At", "where", self.where, example)
        wanted = "a set of pullback.constraint"
        instance("At", "constraint", self.constraint, AbstractConstraint, wanted, example)

    def slack(self, params):
        return self.constraint.slack(self.where(params))

    def __call__(self, params):
        return eqx.tree_at(self.where, params, self.constraint(self.where(params)))


_VECTORS = "probability vectors along the last axis", lambda shape: len(shape) > 0
_MATRICES = "square matrices in the last two axes", lambda shape: shape[-2:-1] == shape[-1:] != ()


def _each(owner: str, kind: Any, function: Callable[[Array], Array], params: Params) -> Params:
    """Return the parameters with each array replaced; empty ones have nothing to replace."""
    moving, carried = split(params)
    _check_shapes(owner, kind, moving)
    return eqx.combine(jax.tree.map(lambda x: function(x) if x.size else x, moving), carried)


def _least(owner: str, kind: Any, function: Callable[[Array], Scalar], params: Params) -> Scalar:
    """Return the least value of a function over the differentiable leaves."""
    moving = split(params)[0]
    _check_shapes(owner, kind, moving)
    return _smallest(owner, [function(x) for x in jax.tree.leaves(moving) if x.size])


def _smallest(owner: str, found: list[Scalar]) -> Scalar:
    """Return the smallest of some numbers; raise a `ValueError` if there is none."""
    if not found:
        raise ValueError(
            f"{owner}: params has no floating numbers to constrain; integers are carried along."
        )
    return jnp.min(jnp.stack(found))


def _check_shapes(owner: str, kind: Any, moving: Params) -> None:
    """Raise a `ValueError` unless every array that is not empty consists of what is constrained."""
    what, fits = kind
    for path, leaf in jax.tree_util.tree_leaves_with_path(moving):
        if leaf.size and not fits(leaf.shape):
            raise ValueError(
                f"{owner}: params{jax.tree_util.keystr(path)} of shape {leaf.shape} does not "
                f"consist of {what}. Constrain the part of the parameters that does: "
                f'At(lambda params: params["p"], {owner}()) of pullback.constraint.'
            )
