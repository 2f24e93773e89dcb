"""Functions that are written anew with the same code are one function.

`jax.jit` knows a function by its identity, so that a lambda in a loop would compile in every turn.
Two functions are the same here if code and defaults are, and if what they close over is: numbers
and texts by value, functions by this rule, JAX arrays by identity. Whatever may have been changed
in between keeps a function apart: a list, a NumPy array, an object, and every global variable but
functions and the modules of libraries.
"""

import logging
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
VALUES = (type(None), bool, int, complex, str, bytes)
LIBRARIES = ("builtins", "equinox", "functools", "jax", "math", "numpy", "pullback")
"""Packages whose modules, functions and classes nobody changes."""

MANY = 8
"""How many functions of one code are made with other arrays before that is logged."""

_made: "weakref.WeakKeyDictionary[types.CodeType, int]" = weakref.WeakKeyDictionary()
_known: "weakref.WeakValueDictionary[Any, Any]" = weakref.WeakValueDictionary()


def canonical(function: F) -> F:
    """Return the first function of this code and these values; the function itself if it is."""
    key = _key(function)
    if key is None:
        return function
    first = _known.get(key)
    # What a function closes over may have been set since.
    if first is None or _key(first) != key:
        _known[key] = function
        _count(function)
        return function
    return first


def _count(function: Any) -> None:
    """Log, once, that functions of one code and other arrays are being made, and the cure."""
    parts = [cell.cell_contents for cell in function.__closure__ or ()]
    parts += function.__defaults__ or ()
    if not any(isinstance(part, np.ndarray | jax.Array) for part in parts):
        return
    code = function.__code__
    _made[code] = _made.get(code, 0) + 1
    if _made[code] == MANY:
        logging.getLogger("pullback").warning(
            "%s (%s:%d) was written anew %d times with other arrays inside: each is a function of "
            "its own, and is compiled. Pass the arrays through params or the batch, or use "
            "jax.tree_util.Partial(function, array) or an equinox.Module, whose arrays are data.",
            function.__name__, code.co_filename, code.co_firstlineno, MANY,
        )  # fmt: skip


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
    used = [variables[name] for name in _names(function.__code__) if name in variables]
    described += [_unchanging(value, depth) for value in used]
    if None in described:
        return None
    names = tuple(name for name, _ in named)
    return function.__code__, id(variables), function.__name__, names, tuple(described)


def _names(code: types.CodeType) -> list[str]:
    """Return the names of globals (and attributes) in a code, and in the functions inside it."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return sorted({*code.co_names, *(name for part in inner for name in _names(part))})


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
