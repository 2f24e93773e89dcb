"""Entries of the outputs by number or by index, with names for a legend."""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._base.checks import error
from .._base.tree import split
from .._base.types import Outputs


def entries(owner: str, wanted: Any, z: Outputs) -> dict[str, int]:
    """Return name -> place in the ravelled outputs; raises a `ValueError` for what is not there."""
    leaves = jax.tree_util.tree_leaves_with_path(split(z)[0])
    shapes = [np.shape(leaf) for _, leaf in leaves]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    total = int(ends[-1])
    there = f"places from 0 to {total - 1} in the ravelled outputs"
    if len(shapes) == 1:
        there += f", or indices in their shape {shapes[0]}"
    # Arrays of no axis have no length.
    several = isinstance(wanted, Sequence) or getattr(wanted, "ndim", 0) > 0
    if isinstance(wanted, str) or (several and not len(wanted)):
        raise error(owner, "outputs", wanted, there, f"{owner}(outputs=[0])")
    found: dict[str, int] = {}
    for one in wanted if several else [wanted]:
        place = _place(one, shapes)
        if place is None:
            raise error(owner, "outputs", one, there, f"{owner}(outputs=[0])")
        leaf = int(np.searchsorted(ends, place, side="right"))
        inside = np.unravel_index(
            place - (ends[leaf] - np.prod(shapes[leaf], dtype=int)), shapes[leaf]
        )
        index = f"[{', '.join(map(str, inside))}]" if inside else ""
        found[f"z{jax.tree_util.keystr(leaves[leaf][0])}{index}"] = place
    return found


def _place(one: Any, shapes: list[tuple[int, ...]]) -> int | None:
    """Return the place of an entry, `None` if there is no such entry."""
    try:
        if isinstance(one, tuple):
            if len(shapes) != 1 or any(i < 0 for i in one):
                return None
            return int(np.ravel_multi_index(tuple(map(operator.index, one)), shapes[0]))
        place = operator.index(one)
    except (TypeError, ValueError):
        return None
    total = sum(int(np.prod(shape)) for shape in shapes)
    return place if not isinstance(one, bool | np.bool_) and 0 <= place < total else None
