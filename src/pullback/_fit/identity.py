"""What determines a run, in a form that two processes can compare: numbers, arrays and code.

A resumed run ends with the bits of an uninterrupted one only if it is the same run. So optimiser,
model, loss, metric, sample weights, batches and key are described, entry by entry, and the
description is stored with the checkpoint:

- numbers, words and types as they are printed;
- arrays by dtype, shape and SHA-256. Four sums are stored besides: arrays that were computed anew
  on other hardware differ in their last bits, which is worth a warning and no error;
- functions by their bytecode and constants, and by what they refer to: closures, defaults, globals.
  Names of local variables, line numbers and docstrings do not count. Functions of installed
  packages count by name.

No address, hash seed or order of a set enters, so that the same program has the same description in
every process. Lists and sets that a function refers to are left out, and so are names that it
assigns to: these are counters and caches. So are the batches of an iterator.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._base.checks import is_concrete
from .._problem.batch import Batch, Batches
from .._problem.padding import bare, sample_places
from .batches import Sampler

Identity: TypeAlias = dict[str, str | list[Any]]
"""Name -> description: a text, or [text, digest, sums] for an array."""

CODE = "code "
"""What the description of a function begins with; comparable under one version of Python."""
PLACES = tuple(
    sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
LIBRARIES = {"jax", "numpy", "scipy", "equinox", "lineax", "optax", "diffrax", "flax"}
LIBRARIES |= {"optimistix", "jaxtyping", "beartype", "pullback", "builtins"}
BLOCK = 1 << 16
ROUNDING = 1e4
"""Arrays whose sums differ by fewer units in the last place differ by rounding."""
MOST, DEEPEST = 20_000, 100
"""Descriptions end after so many entries, and so deep inside."""


def identity(opt: Any, batches: Any, key: Any, params: Any, state: Any = None) -> Identity:
    """Return the description of a run: optimiser, batches, key, and where it starts.

    `state` is the state to start from, `None` for that of `opt.init`.
    """
    walk = _Walk()
    walk.visit("optimiser: ", opt)
    if batches is None or isinstance(batches, tuple | Batches | Sampler) or callable(batches):
        walk.visit("batches: ", batches)
    elif isinstance(batches, list):
        # A resumed run may be given more of them.
        walk.visit("batches: first", batches[0] if batches else None)
    else:
        walk.found["batches: "] = "an iterable"
    walk.visit("key", key)
    walk.visit("start: ", params)
    if state is not None:
        walk.visit("start: state", state)
    return walk.found


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], same_python: bool
) -> tuple[list[str], list[str]]:
    """Return what makes two runs different ones, and what is worth a warning, in words."""
    changed: list[str] = []
    noted: list[str] = []
    for name in dict.fromkeys([*there, *here]):
        was, is_now = there.get(name, "nothing"), here.get(name, "nothing")
        if _equal(was, is_now):
            continue
        if not same_python and all(str(x).startswith(CODE) for x in (was, is_now)):
            continue
        words = _difference(name, was, is_now)
        if _rounded(was, is_now):
            noted.append(f"{words} in the last bits")
        elif name.startswith("start: ") and isinstance(was, list) and isinstance(is_now, list):
            noted.append(f"{words}, which are not used: those of the checkpoint are")
        else:
            changed.append(words)
    return changed, noted


def _equal(was: Any, is_now: Any) -> bool:
    """Whether two descriptions are the same; the sums of equal arrays may differ in a last bit."""
    if isinstance(was, list) and isinstance(is_now, list):
        # An array without a digest is on other machines, there or here.
        known = 1 if [""] in (was[1:2], is_now[1:2]) else 2
        return was[:known] == is_now[:known]
    return was == is_now


def _difference(name: str, was: Any, is_now: Any) -> str:
    """Return a difference in words."""
    if isinstance(was, list) and isinstance(is_now, list) and was[:1] == is_now[:1]:
        return f"{name} has other numbers ({is_now[0]})"
    if str(was).startswith(CODE) and str(is_now).startswith(CODE):
        return f"{name} has other code"
    was, is_now = (x[0] if isinstance(x, list) and x else x for x in (was, is_now))
    return f"{name}={is_now} here, {was} there"


def _rounded(was: Any, is_now: Any) -> bool:
    """Whether two arrays differ by rounding."""
    try:
        (text, _, before), (other, _, after) = was, is_now
        if text != other or not before or len(before) != len(after):
            return False
        eps = float(jnp.finfo(text.partition("[")[0]).eps)
        bound = ROUNDING * eps * abs(float(before[0]))
        return all(abs(float(a) - float(b)) <= bound for a, b in zip(before, after, strict=True))
    except (TypeError, ValueError, AttributeError):
        return False


class _Walk:
    """A walk through objects that notes what it finds."""

    def __init__(self):
        self.found: Identity = {}
        self.seen: dict[int, str] = {}
        self.kept: list[Any] = []
        self.depth = 0

    def visit(self, name: str, value: Any) -> None:
        """Describe a value, and what it consists of, under a name."""
        if len(self.found) >= MOST or self.depth >= DEEPEST:
            return
        if isinstance(value, Batch):
            value = _samples(value)
        if isinstance(value, jax.ShapeDtypeStruct):
            self.found[name] = [f"{value.dtype}{list(value.shape)}", "", []]
        elif eqx.is_array_like(value) and hasattr(value, "dtype"):
            self.found[name] = _array(value)
        elif _is_plain(value):
            self.found[name] = _text(value)
        elif isinstance(value, types.ModuleType):
            self.found[name] = f"module {value.__name__}"
        elif id(value) in self.seen:
            self.found[name] = f"the same as {self.seen[id(value)]}"
        else:
            # Equal tuples may be one object in one process and two in another.
            if not isinstance(value, tuple | list | Mapping):
                self.seen[id(value)] = name
            # An object that is collected during the walk would leave its id to another.
            self.kept.append(value)
            self.depth += 1
            self._inside(name, value)
            self.depth -= 1

    def _inside(self, name: str, value: Any) -> None:
        """Describe a value that consists of others."""
        if isinstance(value, type):
            self.found[name] = f"type {_qualified(value)}"
            self._methods(name, value)
        elif isinstance(value, functools.partial):
            self.found[name] = "partial"
            self._all(name, {"func": value.func, "args": value.args, "keywords": value.keywords})
        elif isinstance(value, types.MethodType):
            self.found[name] = "method"
            self._all(name, {"__func__": value.__func__, "__self__": value.__self__})
        elif (wrapped := _wrapped(value)) is not None:
            self.visit(_joined(name, "__wrapped__"), wrapped)
        elif isinstance(value, types.FunctionType):
            self._function(name, value)
        elif isinstance(value, Mapping):
            self.found[name] = f"{type(value).__name__} of {len(value)}"
            self._all(name, {str(key): item for key, item in value.items()})
        elif isinstance(value, list | tuple):
            self.found[name] = f"{type(value).__name__} of {len(value)}"
            names = getattr(value, "_fields", map(str, range(len(value))))
            self._all(name, dict(zip(names, value, strict=True)))
        elif isinstance(value, set | frozenset):
            self.found[name] = f"{type(value).__name__} of {len(value)}"
        else:
            self._object(name, value)

    def _all(self, name: str, parts: Mapping[str, Any]) -> None:
        for part in sorted(parts):
            self.visit(_joined(name, part), parts[part])

    def _object(self, name: str, value: Any) -> None:
        """Describe an object: its type, its fields, and the methods of a class of the user."""
        kind = type(value)
        named = _attribute(value, "__name__") or ""
        self.found[name] = f"{_qualified(kind)} {named}".strip()
        if dataclasses.is_dataclass(value):
            fields = (field.name for field in dataclasses.fields(value))
            self._all(name, {x: _attribute(value, x) for x in fields})
        elif not _is_library(kind) and hasattr(value, "__dict__"):
            self._all(name, {x: part for x, part in vars(value).items() if not _is_mutable(part)})
        if not _is_library(kind):
            self.visit(f"{name} ({kind.__name__})", kind)

    def _methods(self, name: str, kind: type) -> None:
        """Describe the methods of a class that is not of an installed package."""
        for base in kind.__mro__:
            if _is_library(base):
                continue
            for method in sorted(vars(base)):
                if method.startswith("__") and method != "__call__":
                    continue
                function = _attribute(base, method)
                if isinstance(function, types.FunctionType) or _wrapped(function) is not None:
                    self.visit(_joined(name, method), function)

    def _function(self, name: str, function: Callable) -> None:
        """Describe a function: its code, and what the code refers to."""
        code = function.__code__
        library = _is_library(function)
        digest = hashlib.sha256(repr(_code(code, function.__doc__)).encode()).hexdigest()
        self.found[name] = f"function {_qualified(function)}" if library else CODE + digest
        loaded, assigned = _names(code)
        parts: dict[str, Any] = {}
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                parts[variable] = cell.cell_contents
            except ValueError:
                continue  # not assigned yet
        if not library:
            there = function.__globals__
            parts |= {x: there[x] for x in loaded & there.keys() if x not in parts}
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        parts |= {f"default {number}": value for number, value in enumerate(defaults)}
        self._all(
            name, {x: y for x, y in parts.items() if x not in assigned and not _is_mutable(y)}
        )


def _samples(batch: Batch) -> Batch:
    """Return a batch without padding, which is another one on another number of devices."""
    places = sample_places(batch)
    if places is None:
        return batch

    def take(x):
        if not eqx.is_array(x):
            return x
        if not is_concrete(x) or not x.is_fully_addressable:
            return jax.ShapeDtypeStruct((len(places), *x.shape[1:]), x.dtype)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = jnp.asarray(np.asarray(jax.random.key_data(x))[places])
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        return np.asarray(x)[places]

    return jax.tree.map(take, bare(batch))


def _array(x: Any) -> list[Any]:
    """Return dtype, shape, digest and sums of an array; no digest of one on other machines."""
    text = f"{x.dtype}{list(x.shape)}"
    seen = getattr(x, "is_fully_addressable", True) or getattr(x, "is_fully_replicated", False)
    if not is_concrete(x) or not seen:
        return [text, "", []]
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        # The variables of NNX are like arrays, but are none.
        x = jax.random.key_data(x[...])
    x = np.ascontiguousarray(np.asarray(x)).reshape(-1)
    digest = hashlib.sha256(x.view(np.uint8)).hexdigest()
    return [text, digest, _sums(x) if jnp.issubdtype(x.dtype, jnp.inexact) else []]


def _sums(x: np.ndarray) -> list[str]:
    """Return the norm of a vector and three sums with weights that no symmetry cancels."""
    parts = (np.real(x), np.imag(x)) if np.iscomplexobj(x) else (x,)
    square = 0.0
    sums = np.zeros(3)
    weights = _weights()
    for number, (part, start) in enumerate(
        (part, start) for part in parts for start in range(0, len(x), BLOCK)
    ):
        block = part[start : start + BLOCK].astype(np.float64)
        with np.errstate(all="ignore"):
            square += float(block @ block)
            sums += np.cos(number) * (block @ weights[: len(block)])
    return [repr(float(value)) for value in (np.sqrt(square), *sums)]


@functools.cache
def _weights() -> np.ndarray:
    return np.cos(np.outer(np.arange(BLOCK), [1.0, 2.0, 3.0]) + np.array([[0.0, 1.0, 2.0]]))


def _is_plain(value: Any) -> bool:
    scalars = (bool, int, float, complex, str, bytes, enum.Enum, np.dtype, types.EllipsisType)
    return value is None or isinstance(value, scalars)


def _text(value: Any) -> str:
    """Return a plain value in words, long ones as a digest."""
    text = (
        f"{_qualified(type(value))}.{value.name}" if isinstance(value, enum.Enum) else repr(value)
    )
    return text if len(text) <= 80 else hashlib.sha256(text.encode()).hexdigest()


def _is_mutable(value: Any) -> bool:
    """Whether a value that a function refers to may be a counter or a cache."""
    return isinstance(value, list | set)


def _wrapped(value: Any) -> Any:
    """Return what a decorated function wraps; `None` if it wraps nothing."""
    return getattr(value, "__dict__", {}).get("__wrapped__") if callable(value) else None


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute, `None` if there is none or if it raises."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _qualified(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _joined(name: str, part: str) -> str:
    return name + part if name.endswith(": ") else f"{name}.{part}"


@functools.cache
def _is_installed(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    parents = Path(path).parents
    packages = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return bool(packages) or any(Path(place) in parents for place in PLACES)


def _is_library(value: Any) -> bool:
    """Whether a function or a class is of an installed package, whose version stands for it."""
    module = getattr(value, "__module__", None) or ""
    if module.partition(".")[0] in LIBRARIES:
        return True
    code = getattr(value, "__code__", None)
    if code is None:
        return _is_installed(getattr(sys.modules.get(module), "__file__", None) or "")
    return _is_installed(code.co_filename)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _code(code: types.CodeType, doc: str | None = None) -> tuple[Any, ...]:
    """Return what a code object computes, without names of local variables and line numbers."""
    # A function without a docstring has None in its place.
    kept = [None if doc is not None and x is doc else x for x in code.co_consts]
    constants = [_code(x) if isinstance(x, types.CodeType) else _constant(x) for x in kept]
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, tuple(constants), code.co_names, counts)


def _constant(constant: Any) -> str:
    """Return a constant in words; the order of a set is another one in every process."""
    if isinstance(constant, frozenset):
        return f"{{{', '.join(sorted(map(_constant, constant)))}}}"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_constant, constant))})"
    return repr(constant)


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the global names that a function uses, and the outer names that it assigns to."""
    loaded: set[str] = set()
    assigned: set[str] = set()
    for instruction in (x for part in _codes(code) for x in dis.get_instructions(part)):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(instruction.argval)
        elif instruction.opname.startswith(("STORE_", "DELETE_")):
            if instruction.opname.endswith(("_GLOBAL", "_DEREF")):
                assigned.add(instruction.argval)
    return loaded, assigned
