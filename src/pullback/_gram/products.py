r"""The products of a model with its parameters, each brought to one form.

\[ z_{bto} = \sum_i x_{bti}\, w_{bio}, \qquad\text{so}\qquad \frac{\partial}{\partial w_{bio}} =
\sum_t x_{bti}\, d_{bto} \]

with \(w\) the parameter, \(x\) the other factor, \(d\) the cotangent at the product. The index
\(t\) runs over *positions* that share the weights, \(b\) over blocks that do not.
"""

import abc
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._compat.jaxpr import JaxEquation

MAX_WINDOW = 128
"""The largest convolution window: patches are built by one slice per entry of the window."""


class AbstractParameterProduct(eqx.Module):
    """An equation that is a product with a parameter."""

    entries: eqx.AbstractVar[np.ndarray]
    """The entries of the leaf, as [b, i, o]."""
    positions: eqx.AbstractVar[int]
    """The number of positions t."""
    codes: eqx.AbstractVar[bool]
    """Whether x selects one i per position, and is given by the index i, or -1 for none."""

    @abc.abstractmethod
    def x(self, values: list[Any]) -> Array:
        """The other factor as [b, t, i], or the indices [t]."""

    @abc.abstractmethod
    def d(self, cotangent: Array) -> Array:
        """A cotangent at the result as [b, t, o]."""

    def shifted(self, entries: np.ndarray, size: int) -> np.ndarray | None:
        """The entries [o] of a parameter that is added to the result; `None` if it is not per o."""
        if self.entries.shape[0] != 1:
            return None
        placed = np.asarray(self._layout(entries))[0]
        same = (placed == placed[:1]).all() and np.unique(placed[0]).size == placed.shape[1] == size
        return placed[0].copy() if same else None

    @abc.abstractmethod
    def _layout(self, array: Any) -> Any:
        """An array of the shape of the result as [b, t, o], in NumPy or JAX."""


class Dense(AbstractParameterProduct):
    """`dot_general` with the parameter on either side."""

    entries: np.ndarray
    positions: int
    codes: bool
    side: int
    order: tuple[int, ...]
    shape: tuple[int, int, int]

    def __init__(
        self, params: dict[str, Any], side: int, entries: np.ndarray, other: tuple[int, ...]
    ):
        """Read a `dot_general` whose argument number `side` is the parameter."""
        contracts, batches = params["dimension_numbers"]
        contract = contracts[side]
        batch = batches[side]
        other_contract = contracts[1 - side]
        other_batch = batches[1 - side]
        free = [k for k in range(entries.ndim) if k not in (*contract, *batch)]
        rest = [k for k in range(len(other)) if k not in (*other_contract, *other_batch)]
        size = lambda shape, axes: math.prod(shape[k] for k in axes)
        b = size(entries.shape, batch)
        i = size(entries.shape, contract)
        o = size(entries.shape, free)
        t = size(other, rest)
        self.entries = entries.transpose(*batch, *contract, *free).reshape(b, i, o)
        self.positions = t
        self.codes = False
        self.side = side
        self.order = (*other_batch, *rest, *other_contract)
        self.shape = (b, t, i)

    def x(self, values):
        return values[1 - self.side].transpose(self.order).reshape(self.shape)

    def d(self, cotangent):
        return self._layout(cotangent)

    def _layout(self, array):
        b, t, _ = self.shape
        o = self.entries.shape[-1]
        # The result is [b, left, right].
        return array.reshape(b, t, o) if self.side == 1 else array.reshape(b, o, t).swapaxes(1, 2)


class Convolution(AbstractParameterProduct):
    """`conv_general_dilated` with the parameter as filter.

    i runs over channels and the window, t over samples and places.
    """

    entries: np.ndarray
    positions: int
    codes: bool
    params: dict[str, Any]
    window: tuple[int, ...]
    places: tuple[int, ...]

    def __init__(self, params: dict[str, Any], entries: np.ndarray, out: tuple[int, ...]):
        """Read a convolution whose filter is the parameter."""
        numbers = params["dimension_numbers"]
        filters = entries.transpose(numbers.rhs_spec)  # out, in, *window
        self.window = filters.shape[2:]
        self.entries = filters.reshape(filters.shape[0], -1).T[None]
        self.places = tuple(out[k] for k in numbers.out_spec[2:])
        self.positions = out[numbers.out_spec[0]] * math.prod(self.places)
        self.codes = False
        self.params = params

    def x(self, values):
        params = self.params
        image = values[0].transpose(params["dimension_numbers"].lhs_spec)  # n, c, *places
        pads = [(0, 0, 0)] * 2 + [
            (low, high, dilation - 1)
            for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
        ]
        image = jax.lax.pad(image, jnp.zeros((), image.dtype), pads)
        slices = []
        for corner in itertools.product(*(range(w) for w in self.window)):
            start = [
                k * dilation for k, dilation in zip(corner, params["rhs_dilation"], strict=True)
            ]
            stop = [
                s + (n - 1) * stride + 1
                for s, n, stride in zip(start, self.places, params["window_strides"], strict=True)
            ]
            slices.append(
                jax.lax.slice(
                    image,
                    (0, 0, *start),
                    (*image.shape[:2], *stop),
                    (1, 1, *params["window_strides"]),
                )
            )
        patches = jnp.stack(slices, axis=2)  # n, c, window, *places
        return jnp.moveaxis(patches, (1, 2), (-2, -1)).reshape(1, self.positions, -1)

    def d(self, cotangent):
        return self._layout(cotangent)

    def _layout(self, array):
        array = array.transpose(self.params["dimension_numbers"].out_spec)  # n, o, *places
        return array.swapaxes(0, 1).reshape(array.shape[1], -1).T[None]


class Lookup(AbstractParameterProduct):
    """`gather` of rows of the parameter: x selects one row per position."""

    entries: np.ndarray
    positions: int
    codes: bool
    params: dict[str, Any]
    out: tuple[int, ...]

    def __init__(self, params: dict[str, Any], entries: np.ndarray, out: tuple[int, ...]):
        """Read a `gather` whose operand is the parameter."""
        self.entries = entries.reshape(1, entries.shape[0], -1)
        self.positions = math.prod(out) // self.entries.shape[2]
        self.codes = True
        self.params = params
        self.out = out

    def x(self, values):
        index = values[1].reshape(-1)
        rows = self.entries.shape[1]
        if self.params["mode"] == jax.lax.GatherScatterMode.CLIP:
            return jnp.clip(index, 0, rows - 1)
        return jnp.where((index >= 0) & (index < rows), index, -1)

    def d(self, cotangent):
        return self._layout(cotangent)

    def _layout(self, array):
        offset = self.params["dimension_numbers"].offset_dims
        places = [k for k in range(len(self.out)) if k not in offset]
        return array.transpose(*places, *offset).reshape(1, self.positions, -1)


def product(eqn: JaxEquation, side: int, entries: np.ndarray) -> AbstractParameterProduct | None:
    """The product of an equation with its argument number `side`; `None` for any other equation."""
    name = eqn.primitive.name
    params = eqn.params
    shapes = [v.aval.shape for v in eqn.invars]
    out = eqn.outvars[0].aval.shape
    if name == "dot_general":
        return Dense(params, side, entries, shapes[1 - side])
    if name == "conv_general_dilated" and side == 1:
        plain = params["feature_group_count"] == params["batch_group_count"] == 1
        window = math.prod(shapes[1][k] for k in params["dimension_numbers"].rhs_spec[2:])
        return Convolution(params, entries, out) if plain and window <= MAX_WINDOW else None
    if name == "gather" and side == 0:
        numbers = params["dimension_numbers"]
        rows = (
            numbers.collapsed_slice_dims == (0,) == numbers.start_index_map
            and not numbers.operand_batching_dims
        )
        whole = tuple(params["slice_sizes"]) == (1, *entries.shape[1:]) and shapes[1][-1] == 1
        return Lookup(params, entries, out) if rows and whole else None
    return None
