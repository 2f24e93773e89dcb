"""Finds the products with parameters in the program of one sample, and runs it with taps there.

A *tap* is a zero added to the result of a product: the derivative with respect to it is the
cotangent there. A leaf that is used in any other way is *free*: automatic differentiation gives its
rows. So the rows of every leaf are right, and those of a leaf with products only are fast.

Calls are inlined, the body of a loop is tapped at every iteration (the iterations are positions),
and equations with derivative rules of their own are left whole: a parameter that enters one is
free.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jaxtyping import Array

from .._base.pairs import is_complex
from .._compat.jaxpr import (
    JaxEquation,
    Loop,
    Program,
    called,
    evaluate,
    has_effects,
    is_literal,
    loop,
    trace,
    without_repetitions,
)
from .products import AbstractParameterProduct, product
from .views import View, reshaped, whole

Path: TypeAlias = tuple[int, ...]
"""The place of an equation: its number in the program, then in the program it calls, and so on."""


UNUSED = "it is not used"
"""Why a leaf is free that the program does not use."""


class Use(NamedTuple):
    """One product with a leaf, the loops around it, and the parameter that is added to it."""

    path: Path
    side: int
    product: AbstractParameterProduct
    leaf: int
    loops: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any
    shift: View | None

    @property
    def positions(self) -> int:
        """The number of positions, iterations of loops included; two for a complex one."""
        parts = 2 if self.complex and not self.product.codes else 1
        return parts * self.product.positions * math.prod(self.loops)

    @property
    def complex(self) -> bool:
        """Whether the product is complex (`factors.py`)."""
        return is_complex(self.dtype)


class Walk(NamedTuple):
    """The uses of each leaf with products only, and the reasons why the other leaves are free."""

    program: Program
    uses: dict[int, list[Use]]
    free: dict[int, str]

    def run(
        self, leaves: Sequence[Array], inputs: Sequence[Array], taps: dict[Path, Array]
    ) -> tuple[list[Any], dict[tuple[Path, int], Array]]:
        """The outputs with the taps added, and the other factor of each product by path and side.

        Loops are leading axes of a factor.
        """
        uses = [use for group in self.uses.values() for use in group if use.path in taps]
        return _run(self.program, [*leaves, *inputs], taps, uses, ())


def walk(function: Callable, leaves: Sequence[Any], inputs: Sequence[Any]) -> Walk:
    """The uses of parameter leaves in a function of parameter leaves and inputs."""
    program = without_repetitions(trace(function, list(leaves), list(inputs)))
    search = _Search()
    count = len(leaves)
    if has_effects(program):
        return Walk(program, {}, dict.fromkeys(range(count), "the model has side effects"))
    views = [whole(k, leaf.shape) for k, leaf in enumerate(leaves)] + [None] * (
        len(program.inputs) - count
    )
    for view in search.visit(program, views, (), ()):
        if view is not None:
            search.free.setdefault(view.leaf, "it is an output of the model")
    return search.finish(program, [leaf.shape for leaf in leaves])


class _Search:
    """The walk through a program, which collects uses and reasons."""

    def __init__(self):
        self.uses: list[Use] = []
        self.free: dict[int, str] = {}

    def visit(
        self, program: Program, views: Sequence[View | None], path: Path, loops: tuple[int, ...]
    ) -> list[View | None]:
        """Collect the uses in a program whose inputs are views; return the views it returns."""
        env: dict[Any, View] = {
            name: view for name, view in zip(program.inputs, views, strict=True) if view is not None
        }
        counts = Counter(v for eqn in program.jaxpr.eqns for v in eqn.invars if not is_literal(v))
        counts.update(v for v in program.outputs if not is_literal(v))
        # Arrays that rearrange the result of a product and are used once. They are views too: the
        # leaf is the number of the use, the entries are those of the result.
        made: dict[Any, View] = {}
        for number, eqn in enumerate(program.jaxpr.eqns):
            args = [None if is_literal(v) else env.get(v) for v in eqn.invars]
            here = (*path, number)
            inner = called(eqn)
            turns = loop(eqn)
            if inner is not None and any(args):
                for name, view in zip(
                    eqn.outvars, self.visit(inner, args, here, loops), strict=True
                ):
                    if view is not None:
                        env[name] = view
            elif turns is not None and any(args):
                self._loop(turns, args, here, loops)
            elif any(args):
                self._equation(eqn, args, here, loops, env, made, counts)
            elif (
                len(eqn.invars) == len(eqn.outvars) == 1
                and not is_literal(eqn.invars[0])
                and eqn.invars[0] in made
            ):
                moved = _rearranged(eqn, made[eqn.invars[0]])
                if moved is not None and counts[eqn.outvars[0]] == 1:
                    made[eqn.outvars[0]] = moved
        return [None if is_literal(v) else env.get(v) for v in program.outputs]

    def _loop(
        self, turns: Loop, args: list[View | None], path: Path, loops: tuple[int, ...]
    ) -> None:
        """Collect the uses in the body of a loop, to which only constants pass as parameters."""
        for view in args[turns.consts :]:
            if view is not None:
                self.free.setdefault(view.leaf, "it is carried or scanned over by a loop")
        inside = [*args[: turns.consts], *[None] * (len(args) - turns.consts)]
        for view in self.visit(turns.body, inside, path, (*loops, turns.length)):
            if view is not None:
                self.free.setdefault(view.leaf, "it is a result of a loop")

    def _equation(
        self,
        eqn: JaxEquation,
        args: list[View | None],
        path: Path,
        loops: tuple[int, ...],
        env: dict[Any, View],
        made: dict[Any, View],
        counts: Counter,
    ) -> None:
        """Collect the uses in one equation with a parameter among its arguments."""
        name = eqn.primitive.name
        out = eqn.outvars[0].aval
        if len(eqn.outvars) == 1 and len(args) == 1:
            view = None if args[0] is None else _rearranged(eqn, args[0])
            if view is not None:
                env[eqn.outvars[0]] = view
                return
        if name == "add" and self._shift(eqn, args, made):
            return
        for side, view in enumerate(args):
            if view is None:
                continue
            found = (
                product(eqn, side, view.entries)
                if view.fills(eqn.invars[side].aval.shape)
                else None
            )
            if found is None:
                self.free.setdefault(view.leaf, f"it enters {name}")
                continue
            if sum(v is not None for v in args) == 1 and counts[eqn.outvars[0]] == 1:
                made[eqn.outvars[0]] = whole(len(self.uses), out.shape)
            self.uses.append(
                Use(path, side, found, view.leaf, loops, tuple(out.shape), out.dtype, None)
            )

    def _shift(self, eqn: JaxEquation, args: list[View | None], made: dict[Any, View]) -> bool:
        """Whether an addition is a bias; then it is noted with its product."""
        # A bias is added to a product that is used nowhere else, so that the cotangent is the same
        # at both. Its factor is one.
        side, view = next((k, view) for k, view in enumerate(args) if view is not None)
        other = eqn.invars[1 - side]
        if args[1 - side] is not None or is_literal(other) or other not in made:
            return False
        number, where = made[other]
        use = self.uses[number]
        if other.aval.shape != eqn.outvars[0].aval.shape or where.size != math.prod(use.shape):
            return False
        placed = np.empty(where.size, view.entries.dtype)
        placed[where.ravel()] = np.broadcast_to(view.entries, where.shape).ravel()
        entries = use.product.shifted(placed.reshape(use.shape), view.entries.size)
        if entries is None:
            return False
        self.uses[number] = use._replace(shift=View(view.leaf, entries))
        return True

    def finish(self, program: Program, shapes: Sequence[tuple[int, ...]]) -> Walk:
        """Keep the leaves that enter products of one form only, with each entry in them."""
        shifts = Counter(use.shift.leaf for use in self.uses if use.shift is not None)
        leaves: dict[int, list[Use]] = {}
        for use in self.uses:
            leaves.setdefault(use.leaf, []).append(use)
        for leaf, uses in leaves.items():
            if leaf in shifts:
                self.free.setdefault(leaf, "it is both a factor and a shift")
            elif not _one_form(uses, shapes[leaf]):
                self.free.setdefault(leaf, "its products have different forms")
        kept = {leaf: uses for leaf, uses in leaves.items() if leaf not in self.free}
        # A shift stays with its product if that product is the only one of the weights, and the
        # only use of the shift.
        for leaf, uses in kept.items():
            kept[leaf] = [self._settle(use, len(uses), shifts, shapes) for use in uses]
        folded = {use.shift.leaf for uses in kept.values() for use in uses if use.shift is not None}
        for leaf in shifts:
            if leaf not in folded:
                self.free.setdefault(leaf, "it is added")
        for leaf, shape in enumerate(shapes):
            if leaf not in kept and leaf not in folded:
                self.free.setdefault(leaf, "it has no entries" if 0 in shape else UNUSED)
        return Walk(program, kept, self.free)

    def _settle(
        self, use: Use, siblings: int, shifts: Counter, shapes: Sequence[tuple[int, ...]]
    ) -> Use:
        """A use with its shift, or without it if the shift has another use."""
        shift = use.shift
        if shift is None:
            return use
        alone = siblings == 1 and shifts[shift.leaf] == 1 and shift.leaf not in self.free
        whole_leaf = shift.entries.size == math.prod(shapes[shift.leaf])
        return use if alone and whole_leaf else use._replace(shift=None)


def _rearranged(eqn: JaxEquation, view: View) -> View | None:
    """The view that an equation of one argument makes; `None` if it does more than rearrange."""
    return reshaped(
        eqn.primitive.name, eqn.params, view, eqn.invars[0].aval.shape, eqn.outvars[0].aval
    )


def _one_form(uses: list[Use], shape: tuple[int, ...]) -> bool:
    """Whether all products of a leaf have all of its entries, in the same places."""
    first = uses[0].product
    if first.entries.size != math.prod(shape) or first.entries.size == 0:
        return False
    return all(
        use.product.codes == first.codes
        and use.product.entries.shape == first.entries.shape
        and bool(np.array_equal(use.product.entries, first.entries))
        for use in uses
    )


def _run(
    program: Program, values: Sequence[Any], taps: dict[Path, Array], uses: list[Use], path: Path
) -> tuple[list[Any], dict[tuple[Path, int], Array]]:
    """The results of a program with taps, and the other factor of each use in it."""
    env = dict(zip(program.inputs, values, strict=True)) | dict(
        zip(program.jaxpr.constvars, program.consts, strict=True)
    )

    def read(name):
        return name.val if is_literal(name) else env[name]

    seen: dict[tuple[Path, int], Array] = {}
    for number, eqn in enumerate(program.jaxpr.eqns):
        here = (*path, number)
        args = [read(v) for v in eqn.invars]
        inside = any(
            tap[: len(here)] == here and tap != here for tap in (*taps, *(use.path for use in uses))
        )
        if inside and (inner := called(eqn)) is not None:
            outs, more = _run(inner, args, taps, uses, here)
            seen |= more
        elif inside:
            turns = loop(eqn)
            assert turns is not None
            outs, more = _run_loop(turns, args, taps, uses, here)
            seen |= more
        else:
            outs = evaluate(program, eqn, args)
        for use in uses:
            if use.path == here:
                seen[here, use.side] = use.product.x(args)
        if here in taps:
            outs = [outs[0] + taps[here]]
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in program.outputs], seen


def _run_loop(
    turns: Loop, args: Sequence[Any], taps: dict[Path, Array], uses: list[Use], path: Path
) -> tuple[list[Any], dict[tuple[Path, int], Array]]:
    """The results of a loop whose body is tapped, and the other factors in it, stacked."""
    # The taps are scanned over: each iteration has its own.
    within = {key: tap for key, tap in taps.items() if key[: len(path)] == path}
    consts = args[: turns.consts]
    carry = args[turns.consts : turns.consts + turns.carry]
    scanned = args[turns.consts + turns.carry :]

    def body(carry, slices):
        scanned, within = slices
        outs, seen = _run(turns.body, [*consts, *carry, *scanned], within, uses, path)
        return outs[: turns.carry], (outs[turns.carry :], seen)

    carry, (stacked, seen) = jax.lax.scan(
        body, list(carry), (list(scanned), within), turns.length, turns.reverse
    )
    return [*carry, *stacked], seen
