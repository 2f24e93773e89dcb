r"""The layers of several terms: one layout for all, and K with its blocks between terms.

\[ K_{kl} = A_k A_l^\top = \sum_\text{leaves} \sum_{tt'} (x_{nt}\cdot x_{n't'})\,(d_{nqt}\cdot
d_{n'q't'}) \]

with the samples of term k on the left and those of term l on the right. A leaf must be kept in one
way in all terms: as factors, if it has factors of the same form in every term that uses it, and
otherwise as rows. For a problem of one term this is its own layout.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._rows.rows import AbstractRows, Rows
from .factors import Factors, Group, Layout
from .structured import analyse as analyse_term
from .structured import find as find_term
from .structured import layout_of, structured_factors, walk_of
from .walk import UNUSED, Walk


class Joint(NamedTuple):
    """How the leaves are kept, in every term."""

    parts: tuple[Layout, ...]
    """The layout of each term."""
    groups: tuple[Group, ...]
    """The leaves that are kept as factors."""
    order: np.ndarray
    """The places in the flat parameters of the factors, then of the rows."""
    columns: tuple[np.ndarray | None, ...]
    """Which columns of the rows of each term to take, in their common order; `None` for all."""

    @property
    def row_size(self) -> int:
        """How many parameters are kept as rows."""
        return self.order.size - sum(group.order.size for group in self.groups)


class JointFactors(eqx.Module):
    """A in factors, term by term."""

    parts: tuple[Factors, ...]
    leaves: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    """The leaves of the factors of each term."""

    def of(self, leaf: int) -> list[tuple[int, Array, Array, bool]]:
        """Return the number of each term that uses a leaf, its x and d there, and `codes`."""
        found = []
        for number, (part, leaves) in enumerate(zip(self.parts, self.leaves, strict=True)):
            if leaf in leaves:
                k = leaves.index(leaf)
                found.append((number, part.x[k], part.d[k], part.codes[k]))
        return found


def analyse(rows: AbstractRows) -> AbstractRows:
    """Return the rows with an analysis of the program of each model, which runs once."""
    return rows.with_terms(tuple(analyse_term(term) for term in rows.terms))


def find(rows: AbstractRows, single: bool = False) -> Joint | None:
    """Return how the leaves are kept; `None` if none has factors or products that can be used.

    With `single` factors must have one position (for G).
    """
    terms = rows.terms
    if len(terms) == 1:
        found = find_term(terms[0], single)
        return (
            None if found is None else Joint((found,), tuple(found.factors), found.order, (None,))
        )
    walks = [walk_of(term) for term in terms]
    known = [walked for walked in walks if walked is not None]
    if len(known) < len(walks):
        return None
    layouts = _common(terms, _aligned(known), single)
    groups = {group.leaf: group for layout in layouts for group in layout.factors}
    kept = np.concatenate([np.zeros(0, np.int64), *(g.order.ravel() for g in groups.values())])
    rest = np.setdiff1d(np.arange(rows.shape[1]), kept)
    columns = tuple(_places(layout, rest) for layout in layouts)
    order = np.concatenate([kept, rest])
    useful = groups or (any(layout.products for layout in layouts) and not single)
    return Joint(layouts, tuple(groups.values()), order, columns) if useful else None


def _aligned(walks: Sequence[Walk]) -> list[Walk]:
    """Return the walks without the shifts that are not added to the same product in every term."""
    loose = set()
    for walk in walks:
        for leaf, uses in walk.uses.items():
            shift = uses[0].shift
            if shift is not None and not all(
                _has_shift(other, leaf, shift.leaf, shift.entries) for other in walks
            ):
                loose.add(leaf)
    return [_loosened(walk, loose) for walk in walks]


def _has_shift(walk: Walk, leaf: int, shift: int, entries: np.ndarray) -> bool:
    """Return whether a term adds the same shift to the same product, or uses neither."""
    if leaf not in walk.uses:
        return all(walk.free.get(k) == UNUSED for k in (leaf, shift))
    found = walk.uses[leaf][0].shift
    return found is not None and found.leaf == shift and np.array_equal(found.entries, entries)


def _loosened(walk: Walk, loose: set[int]) -> Walk:
    """Return the walk with the shifts of these leaves as leaves of their own."""
    uses, free = dict(walk.uses), dict(walk.free)
    for leaf in loose.intersection(uses):
        for use in uses[leaf]:
            if use.shift is not None:
                free.setdefault(use.shift.leaf, "it is added")
        uses[leaf] = [use._replace(shift=None) for use in uses[leaf]]
    return Walk(walk.program, uses, free)


def _common(terms: Sequence[Rows], walks: Sequence[Walk], single: bool) -> tuple[Layout, ...]:
    """Return layouts in which a leaf is kept as factors in all terms that use it, or in none."""
    kept: frozenset[int] = frozenset()
    while True:
        layouts = tuple(
            layout_of(term, walk, single, kept) for term, walk in zip(terms, walks, strict=True)
        )
        groups = [{group.leaf: group for group in layout.factors} for layout in layouts]
        apart = {
            leaf
            for leaf in set().union(*groups)
            if not _agree([group.get(leaf) for group in groups], walks, leaf)
        }
        if not apart:
            return layouts
        kept = kept | apart


def _agree(groups: Sequence[Group | None], walks: Sequence[Walk], leaf: int) -> bool:
    """Return whether every term that uses a leaf has the same factors of it."""
    first = next(group for group in groups if group is not None)
    return all(
        walk.free.get(leaf) == UNUSED
        if group is None
        else group.codes == first.codes and np.array_equal(group.order, first.order)
        for group, walk in zip(groups, walks, strict=True)
    )


def _places(layout: Layout, rest: np.ndarray) -> np.ndarray | None:
    """Return the columns of the rows of a term that belong to the parameters in `rest`."""
    mine = layout.order[layout.order.size - layout.row_size :]
    if np.array_equal(mine, rest):
        return None
    sorter = np.argsort(mine)
    return sorter[np.searchsorted(mine, rest, sorter=sorter)]


def joint_factors(
    rows: AbstractRows, plan: Joint, scale: Float[Array, " m"] | None = None
) -> JointFactors:
    """Return diag(scale) Â in factors; rows of absent samples are zero."""
    parts = [None] * len(rows.terms) if scale is None else rows.split(scale)
    found = []
    for term, layout, own, places in zip(rows.terms, plan.parts, parts, plan.columns, strict=True):
        factors = structured_factors(term, layout, own)
        if places is not None:
            factors = eqx.tree_at(lambda f: f.rows, factors, factors.rows[:, :, places])
        found.append(term.masked(factors))
    leaves = tuple(tuple(group.leaf for group in layout.factors) for layout in plan.parts)
    return JointFactors(tuple(found), leaves)


def joint_rows(rows: AbstractRows, plan: Joint) -> Float[Array, "m P"]:
    """Return Â of a plan without factors, the parameters in the order of the plan."""
    parts = [part.rows for part in joint_factors(rows, plan).parts]
    return jnp.concatenate([part.reshape(-1, rows.shape[1]) for part in parts])


def per_term(rows: AbstractRows, function: Callable[[Rows], Array]) -> Array:
    """Return the sum over the terms that are present of a function of the rows of one."""
    total = None
    for term in rows.terms:
        found = term.masked(function(term))
        total = found if total is None else total + found
    assert total is not None
    return total
