"""Whether a step can be made: which piece returned what is not finite, and in which leaf."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._base.results import RESULTS, among
from .._base.show import brief
from .._base.stateful import is_spoilt
from .._base.tree import Structure, structure
from .._base.types import Count, Flat, Params
from .._natural.outcome import first
from .._natural.subproblem import Subproblem
from ..step._base import Move
from .record import USABLE

PIECES = {
    "nonfinite_direction": ("momentum",),
    "nonfinite_move": ("rule", "rate"),
    "nonfinite_constraint": ("constraint",),
}
"""The attributes of an optimiser, the first of which that it has is what a result is due to."""


def judged(
    solved: Subproblem,
    move: Move,
    there: Params,
    result: RESULTS,
    lost: tuple[Array, Array],
    has: tuple[bool, bool],
) -> tuple[RESULTS, Count]:
    """Return the result with what is said of the move, and the leaf that is not finite.

    `there` is where it leads; `lost` tells that the new state of the rule and the new memory of the
    momentum are not finite, `has` that there is a momentum, and a constraint of the user's own.
    """
    (spoilt, forgotten), (remembers, constrained) = lost, has
    like, here, d = structure(there), solved.evaluation.rows.params, move.direction
    target = like.ravel(here) + move.displacement.astype(like.dtype)
    own = jnp.asarray(False)
    if remembers:
        # A rule of the user's own may have changed the direction.
        again = lambda: ~_finite(solved.direction())
        own = jax.lax.cond(_finite(d), lambda: jnp.asarray(False), again)
        longest = None if solved.longest is None else solved.longest(d)
        own = own | (move.accepted & forgotten)
        own = own if longest is None else own | ~(jnp.asarray(longest) >= 0)
    bad = ~(_finite(d) & _finite(target)) | (move.accepted & ~jnp.isfinite(move.value)) | spoilt
    # Leaves in half precision have no constraint but their range.
    outside: Any = RESULTS.nonfinite_constraint if constrained else RESULTS.nonfinite_move
    found, leaf = verdict(
        like,
        [
            (own, RESULTS.nonfinite_direction, d),
            (bad, RESULTS.nonfinite_move, target),
            (~_finite(like.ravel(there)), outside, like.ravel(there)),
        ],
    )
    judged = among(result, USABLE) & (found != RESULTS.successful)
    leaf = jnp.where(judged & jnp.isfinite(move.rate), leaf, -1)
    return RESULTS.where(judged, found, result), leaf


def state_judged(params: Params, state: Any, result: RESULTS) -> RESULTS:
    """Return the result with what is said of the new state of the model."""
    bad = among(result, USABLE) & is_spoilt(params, state)
    return RESULTS.where(bad, RESULTS.nonfinite_state, result)


def verdict(like: Structure, verdicts: Sequence[tuple[Array, Any, Flat]]) -> tuple[RESULTS, Count]:
    """Return the first code whose flag is set, and the first leaf that is not finite."""
    found = first([(bad, code) for bad, code, _ in verdicts], None)
    leaf = jnp.asarray(-1, jnp.int32)
    for bad, _, vector in reversed(verdicts):
        leaf = jnp.where(bad, first_leaf(like, vector), leaf)
    return found, leaf


def first_leaf(like: Structure, flat: Flat) -> Count:
    """Return the number of the first leaf that is not finite; -1 if all are."""
    none = jnp.asarray(-1, jnp.int32)
    if not like.size:
        return none
    bad = ~jnp.isfinite(flat)
    ends = jnp.asarray(np.cumsum(like.sizes), jnp.int32)
    leaf = jnp.searchsorted(ends, jnp.argmax(bad).astype(jnp.int32), side="right")
    return jnp.where(jnp.any(bad), leaf.astype(jnp.int32), none)


def due_to(name: str, opt: Any, params: Params, leaf: int) -> str:
    """Return in words the piece and the leaf that a result is due to; empty if there is none."""
    held = [attribute for attribute in PIECES.get(name, ()) if hasattr(opt, attribute)]
    if not held:
        return ""
    shown = "step" if held[0] == "rule" else held[0]
    words = f" Returned by {shown}={brief(getattr(opt, held[0]))}"
    if leaf < 0:
        return f"{words}."
    name = structure(params).names[leaf]
    return f"{words}; not finite in {name if name == 'params' else f'params{name}'}."


def _finite(x: Array) -> Array:
    return jnp.all(jnp.isfinite(x))
