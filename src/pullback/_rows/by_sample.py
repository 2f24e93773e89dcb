"""How an equation on a whole batch acts on the part of one sample.

An array of the batch has one *sample axis*, of length N k: the entries of sample n are the k at n k
(k = 1 unless the axis was merged with later ones). A rule takes the sample axes of the arguments
and returns those of the results, if the part of a sample in the results depends on the part of that
sample in the arguments only. The same equation, with the given parameters, then maps the parts.

An equation without a rule, or one whose rule returns `None`, mixes the samples as far as is known
here. That is never wrong: its results are then statistics (`cut.py`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from .._compat.jaxpr import JaxEquation

Axes: TypeAlias = Sequence[int | None]
"""The sample axis of each argument; `None` for an array that all samples share."""

ELEMENTWISE = frozenset(
    """abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp complex conj
    convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor
    ge gt imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter
    not or pow real reduce_precision rem round rsqrt select_n sign sin sinh
    sqrt square stop_gradient sub tan tanh xor""".split()
)
REDUCTIONS = frozenset(
    """argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum
    reduce_xor""".split()
)
CUMULATIVE = frozenset("cumlogsumexp cummax cummin cumprod cumsum".split())
WINDOWS = frozenset("reduce_window_max reduce_window_min reduce_window_sum".split())


class Local(NamedTuple):
    """How an equation acts on the part of one sample."""

    axes: tuple[int, ...]
    """The sample axis of each result."""
    params: dict[str, Any]
    """The parameters of the equation that change."""
    shared: tuple[int | None, ...] = ()
    """For each argument that all samples share, the axis along which a sample has a part of it."""


def by_sample(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    """How an equation acts on one of `count` samples; `None` if it may mix them."""
    name = eqn.primitive.name
    if name in ELEMENTWISE:
        return _elementwise(eqn, axes)
    rule = RULES.get(name)
    return None if rule is None else rule(eqn, axes, count)


def _shape(eqn: JaxEquation, side: int) -> tuple[int, ...]:
    return eqn.invars[side].aval.shape


def _replaced(sizes: Sequence[int], axis: int, count: int) -> tuple[int, ...]:
    """The sizes of the part of one sample."""
    return (*sizes[:axis], sizes[axis] // count, *sizes[axis + 1 :])


def _without(axis: int, removed: Sequence[int]) -> int:
    """The number of an axis after others were removed."""
    return axis - sum(other < axis for other in removed)


def _elementwise(eqn: JaxEquation, axes: Axes) -> Local | None:
    found = {axis for axis in axes if axis is not None}
    if len(found) != 1:
        return None
    (axis,) = found
    length = eqn.outvars[0].aval.shape[axis]
    shared: list[int | None] = []
    for side, own in enumerate(axes):
        shape = _shape(eqn, side)
        if own is not None and shape[own] != length:
            return None
        # A scalar, or an axis of length one, is the same for all samples.
        varies = own is None and len(shape) > axis and shape[axis] == length
        shared.append(axis if varies else None)
    return Local((axis,) * len(eqn.outvars), {}, tuple(shared))


def _reduction(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis, removed = axes[0], eqn.params["axes"]
    if len(axes) != 1 or axis is None or axis in removed:
        return None
    return Local((_without(axis, removed),), {})


def _cumulative(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis = axes[0]
    return None if axis is None or axis == eqn.params["axis"] else Local((axis,), {})


def _window(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis, params = axes[0], eqn.params
    plain = axis is not None and (
        params["window_dimensions"][axis] == params["window_strides"][axis] == 1
        and tuple(params["padding"][axis]) == (0, 0)
        and params["base_dilation"][axis] == params["window_dilation"][axis] == 1
    )
    return Local((axis,), {}) if plain and axis is not None else None


def _transpose(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    assert axes[0] is not None
    return Local((tuple(eqn.params["permutation"]).index(axes[0]),), {})


def _reshape(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    old, new, axis = _shape(eqn, 0), eqn.params["new_sizes"], axes[0]
    if axis is None or eqn.params.get("dimensions") is not None:
        return None
    # The entries of a sample stay together if the axes before the sample axis hold as many entries
    # as before, and the axis is still a multiple of N.
    before = math.prod(old[:axis])
    for other, length in enumerate(new):
        if math.prod(new[:other]) == before and length and length % count == 0:
            return Local((other,), {"new_sizes": _replaced(new, other, count)})
    return None


def _broadcast(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis, shape = axes[0], eqn.params["shape"]
    if axis is None or len(axes) != 1:
        return None
    into = int(eqn.params["broadcast_dimensions"][axis])
    if shape[into] != _shape(eqn, 0)[axis]:
        return None
    return Local((into,), {"shape": _replaced(shape, into, count)})


def _squeeze(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis, removed = axes[0], eqn.params["dimensions"]
    return None if axis is None or axis in removed else Local((_without(axis, removed),), {})


def _slice(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis, params = axes[0], eqn.params
    if axis is None:
        return None
    length, strides = _shape(eqn, 0)[axis], params["strides"]
    limits = params["limit_indices"]
    whole = params["start_indices"][axis] == 0 and limits[axis] == length
    if not whole or (strides is not None and strides[axis] != 1):
        return None
    return Local((axis,), {"limit_indices": _replaced(limits, axis, count)})


def _pad(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis = axes[0]
    if axis is None or axes[1] is not None:
        return None
    plain = tuple(eqn.params["padding_config"][axis]) == (0, 0, 0)
    return Local((axis,), {}) if plain else None


def _reverse(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis = axes[0]
    return None if axis is None or axis in eqn.params["dimensions"] else Local((axis,), {})


def _concatenate(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    found = _elementwise(eqn, axes)
    if found is None or found.axes[0] == eqn.params["dimension"]:
        return None
    return found


def _split(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    axis = axes[0]
    if axis is None or axis == eqn.params["axis"]:
        return None
    return Local((axis,) * len(eqn.outvars), {})


def _dot(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    contracts, batches = eqn.params["dimension_numbers"]
    if any(axis in contracts[side] for side, axis in enumerate(axes) if axis is not None):
        return None
    side = next(side for side, axis in enumerate(axes) if axis is not None)
    axis, other = axes[side], axes[1 - side]
    assert axis is not None
    if axis in batches[side]:
        place = list(batches[side]).index(axis)
        partner = batches[1 - side][place]
        if other is not None and other != partner:
            return None
        shared: list[int | None] = [None, None]
        shared[1 - side] = partner if other is None else None
        return Local((place,), {}, tuple(shared))
    if other is not None:
        return None
    free = [k for k in range(len(_shape(eqn, side))) if k not in (*contracts[side], *batches[side])]
    first = len(batches[0])
    if side == 1:
        first += len(_shape(eqn, 0)) - len(contracts[0]) - len(batches[0])
    return Local((first + free.index(axis),), {})


def _convolution(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    numbers = eqn.params["dimension_numbers"]
    plain = axes[0] == numbers.lhs_spec[0] and axes[1] is None
    if not plain or eqn.params["batch_group_count"] != 1:
        return None
    return Local((numbers.out_spec[0],), {})


def _gather(eqn: JaxEquation, axes: Axes, count: int) -> Local | None:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    if numbers.operand_batching_dims or numbers.start_indices_batching_dims:
        return None
    offset, rank = numbers.offset_dims, len(eqn.outvars[0].aval.shape)
    operand, index = axes
    if operand is None and index is not None and index < len(_shape(eqn, 1)) - 1:
        # Each sample looks up its own indices in an array that all samples share.
        places = [axis for axis in range(rank) if axis not in offset]
        return Local((places[index],), {})
    if operand is not None and index is None and sizes[operand] == _shape(eqn, 0)[operand]:
        # The same entries of every sample.
        kept = [k for k in range(len(sizes)) if k not in numbers.collapsed_slice_dims]
        if operand in kept and operand not in numbers.start_index_map:
            axis = offset[kept.index(operand)]
            return Local((axis,), {"slice_sizes": _replaced(sizes, operand, count)})
    return None


RULES: dict[str, Callable[[JaxEquation, Axes, int], Local | None]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "transpose": _transpose,
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(CUMULATIVE, _cumulative),
    **dict.fromkeys(WINDOWS, _window),
}
