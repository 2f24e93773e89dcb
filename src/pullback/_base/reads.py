"""What functions read from outside, and whether it was replaced since.

A compiled program keeps the numbers, arrays and functions that its functions read from their
modules or close over. Whoever calls `jax.jit` knows that. The caller of a function that is compiled
behind his back does not: in a notebook the cell that sets a scale is run again, and the next answer
must be that of the new scale. So what is read is part of what a program is known by.

Numbers, texts, tuples and functions are compared by value, and whatever else (arrays, lists,
objects) by identity: a change inside of it is not seen. A variable that one of the functions sets
itself, such as a count of its calls, is not read from outside.
"""

import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import jax

from .functions import VALUES, count, names

LIBRARIES = frozenset(("equinox", "jax", "numpy", "pullback", *sys.stdlib_module_names))
"""Packages whose variables nobody sets, besides all that are installed."""

READERS = (types.FunctionType, types.MethodType, functools.partial)

_seen: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Reads:
    """What functions read from outside; equal to another one if nothing of it was replaced."""

    marks: tuple[Hashable, ...]


def reads(tree: Any) -> Reads:
    """Return what the functions among the leaves of a tree read from outside."""
    marks: list[Hashable] = []
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, READERS):
            found = _marks(leaf)
            marks += found
            mark = hash(tuple(found))
            if _seen.setdefault(leaf, mark) != mark:
                _seen[leaf] = mark
                count(leaf, mark, "changed from outside")
    return Reads(tuple(marks))


class Part(NamedTuple):
    """Something that a function reads, or consists of."""

    place: tuple[Any, ...]
    """The variable that has it; empty for what belongs to the function."""
    name: str
    value: Any


def _marks(leaf: Any) -> list[Hashable]:
    """Return the marks of a function and of all that it calls, each of these once."""
    functions, places, own = [leaf], {id(leaf): 0}, set()
    found: list[tuple[tuple[Any, ...], Hashable]] = []

    def mark(part: Any) -> Hashable:
        if not isinstance(part, READERS):
            return _value(part, mark)
        if id(part) not in places:
            places[id(part)] = len(functions)
            functions.append(part)
        return types.FunctionType, places[id(part)]

    for function in functions:  # which grows
        own |= _own(function)
        found += [(part.place, (part.name, mark(part.value))) for part in _parts(function)]
    return [kind for place, kind in found if place not in own]


def _parts(function: Any) -> Iterator[Part]:
    """Return what a function consists of and reads."""
    if isinstance(function, types.MethodType):
        yield from (Part((), "", x) for x in (function.__func__, function.__self__))
        return
    if isinstance(function, functools.partial):
        yield from (Part((), "", x) for x in (function.func, *function.args))
        yield from (Part((), *word) for word in function.keywords.items())
        return
    code, variables = function.__code__, function.__globals__
    known = names(code)
    yield Part((), "", known.number)
    yield from (Part((), "", x) for x in function.__defaults__ or ())
    yield from (Part((), *word) for word in (function.__kwdefaults__ or {}).items())
    if not _is_library(variables):
        for name in known.loads:
            if name in variables:
                yield Part((id(variables), name), name, variables[name])
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield Part((id(cell),), name, cell.cell_contents)
        except ValueError:
            # A cell that is empty: the function is being defined.
            yield Part((id(cell),), name, None)


def _own(function: Any) -> set[tuple[Any, ...]]:
    """Return the variables outside of a function that it sets itself."""
    if not isinstance(function, types.FunctionType):
        return set()
    code = function.__code__
    known = names(code)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    filled = {(id(cell),) for name, cell in cells if name in known.fills}
    return filled | {(id(function.__globals__), name) for name in known.stores}


def _is_library(variables: dict[str, Any]) -> bool:
    """Return whether a module is one whose variables nobody sets."""
    home = str(variables.get("__name__")).split(".")[0]
    return home in LIBRARIES or "-packages" in str(variables.get("__file__"))


def _value(part: Any, mark: Any) -> Hashable:
    """Return a mark of what is no function: its value, or its identity as long as it lives."""
    if isinstance(part, types.ModuleType):
        return part.__name__
    if isinstance(part, float):
        return float, part.hex()
    if type(part) in VALUES:
        return type(part), part
    return (tuple, *map(mark, part)) if type(part) is tuple else Same(part)


class Same:
    """Equal to another mark of the same object, as long as that lives."""

    def __init__(self, part: Any):
        """Mark an object, which is kept alive only if it allows no weak reference."""
        self.number = id(part)
        try:
            self.part = weakref.ref(part)
        except TypeError:
            self.part = lambda: part

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        """Whether both mark one object, which is still there."""
        if not isinstance(other, Same) or self.number != other.number:
            return False
        return self is other or (self.part() is not None and self.part() is other.part())
