"""Functions that are written anew with the same code are one function.

`jax.jit` knows a function by its identity, so that a lambda in a loop would compile in every turn.
Two functions are the same here if code and defaults are, and if what they close over is: numbers
and texts by value, functions by this rule, JAX arrays by identity, modules of this library by their
fields. Whatever may have been changed in between keeps a function apart: a list, a NumPy array, an
object, and every global variable but functions and the modules of libraries.

A compiled program keeps the numbers that its functions read from outside, of which the caller of a
function that is compiled behind his back knows nothing. `reads` tells whether one was set anew.
"""

import dataclasses
import dis
import functools
import inspect
import logging
import types
import weakref
from collections.abc import Hashable
from typing import Any, TypeVar

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
_read: "weakref.WeakKeyDictionary[Any, Hashable]" = weakref.WeakKeyDictionary()


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
    _count(function, id(function) if key is None else hash(key))
    return function


def _count(function: Any, mark: int, how: str = "written anew") -> None:
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
    named = sorted((function.__kwdefaults__ or {}).items())
    parts = [*cells, *(function.__defaults__ or ()), *(value for _, value in named)]
    described = [_described(part, depth) for part in parts]
    variables = function.__globals__
    used = [variables[name] for name in _globals(function.__code__) if name in variables]
    described += [_unchanging(value, depth) for value in used]
    if None in described:
        return None
    names = tuple(name for name, _ in named)
    return function.__code__, id(variables), function.__name__, names, tuple(described)


@functools.lru_cache(1000)
def _globals(code: types.CodeType, change: str = "LOAD_GLOBAL") -> tuple[str, ...]:
    """Return the names of the globals that a code, or a function inside it, loads or stores."""
    own = [str(step.argval) for step in dis.get_instructions(code) if step.opname == change]
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return tuple(sorted({*own, *(name for part in inner for name in _globals(part, change))}))


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


@dataclasses.dataclass(frozen=True)
class Reads:
    """What functions read from outside.

    Equal to another if no number, text, function or array that a function reads from its module or
    closes over was replaced in between. What was changed inside a list, a NumPy array or an object
    is not seen.
    """

    marks: tuple[Hashable, ...]


def reads(tree: Any) -> Reads:
    """Return what the functions among the leaves of a tree read from outside."""
    marks = []
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, READERS):
            mark = _outside(leaf, ())
            if _read.setdefault(leaf, mark) != mark:
                _read[leaf] = mark
                _count(leaf, hash(mark), "changed from outside")
            marks.append(mark)
    return Reads(tuple(marks))


READERS = (types.FunctionType, functools.partial)


def _outside(function: Any, around: tuple[Any, ...]) -> Hashable:
    """Return a mark of a function: of its code, and of what it reads from outside."""
    if isinstance(function, functools.partial):
        parts = (function.func, *function.args, *function.keywords.values())
        return tuple(_mark(part, around) for part in parts)
    code, variables = function.__code__, function.__globals__
    if code in around:
        return code.co_name  # it calls itself
    around = (*around, code)
    home = str(variables.get("__name__")).split(".")[0]
    names = () if home in LIBRARIES else _globals(code)
    # What a function sets itself, e.g. a count of its calls, is not read from outside.
    own = _globals(code, "STORE_GLOBAL") + _globals(code, "STORE_DEREF")
    held = zip(code.co_freevars, function.__closure__ or (), strict=True)
    marks = [_mark(variables[x], around) for x in names if x in variables and x not in own]
    marks += [_mark(_content(cell), around) for name, cell in held if name not in own]
    return code, tuple(marks)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # the function is being defined


def _mark(part: Any, around: tuple[Any, ...]) -> Hashable:
    """Return a mark of what a function reads: its value, or its identity as long as it lives."""
    if isinstance(part, types.ModuleType):
        return part.__name__
    if isinstance(part, float):
        return float, part.hex()
    if type(part) in VALUES:
        return type(part), part
    if type(part) is tuple:
        return tuple(_mark(x, around) for x in part)
    if isinstance(part, types.MethodType):
        return _outside(part.__func__, around), Same(part.__self__)
    return _outside(part, around) if isinstance(part, READERS) else Same(part)


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


def name_of(function: Any) -> str:
    """Return what to call a function in a `repr`."""
    name = getattr(function, "__name__", type(function).__name__)
    return "..." if name == "<lambda>" else name
