r"""Vectors and covectors as types: mixing them up is a `TypeError`.

A gradient is a covector, an update a vector; a metric turns the one into the other (♯ and ♭, the
musical isomorphisms). An operation that mixes the two wrappers raises a `TypeError` with the
missing isomorphism. Plain pytrees work everywhere too. The wrappers are pytrees, and cost nothing
under `jit`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .tree import split
from .types import Covector, Params, Scalar, Vector

SHARP = "G.sharp(covector) makes a vector of it, G = pullback.pullback(problem, params, batch)"
FLAT = "G.flat(vector) makes a covector of it, G = pullback.pullback(problem, params, batch)"


def _is_number(x: Any) -> bool:
    """Whether a factor is a scalar."""
    return eqx.is_array_like(x) and jnp.ndim(x) == 0


def _scaled(tree: PyTree, factor: Any) -> PyTree:
    """A tree times a number, each leaf in its own dtype."""
    return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype), tree)


class TangentVector(eqx.Module):
    """A vector on the parameters, e.g. an update.

    ```python
    vector = pb.TangentVector(ng.vector)
    moved = params - 0.1 * vector  # for any pytree
    ```

    **Arguments:**

    - `tree`: a pytree like the parameters.
    """

    tree: Vector
    # So that `array + vector` calls `__radd__` below, and not NumPy's addition.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> "TangentVector":
        return TangentVector(
            jax.tree.map(jnp.add, self.tree, _vector(other, "added to a vector").tree)
        )

    def __sub__(self, other: Any) -> "TangentVector":
        return self + -_vector(other, "subtracted from a vector")

    def __neg__(self) -> "TangentVector":
        return TangentVector(jax.tree.map(jnp.negative, self.tree))

    def __mul__(self, factor: Any) -> "TangentVector":
        if not _is_number(factor):
            return NotImplemented
        return TangentVector(_scaled(self.tree, factor))

    __rmul__ = __mul__

    def __radd__(self, params: Params) -> Params:
        """The moved parameters, params + vector."""
        moving, carried = split(params)
        return eqx.combine(jax.tree.map(jnp.add, moving, self.tree), carried)

    def __rsub__(self, params: Params) -> Params:
        """The moved parameters, params - vector."""
        return (-self).__radd__(params)

    def __matmul__(self, other: Any) -> Any:
        raise TypeError(
            f"a vector is not paired with {_kind(other)}: covector @ vector is the pairing. {FLAT}."
        )


class CotangentVector(eqx.Module):
    """A covector on the parameters, e.g. a gradient.

    ```python
    covector = pb.CotangentVector(jax.grad(loss)(params))
    covector @ vector  # the derivative along a vector, a number
    ```

    **Arguments:**

    - `tree`: a pytree like the parameters.
    """

    tree: Covector
    __array_ufunc__ = None

    def __add__(self, other: Any) -> "CotangentVector":
        return CotangentVector(
            jax.tree.map(jnp.add, self.tree, _covector(other, "added to a covector").tree)
        )

    def __sub__(self, other: Any) -> "CotangentVector":
        return self + -_covector(other, "subtracted from a covector")

    def __neg__(self) -> "CotangentVector":
        return CotangentVector(jax.tree.map(jnp.negative, self.tree))

    def __mul__(self, factor: Any) -> "CotangentVector":
        if not _is_number(factor):
            return NotImplemented
        return CotangentVector(_scaled(self.tree, factor))

    __rmul__ = __mul__

    def __radd__(self, params: Any) -> Any:
        raise TypeError(
            f"a covector (a gradient) cannot be added to parameters: sharp is missing. {SHARP}."
        )

    def __rsub__(self, params: Any) -> Any:
        raise TypeError(
            f"a covector (a gradient) cannot be subtracted from parameters: sharp is missing. "
            f"{SHARP}."
        )

    def __matmul__(self, vector: TangentVector) -> Scalar:
        """The pairing: the derivative of the function along the vector."""
        if not isinstance(vector, TangentVector):
            raise TypeError(
                f"a covector is paired with a TangentVector, got {_kind(vector)}. {SHARP}."
            )
        # A covector of complex numbers is in the convention of `jax.grad` (`pairs.py`).
        pair = lambda g, v: jnp.real(jnp.vdot(jnp.conj(g), v))
        products: Any = jax.tree.leaves(jax.tree.map(pair, self.tree, vector.tree))
        total: Any = sum(products[1:], products[0])
        return total


def _kind(thing: Any) -> str:
    """The name of the type of an object, for a message."""
    return {TangentVector: "a vector", CotangentVector: "a covector"}.get(
        type(thing), type(thing).__name__
    )


def _vector(thing: Any, verb: str) -> TangentVector:
    """The object; raises a `TypeError` unless it is a vector."""
    if not isinstance(thing, TangentVector):
        missing = (
            f"sharp is missing. {SHARP}."
            if isinstance(thing, CotangentVector)
            else "wrap it: TangentVector(tree)."
        )
        raise TypeError(f"{_kind(thing)} cannot be {verb}: {missing}")
    return thing


def _covector(thing: Any, verb: str) -> CotangentVector:
    """The object; raises a `TypeError` unless it is a covector."""
    if not isinstance(thing, CotangentVector):
        missing = (
            f"flat is missing. {FLAT}."
            if isinstance(thing, TangentVector)
            else "wrap it: CotangentVector(tree)."
        )
        raise TypeError(f"{_kind(thing)} cannot be {verb}: {missing}")
    return thing


def vector_tree(v: TangentVector | Vector, what: str) -> Vector:
    """The plain tree of a vector; raises a `TypeError` for a covector."""
    if isinstance(v, CotangentVector):
        raise TypeError(f"{what} takes a vector, got a covector: sharp is missing. {SHARP}.")
    return v.tree if isinstance(v, TangentVector) else v


def covector_tree(g: CotangentVector | Covector, what: str) -> Covector:
    """The plain tree of a covector; raises a `TypeError` for a vector."""
    if isinstance(g, TangentVector):
        raise TypeError(f"{what} takes a covector, got a vector: flat is missing. {FLAT}.")
    return g.tree if isinstance(g, CotangentVector) else g
