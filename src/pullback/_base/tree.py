"""Pytrees as vectors: the floating and complex leaves of a tree in one flat real array.

Only floating and complex array leaves are *coordinates*; a complex number is two of them
(`pairs.py`). All other leaves of a tree (integers, booleans, strings, functions, PRNG keys) are
*carried*: they are neither differentiated nor changed, and are `None` in vectors and covectors, as
in Equinox. So is every leaf of the state of a `Stateful`.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .pairs import as_complex, as_pair, conjugate, is_complex, real_dtype
from .stateful import Stateful


def is_coordinate(leaf: Any) -> bool:
    """Whether a leaf is a coordinate: a floating or complex array."""
    return eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def refuse_complex(tree: PyTree, owner: str, cure: str) -> None:
    """Raise a `ValueError` if a leaf is complex, for what has no meaning there."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if eqx.is_array(leaf) and is_complex(leaf.dtype):
            name = jax.tree_util.keystr(path) or "params"
            raise ValueError(f"{owner}: {name} is complex ({leaf.dtype}). {cure}")


def split(tree: PyTree) -> tuple[PyTree, PyTree]:
    """The coordinates of a tree and its carried leaves; `eqx.combine` is the inverse."""
    return eqx.partition(tree, _coordinates(tree))


def _coordinates(tree: PyTree, known: Callable[[Any], bool] = is_coordinate) -> PyTree:
    """Whether each leaf of a tree is a coordinate; `known` decides where it may be one."""
    has_state = lambda x: isinstance(x, Stateful)

    def mark(x):
        if not has_state(x):
            return known(x)
        leaves = [known(leaf) for leaf in jax.tree.leaves(x.params)]
        carried = [False] * len(jax.tree.leaves(x.state))
        return jax.tree.unflatten(jax.tree.structure(x), leaves + carried)

    return jax.tree.map(mark, tree, is_leaf=has_state)


def common_dtype(*dtypes: np.dtype) -> np.dtype:
    """The dtype to which all of these are promoted."""
    # Also where the user has made implicit promotion an error.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*dtypes)


def is_half(dtype: np.dtype) -> bool:
    """Whether a floating dtype is too short for linear algebra: float16, bfloat16 and shorter."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.dtype(dtype).itemsize < 4


def has_half(tree: PyTree) -> bool:
    """Whether a coordinate of a tree is that short."""
    return any(is_half(x.dtype) for x in jax.tree.leaves(split(tree)[0]))


def cast_like(tree: PyTree, like: PyTree) -> PyTree:
    """The coordinates of a tree in the dtypes of another one of the same structure."""

    def cast(x, y):
        return x.astype(y.dtype) if is_coordinate(x) and hasattr(y, "dtype") else x

    return jax.tree.map(cast, tree, like, is_leaf=lambda x: x is None)


def coarsest_dtype(*dtypes: np.dtype) -> np.dtype:
    """The dtype with the fewest digits, which bounds the accuracy of results from all of these.

    It is real: that of the parts of a complex one.
    """
    return real_dtype(max(dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps)))


class Structure(eqx.Module):
    """How a tree of coordinates lies in one flat vector, which is real.

    A complex leaf is real and imaginary part of its first entry, then of the next. It is hashable,
    so that it may be static under `jax.jit`.
    """

    treedef: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    dtypes: tuple[np.dtype, ...] = eqx.field(static=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of coordinates of each leaf, two for a complex number."""
        return tuple(math.prod(shape) for shape in self.real_shapes)

    @property
    def real_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each leaf, with a trailing axis of two if it is complex."""
        described = zip(self.shapes, self.dtypes, strict=True)
        return tuple((*shape, 2) if is_complex(dtype) else shape for shape, dtype in described)

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return sum(self.sizes)

    @property
    def dtype(self) -> np.dtype:
        """The common dtype of the flat vector; it is real."""
        dtypes = map(real_dtype, self.dtypes)
        return common_dtype(*dtypes) if self.dtypes else jnp.result_type(float)

    @property
    def paths(self) -> list[Any]:
        """The path of each leaf, a tuple of keys."""
        numbered = self.treedef.unflatten(range(len(self.shapes)))
        return [path for path, _ in jax.tree_util.tree_leaves_with_path(numbered)]

    @property
    def names(self) -> list[str]:
        """The path of each leaf in words; `params` for a tree that is a leaf."""
        return [jax.tree_util.keystr(path) or "params" for path in self.paths]

    def ravel(self, tree: PyTree) -> Array:
        """The flat vector of a tree of this structure."""
        leaves, treedef = jax.tree.flatten(split(tree)[0])
        if treedef != self.treedef or tuple(jnp.shape(x) for x in leaves) != self.shapes:
            raise ValueError(
                f"expected a tree {self.treedef} with shapes {self.shapes}, "
                f"got {treedef} with shapes {tuple(jnp.shape(x) for x in leaves)}."
            )
        # Empty arrays stay out of the program (`unravel`).
        leaves = [self._flat(i, leaf) for i, leaf in enumerate(leaves) if leaf.size]
        return jnp.concatenate(leaves) if leaves else jnp.zeros(0, self.dtype)

    def _flat(self, number: int, leaf: Array) -> Array:
        """The coordinates of a leaf; a real one is also that of a complex one."""
        dtype = self.dtypes[number]
        if is_complex(leaf.dtype) and not is_complex(dtype):
            raise ValueError(
                f"{self.names[number]} is complex ({leaf.dtype}), and the tree is real there "
                f"({dtype}): pass the real part, x.real."
            )
        return jnp.ravel(as_pair(leaf) if is_complex(dtype) else leaf).astype(self.dtype)

    def ravel_covector(self, tree: PyTree) -> Array:
        """The flat covector of a tree in the convention of `jax.grad` (`pairs.py`)."""
        return self.ravel(conjugate(tree))

    def unravel(self, vector: Array) -> PyTree:
        """The tree of this structure from its flat vector, each leaf in its own dtype."""
        # One split, whose transpose is a concatenation. The transpose of slices is a sum of padded
        # vectors; where XLA fuses that sum with a norm or a dot product, it can lose the gradient
        # of a bias (`_compat/xla.py`).
        sizes = [size for size in self.sizes if size]
        parts = iter(jax.lax.split(vector, sizes) if sizes else [])

        # An empty part of a split makes XLA lose what it knows of calls to LAPACK (XLA of 2026: "no
        # registered implementation for untyped custom call").
        def leaf(shape, dtype):
            kind = real_dtype(dtype)
            x = jnp.zeros(shape, kind) if 0 in shape else next(parts).reshape(shape).astype(kind)
            return as_complex(x) if is_complex(dtype) else x

        return jax.tree.unflatten(self.treedef, map(leaf, self.real_shapes, self.dtypes))

    def unravel_covector(self, covector: Array) -> PyTree:
        """The tree of a flat covector, in the convention of `jax.grad` (`pairs.py`)."""
        return conjugate(self.unravel(covector))


def structure(tree: PyTree) -> Structure:
    """The structure of the coordinates of a tree."""
    known = lambda x: isinstance(x, jax.ShapeDtypeStruct) or is_coordinate(x)
    leaves, treedef = jax.tree.flatten(eqx.filter(tree, _coordinates(tree, known)))
    return Structure(
        treedef, tuple(tuple(x.shape) for x in leaves), tuple(jnp.dtype(x.dtype) for x in leaves)
    )


def as_data(tree: PyTree) -> PyTree:
    """A tree with its numbers as arrays: another number is then data, not a new program.

    Parts of it that declare `numbers_are_data = False` stay as they are.
    """
    fixed = lambda x: not getattr(type(x), "numbers_are_data", True)
    # Weakly typed, as the numbers are.
    convert = lambda x: jnp.asarray(x) if isinstance(x, float) else x
    return jax.tree.map(convert, tree, is_leaf=fixed)


def all_finite(tree: PyTree) -> Array:
    """Whether every coordinate of a tree is finite."""
    leaves = jax.tree.leaves(split(tree)[0])
    if not leaves:
        return jnp.asarray(True)
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))
