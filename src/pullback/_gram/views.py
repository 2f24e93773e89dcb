"""Arrays of a program that rearrange one parameter leaf: transposed, sliced, reshaped, broadcast.

A *view* is an array of the program whose entries are entries of one parameter leaf. It is described
by their indices: an integer array of the same shape, in which an axis along which the view was
broadcast has length one. The rules below do to the indices what the program does to the values, in
NumPy, while tracing.
"""

from typing import Any, NamedTuple

import numpy as np


class View(NamedTuple):
    """Which entries of which leaf."""

    leaf: int
    entries: np.ndarray

    def fills(self, shape: tuple[int, ...]) -> bool:
        """Whether no axis is broadcast."""
        return self.entries.shape == tuple(shape)


def whole(leaf: int, shape: tuple[int, ...]) -> View:
    """The view of a whole leaf."""
    return View(leaf, np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape))


def reshaped(
    name: str, params: dict[str, Any], view: View, shape: tuple[int, ...], out: Any
) -> View | None:
    """The view that an equation makes of a view; `None` if it does more than rearrange."""
    entries = view.entries
    if name == "transpose":
        return View(view.leaf, entries.transpose(params["permutation"]))
    if name == "broadcast_in_dim":
        # New axes and axes that grow are broadcast. An axis that was broadcast before stays so.
        into = [1] * len(params["shape"])
        for axis, length in zip(params["broadcast_dimensions"], entries.shape, strict=True):
            into[axis] = length
        return View(view.leaf, entries.reshape(into))
    if not view.fills(shape):
        return None
    if name in ("reshape", "squeeze", "expand_dims"):
        return (
            None
            if params.get("dimensions") and name == "reshape"
            else View(view.leaf, entries.reshape(out.shape))
        )
    if name == "slice":
        strides = params["strides"] or (1,) * entries.ndim
        index = tuple(
            slice(*bounds)
            for bounds in zip(
                params["start_indices"], params["limit_indices"], strides, strict=True
            )
        )
        return View(view.leaf, entries[index])
    if name == "rev":
        return View(view.leaf, np.flip(entries, params["dimensions"]))
    return view if name == "copy" else None
