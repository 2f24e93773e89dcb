"""Functions that are written anew with the same code are one function.

`jax.jit` knows a function by its identity, so that a lambda in a loop would compile in every turn.
Two functions are the same here if code and defaults are, and if what they close over is: numbers
and texts by value, functions by this rule, JAX arrays by identity, modules of this library by their
fields. Whatever may have been changed in between keeps a function apart: a list, a NumPy array, an
object, and every global variable but functions and the modules of libraries.
"""

import dataclasses
import dis
import functools
import inspect
import logging
import types
import weakref
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax

F = TypeVar("F")
VALUES = (type(None), bool, int, complex, str, bytes)
LIBRARIES = ("builtins", "equinox", "functools", "jax", "math", "numpy", "pullback")
"""Packages whose modules, functions and classes nobody changes."""

MANY = 8
"""How many functions of one code are made with other values before that is logged."""

JITTED = type(jax.jit(len))

_made: "weakref.WeakKeyDictionary[types.CodeType, set[int]]" = weakref.WeakKeyDictionary()
_known: "weakref.WeakValueDictionary[Any, Any]" = weakref.WeakValueDictionary()
_names: dict[int, tuple["weakref.ref[types.CodeType]", "Names"]] = {}
_numbers: "weakref.WeakKeyDictionary[types.CodeType, int]" = weakref.WeakKeyDictionary()


def canonical(function: F) -> F:
    """Return the first function of this code and these values; the function itself if it is.

    Whatever else stands where a function may stand, a number or `None`, is returned as it is.
    """
    key = _key(function)
    first = None if key is None else _known.get(key)
    # What a function closes over may have been set since.
    if first is not None and _key(first) == key:
        return first
    if key is not None:
        _known[key] = function
    # A function that is compiled lives, so that its identity is not used again.
    count(function, id(function) if key is None else hash(key))
    return function


def count(function: Any, mark: int, how: str = "written anew") -> None:
    """Log, once, that functions of one code and other values are being made, and the cure."""
    written = _written(function)
    if written is None:
        return
    code = written.__code__
    marks = _made.setdefault(code, set())
    if mark in marks or len(marks) == MANY:
        return
    marks.add(mark)
    if len(marks) == MANY:
        logging.getLogger("pullback").warning(
            "%s (%s:%d) was %s %d times with other values inside (an array, a list, an object, "
            "another number): each is a function of its own, and is compiled. Pass the values "
            "through params or the batch, or use jax.tree_util.Partial(function, array) or an "
            "equinox.Module, whose arrays are data.",
            written.__name__, code.co_filename, code.co_firstlineno, how, MANY,
        )  # fmt: skip


def _written(function: Any) -> Any:
    """Return the function that a user wrote, inside of a `partial` or a `jit`.

    `None` for what JAX does not know by its identity, e.g. a method, and for functions of ours.
    """
    if type(function) is functools.partial:
        function = function.func
    if not isinstance(function, types.FunctionType | JITTED):
        return None
    written = inspect.unwrap(function)
    home = str(getattr(written, "__module__", None))
    plain = isinstance(written, types.FunctionType) and not home.startswith("pullback")
    return written if plain else None


def _key(function: Any, depth: int = 0) -> Any:
    """Return what a function is known by; `None` if by its identity only."""
    plain = isinstance(function, types.FunctionType)
    if not plain or function.__dict__ or depth > 8:
        return None
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        # A cell that is empty: the function is being defined.
        return None
    keywords = sorted((function.__kwdefaults__ or {}).items())
    parts = [*cells, *(function.__defaults__ or ()), *(value for _, value in keywords)]
    described = [_described(part, depth) for part in parts]
    variables = function.__globals__
    used = [variables[name] for name in names(function.__code__).loads if name in variables]
    described += [_unchanging(value, depth) for value in used]
    if None in described:
        return None
    words = tuple(word for word, _ in keywords)
    return function.__code__, id(variables), function.__name__, words, tuple(described)


class Names(NamedTuple):
    """What a code, or a function inside it, does with variables of others."""

    number: int
    """Another one for each code; codes that are equal have the same."""
    loads: tuple[str, ...]
    """The names of global variables that it reads."""
    stores: frozenset[str]
    """The names of those that it sets."""
    fills: frozenset[str]
    """The names of variables of functions around it that it sets."""


def names(code: types.CodeType) -> Names:
    """Return what is known of a code, found out once."""
    known = _names.get(id(code))
    if known is None or known[0]() is not code:
        # Not by equality: the hash of a code is computed from all of it, every time.
        number = _numbers.setdefault(code, len(_names))
        inside = [names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
        of = lambda kind: {str(x.argval) for x in dis.get_instructions(code) if x.opname == kind}
        loads, stores, fills = of("LOAD_GLOBAL"), of("STORE_GLOBAL"), of("STORE_DEREF")
        found = Names(
            number,
            tuple(sorted(loads.union(*(n.loads for n in inside)))),
            frozenset(stores.union(*(n.stores for n in inside))),
            frozenset(fills.union(*(n.fills for n in inside)) & set(code.co_freevars)),
        )
        _names[id(code)] = known = (weakref.ref(code), found)
    return known[1]


def _described(part: Any, depth: int) -> Any:
    """Return what stands for a part: its value, or the identity of what cannot change.

    An identity is not used again while the function that is known by it lives, which holds it.
    """
    if isinstance(part, float):
        return float, part.hex()
    if type(part) in VALUES:
        return type(part), part
    if type(part) is tuple:
        described = tuple(_described(x, depth + 1) for x in part)
        return None if None in described else (tuple, described)
    if isinstance(part, jax.Array):
        return object, id(part)
    if isinstance(part, eqx.Module) and type(part).__module__.split(".")[0] == "pullback":
        fields = [getattr(part, field.name, None) for field in dataclasses.fields(part)]
        described = tuple(_described(x, depth + 1) for x in fields)
        if None not in described:
            return type(part), described
    return _unchanging(part, depth)


def _unchanging(part: Any, depth: int) -> Any:
    """Return what stands for a function, or for something of a library; `None` for others."""
    key = _key(part, depth + 1)
    if key is not None:
        return types.FunctionType, key
    module = isinstance(part, types.ModuleType)
    home = part.__name__ if module else getattr(part, "__module__", None)
    known = (module or callable(part)) and str(home).split(".")[0] in LIBRARIES
    return (object, id(part)) if known else None


def name_of(function: Any) -> str:
    """Return what to call a function in a `repr`."""
    name = getattr(function, "__name__", type(function).__name__)
    return "..." if name == "<lambda>" else name
