r"""Vectors and covectors that know which they are.

A gradient is a covector, an update a vector; a metric turns the one into the other (♯ and ♭, the
musical isomorphisms). Wrapped, mixing them up is a `TypeError` that names what is missing; plain
pytrees keep working everywhere. The wrappers are pytrees, and cost nothing under `jit`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .tree import split
from .types import Params, Scalar

SHARP = "G.sharp(covector) makes a vector of it, G = pullback.pullback(problem, params, batch)"
FLAT = "G.flat(vector) makes a covector of it, G = pullback.pullback(problem, params, batch)"


def _is_number(x: Any) -> bool:
    return eqx.is_array_like(x) and jnp.ndim(x) == 0


def _scaled(tree: Any, factor: Any) -> Any:
    return jax.tree.map(lambda x: x * jnp.asarray(factor, x.dtype), tree)


class TangentVector(eqx.Module):
    """A vector on the parameters: it can be added to them.

    **Arguments:**

    - `tree`: a pytree like the parameters.
    """

    tree: Any
    # NumPy leaves operators with us alone.
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
        """params + vector: the moved parameters."""
        moving, carried = split(params)
        return eqx.combine(jax.tree.map(jnp.add, moving, self.tree), carried)

    def __rsub__(self, params: Params) -> Params:
        """params - vector: the moved parameters."""
        return (-self).__radd__(params)

    def __matmul__(self, other: Any) -> Any:
        raise TypeError(
            f"a vector is not paired with {_kind(other)}: covector @ vector is the pairing. {FLAT}."
        )


class CotangentVector(eqx.Module):
    """A covector on the parameters: it eats vectors, `covector @ vector`.

    **Arguments:**

    - `tree`: a pytree like the parameters.
    """

    tree: Any
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
            f"a covector (a gradient) cannot be subtracted from parameters: sharp is missing. {SHARP}."
        )

    def __matmul__(self, vector: TangentVector) -> Scalar:
        """The pairing: how fast the function changes along the vector."""
        if not isinstance(vector, TangentVector):
            raise TypeError(f"a covector eats a TangentVector, got {_kind(vector)}. {SHARP}.")
        products: Any = jax.tree.leaves(jax.tree.map(jnp.vdot, self.tree, vector.tree))
        total: Any = sum(products[1:], products[0])
        return total


def _kind(thing: Any) -> str:
    return {TangentVector: "a vector", CotangentVector: "a covector"}.get(
        type(thing), type(thing).__name__
    )


def _vector(thing: Any, verb: str) -> TangentVector:
    if not isinstance(thing, TangentVector):
        missing = (
            f"sharp is missing. {SHARP}."
            if isinstance(thing, CotangentVector)
            else "wrap it: TangentVector(tree)."
        )
        raise TypeError(f"{_kind(thing)} cannot be {verb}: {missing}")
    return thing


def _covector(thing: Any, verb: str) -> CotangentVector:
    if not isinstance(thing, CotangentVector):
        missing = (
            f"flat is missing. {FLAT}."
            if isinstance(thing, TangentVector)
            else "wrap it: CotangentVector(tree)."
        )
        raise TypeError(f"{_kind(thing)} cannot be {verb}: {missing}")
    return thing


def vector_tree(v: Any, what: str) -> Any:
    """The plain tree of a vector; a covector is refused."""
    if isinstance(v, CotangentVector):
        raise TypeError(f"{what} takes a vector, got a covector: sharp is missing. {SHARP}.")
    return v.tree if isinstance(v, TangentVector) else v


def covector_tree(g: Any, what: str) -> Any:
    """The plain tree of a covector; a vector is refused."""
    if isinstance(g, TangentVector):
        raise TypeError(f"{what} takes a covector, got a vector: flat is missing. {FLAT}.")
    return g.tree if isinstance(g, CotangentVector) else g
