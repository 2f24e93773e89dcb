r"""Complex numbers as pairs of real ones: \(a + ib\) is \((a, b)\), a trailing axis of two.

Two conventions, and where each holds:

- A *vector* \(da + i\,db\) is the pair \((da, db)\): the Euclidean inner product is
  \(\mathrm{Re}\langle u, v\rangle\), and `params - rate * vector` moves complex parameters.
- A *covector* is what `jax.grad` of a real function returns, \(g = \partial_a L - i\,\partial_b
  L\), the pair \((\partial_a L, \partial_b L)\). The derivative along \(v\) is
  \(\mathrm{Re}\sum_j g_j v_j\), without a conjugate; the steepest ascent of the Euclidean metric is
  \(\bar g\).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree


def is_complex(dtype: Any) -> bool:
    """Whether a dtype is complex."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


def real_dtype(dtype: Any) -> np.dtype:
    """The dtype of the real and imaginary parts; a dtype that is not complex itself."""
    return jnp.finfo(dtype).dtype if is_complex(dtype) else jnp.dtype(dtype)


def like_precision(dtype: Any, real: Any) -> np.dtype:
    """The real dtype `real`, or the complex one whose parts have it if `dtype` is complex."""
    return np.promote_types(real, jnp.complex64) if is_complex(dtype) else jnp.dtype(real)


def as_pair(x: Array) -> Array:
    """(..., 2) from a complex array, or from the real part of one that has no other."""
    imaginary = jnp.imag(x) if is_complex(x.dtype) else jnp.zeros_like(x)
    return jnp.stack([jnp.real(x), imaginary], axis=-1)


def as_complex(x: Array) -> Array:
    """The complex array of pairs (..., 2)."""
    return jax.lax.complex(x[..., 0], x[..., 1])


def turned(x: Array) -> Array:
    """i times a flat vector of pairs, along the last axis."""
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(x.shape)


def with_turned(x: Array) -> Array:
    """(k, ...) as (2k, ...): each row of pairs, then i times the same."""
    return jnp.stack([x, turned(x)], axis=1).reshape(2 * x.shape[0], *x.shape[1:])


def conjugate(tree: PyTree) -> PyTree:
    """A tree with its complex leaves conjugated: from JAX's covectors to pairs, and back."""
    conj = lambda x: jnp.conj(x) if eqx.is_array(x) and is_complex(x.dtype) else x
    return jax.tree.map(conj, tree)


class Pairs(eqx.Module):
    """Which leaves of a tree are complex, so that pairs can be made of them and undone."""

    treedef: Any = eqx.field(static=True)
    complex: tuple[bool, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, tree: PyTree) -> "Pairs | None":
        """The complex leaves of a tree of arrays or shapes; `None` if there are none."""
        leaves, treedef = jax.tree.flatten(tree)
        found = tuple(hasattr(x, "dtype") and is_complex(x.dtype) for x in leaves)
        return cls(treedef, found) if any(found) else None

    def _map(self, function: Any, tree: PyTree) -> PyTree:
        """A function of the leaves that are complex; carried leaves may be `None`."""
        one = lambda flag, x: function(x) if flag and x is not None else x
        return jax.tree.map(one, self.treedef.unflatten(self.complex), tree)

    def real(self, tree: PyTree) -> PyTree:
        """The tree with a pair, a trailing axis of two, for each complex number."""
        return self._map(as_pair, tree)

    def whole(self, tree: PyTree) -> PyTree:
        """The inverse of `real`."""
        return self._map(as_complex, tree)


def real_pairs(tree: PyTree) -> PyTree:
    """A tree with pairs in the place of complex leaves."""
    pairs = Pairs.of(tree)
    return tree if pairs is None else pairs.real(tree)


def real_outputs(outputs: PyTree, targets: PyTree) -> tuple[PyTree, PyTree]:
    """Return outputs as metrics take them, pairs in the place of complex numbers, and targets."""
    pairs = Pairs.of(outputs)
    return (outputs, targets) if pairs is None else (pairs.real(outputs), real_pairs(targets))
