r"""The whitened Jacobian of each sample in factors: \(A_n = \sum_t x_{nt} \otimes d_{nt}\).

A leaf whose products are understood is kept as factors, any other leaf as rows. With q rows per
sample, K of a leaf with weights i × o at T positions comes from pairs of positions if these cost
less for a pair of samples,

\[ c_T\,T^2\,(i + q^2 o) < c\,q^2\, i\, o + 5\,T q\,i\,o/n, \]

with n samples; the factors \(c = 1 + 1/\text{tiles}\) are for the halves of the diagonal tiles of K
that nobody needs. The last term is for forming rows, in products with T terms only, at two fifths
of the speed of large ones.

Otherwise its rows are formed, by the same product for all q at once: of a large leaf (and q = 1)
some columns at a time while K is summed, so that all of them are never in memory, of any other leaf
once.

A complex leaf is a real one with pairs for outputs, at twice as many positions. Its row is the
complex product \(xd\) in the convention of `jax.grad`, and the pair of its conjugate is

\[ \overline{xd} = \mathrm{Re}(x)\,\bar d + \mathrm{Im}(x)\,\overline{id} . \]
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._base.pairs import as_pair, is_complex, like_precision
from .walk import Use, Walk

LARGE = 2**20
"""The entries of the rows of a leaf from which on they are formed some columns at a time."""


class Group(NamedTuple):
    """A leaf and its products; a shift that is added to its product is one more row of weights."""

    leaf: int
    uses: list[Use]
    order: np.ndarray
    """The place of each entry [i, o] in the flat parameters."""
    codes: bool
    formed: bool = False
    """Whether K comes from rows that are formed some columns at a time."""

    @property
    def positions(self) -> int:
        """T, the number of positions."""
        return sum(use.positions for use in self.uses)


class Layout(NamedTuple):
    """How each leaf is kept."""

    walk: Walk
    factors: list[Group]
    products: list[Group]
    """Leaves kept as rows, which products give."""
    free: list[int]
    """Leaves kept as rows, which automatic differentiation gives."""
    order: np.ndarray
    """The places in the flat parameters of the factors, then of the rows."""
    statistics: int = 0
    """How many columns of the rows, the last ones, are statistics of the batch."""
    influencing: frozenset[int] = frozenset()
    """The leaves on which those depend."""

    @property
    def row_size(self) -> int:
        """How many parameters are kept as rows."""
        return self.order.size - sum(group.order.size for group in self.factors)


class Factors(eqx.Module):
    """A in factors; the axes are sample n, row of the sample q, position t, and i or o."""

    x: tuple[Array, ...]
    """[n, t, i], or [n, t] where x is the index of a row of weights."""
    d: tuple[Float[Array, "n q t o"], ...]
    rows: Float[Array, "n q r"]
    codes: tuple[bool, ...] = eqx.field(static=True)
    formed: tuple[bool, ...] = eqx.field(static=True, default=())
    """Which leaves come as rows into K, formed from their factors; none if it is empty."""


def row_blocks(samples: int) -> int:
    """Into how many blocks of rows K is divided where rows are formed."""
    return max(1, min(5, samples // 64))


def layout(
    walk: Walk,
    shapes: Sequence[tuple[int, ...]],
    q: int,
    single: bool = False,
    statistics: int = 0,
    influencing: frozenset[int] = frozenset(),
    *,
    count: int = 1,
    tiles: Callable[[int], int] = lambda positions: 1,
) -> Layout:
    """The choice between factors and rows for each leaf; `single` allows one position only.

    `count` is n, and `tiles` the number of tiles along one side of K, by the number of positions.
    The last leaves are statistics of the batch. They and the leaves on which they depend are kept
    as rows, where the effect of the statistics can be added.
    """
    parameters = len(shapes) - statistics
    kept = influencing | frozenset(range(parameters, len(shapes)))
    pairs = [is_complex(v.aval.dtype) for v in walk.program.inputs[: len(shapes)]]
    sizes = [math.prod(s) * (2 if pair else 1) for s, pair in zip(shapes, pairs, strict=True)]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    factors: list[Group] = []
    products: list[Group] = []
    free = sorted(walk.free)
    for leaf, uses in walk.uses.items():
        entries = _places(uses[0].product.entries, pairs[leaf])
        codes = uses[0].product.codes
        blocks, i, o = entries.shape
        t = sum(use.positions for use in uses)
        shift = uses[0].shift
        by_pairs = (1 + 1 / tiles(t)) * t * t * ((1 if codes else i) + q * q * o)
        large = q == 1 and count * i * o >= LARGE and not codes
        halves = 1 / (row_blocks(count) if large else tiles(1))
        by_rows = (1 + halves) * q * q * i * o + 5 * t * q * i * o / count
        cheap = blocks == 1 and (large or by_pairs < by_rows)
        if single:
            cheap = blocks == 1 and t == 1 and not codes
        cheap = cheap and not kept.intersection([leaf] if shift is None else [leaf, shift.leaf])
        # One more row of weights is complex if they are.
        cheap = cheap and (shift is None or pairs[leaf] == pairs[shift.leaf])
        order = starts[leaf] + entries
        if cheap:
            rows = [order[0]]
            if shift is not None:
                more = _places(shift.entries[None], pairs[shift.leaf])
                rows.append(starts[shift.leaf] + more)
            formed = large and not single and by_rows <= by_pairs
            factors.append(Group(leaf, uses, np.concatenate(rows), codes, formed))
            continue
        if shift is not None:
            free.append(shift.leaf)
        if codes or leaf >= parameters:
            free.append(leaf)
        else:
            products.append(Group(leaf, uses, order, codes))
    free.sort()  # Statistics are last.
    tail = [np.arange(starts[leaf], starts[leaf + 1]) for leaf in free]
    order = np.concatenate([group.order.ravel() for group in (*factors, *products)] + tail)
    tapped = {group.leaf: group.uses for group in (*factors, *products)}
    extra = int(starts[-1] - starts[parameters])
    order = order[: order.size - extra]
    tapping = Walk(walk.program, tapped, walk.free)
    return Layout(tapping, factors, products, free, order, extra, influencing)


def sample_factors(
    plan: Layout,
    leaves: Sequence[Array],
    inputs: Sequence[Array],
    pull: Callable[[Array], Sequence[Any]],
    q: int,
    dtype: Any,
) -> Factors:
    """The factors of one sample, without the axis n."""
    uses = [use for group in (*plan.factors, *plan.products) for use in group.uses]
    taps = {use.path: jnp.zeros((*use.loops, *use.shape), use.dtype) for use in uses}

    def outputs(taps, free):
        values = list(leaves)
        for leaf, value in zip(plan.free, free, strict=True):
            values[leaf] = value
        return plan.walk.run(values, inputs, taps)

    _, vjp, seen = jax.vjp(outputs, taps, [leaves[leaf] for leaf in plan.free], has_aux=True)
    cotangents, free = jax.vmap(lambda w: vjp(list(pull(w))))(jnp.eye(q, dtype=dtype))

    def x(use: Use) -> Array:
        value = seen[use.path, use.side]
        if use.product.codes:
            return value.reshape(-1)
        return _merged(value, use.loops, 0).astype(like_precision(value.dtype, dtype))

    def d(use: Use) -> Array:
        place = use.product.d
        for _ in range(1 + len(use.loops)):
            place = jax.vmap(place)
        value = _merged(place(cotangents[use.path]), use.loops, 1)
        return value.astype(like_precision(value.dtype, dtype))

    pairs = [is_complex(leaf.dtype) for leaf in leaves]
    xs: list[Array] = []
    ds: list[Array] = []
    for group in plan.factors:
        x_all = jnp.concatenate([x(use) if group.codes else x(use)[0] for use in group.uses])
        if group.uses[0].shift is not None:
            ones = jnp.ones((*x_all.shape[:-1], 1), x_all.dtype)
            x_all = jnp.concatenate([x_all, ones], axis=-1)
        d_all = jnp.concatenate([d(use)[:, 0] for use in group.uses], axis=1)
        xs.append(x_all if group.codes else _parts(x_all, d_all))
        ds.append(_pulled(d_all, 1 if group.codes else 2, pairs[group.leaf]))
    rows = []
    for group in plan.products:
        x_all = jnp.concatenate([x(use) for use in group.uses], axis=1)
        d_all = jnp.concatenate([d(use) for use in group.uses], axis=2)
        x_all, d_all = _parts(x_all, d_all), _pulled(d_all, 2, pairs[group.leaf])
        rows.append(jnp.einsum("bti,qbto->qbio", x_all, d_all).reshape(q, -1))
    flat = lambda value: _pulled(value.reshape(q, 1, -1), 1, is_complex(value.dtype))[:, 0]
    rows += [flat(value).astype(dtype) for value in free]
    stacked = jnp.concatenate(rows, axis=1) if rows else jnp.zeros((q, 0), dtype)
    codes = tuple(group.codes for group in plan.factors)
    formed = tuple(group.formed for group in plan.factors)
    return Factors(tuple(xs), tuple(ds), stacked, codes, formed)


def _places(entries: np.ndarray, pairs: bool) -> np.ndarray:
    """The places of the entries of a leaf in its flat form, where a complex one is a pair."""
    if not pairs:
        return entries
    return (2 * entries[..., None] + np.arange(2)).reshape(*entries.shape[:-1], -1)


def _parts(x: Array, d: Array) -> Array:
    """[.., t, i], real: the real parts of a complex one, then, at other positions, the others.

    A real input of a complex product has two parts, too.
    """
    return jnp.concatenate([x.real, x.imag], axis=-2) if is_complex(d.dtype) else x


def _pulled(d: Array, parts: int, pair: bool) -> Array:
    """[.., t, o], real: the pairs of d̄, then, with two parts, those of the conjugate of id.

    Real weights of a complex product are no pairs: they have the first of each.
    """
    if not is_complex(d.dtype):
        return d
    both = jnp.conj(jnp.concatenate([d, d * jnp.asarray(1j, d.dtype)][:parts], axis=-2))
    return as_pair(both).reshape(*both.shape[:-1], -1) if pair else both.real


def _merged(value: Array, loops: tuple[int, ...], lead: int) -> Array:
    """[lead, *loops, b, t, k] as [lead, b, (loops, t), k]: iterations of loops are positions."""
    value = jnp.moveaxis(value, lead + len(loops), lead)
    return value.reshape(*value.shape[: lead + 1], -1, value.shape[-1])
