"""Short texts and HTML tables for what a user prints, whether concrete, batched or traced.

Everything here reads numbers with NumPy: to print a result compiles nothing.
"""

import dataclasses
import html
import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

LONG = 60
"""The length above which the text of one setting is replaced by the name of its type."""
ENTRIES = 4
"""How many entries of a tuple or of a short array are shown."""


def known(x: Any) -> np.ndarray | None:
    """Return the numbers behind a value; `None` if it is traced, deleted or on other machines."""
    if isinstance(x, bool | int | float | complex | np.generic | np.ndarray):
        return np.asarray(x)
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer):
        return None
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return None
    return np.asarray(x) if x.is_fully_addressable and not x.is_deleted() else None


def is_single(x: Any) -> bool:
    """Return whether a value is one number that is known now."""
    values = known(x)
    return values is not None and values.ndim == 0


def number(x: Any, spec: str = ".3g") -> str:
    """Return a number as text, the range of several, and dtype and shape of what is not known."""
    if x is None:
        return "-"
    values = known(x)
    if values is None or (values.ndim and not values.size):
        return kind(x)
    if values.ndim == 0:
        return format(values.item(), spec) if values.dtype != bool else str(values)
    if values.dtype == bool:
        return f"{np.count_nonzero(values)} of {values.size}"
    if np.iscomplexobj(values):
        return kind(x)
    lost = np.isnan(values) if values.dtype.kind not in "iu" else np.zeros(values.shape, bool)
    rest = values[~lost]
    ends = [format(end.item(), spec) for end in (rest.min(), rest.max())] if rest.size else ["nan"]
    text = " to ".join(dict.fromkeys(ends))
    return f"{text} and {lost.sum()} nan" if rest.size and lost.any() else text


def kind(x: Any) -> str:
    """Return dtype and shape of an array, whatever is known of its numbers."""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]" if hasattr(x, "dtype") else type(x).__name__


def total(tree: Any) -> str:
    """Return how many arrays and numbers a tree holds."""
    sizes = [np.size(x) for x in jax.tree.leaves(tree) if hasattr(x, "dtype")]
    arrays = "1 array" if len(sizes) == 1 else f"{len(sizes)} arrays"
    return f"{sum(sizes)} numbers in {arrays}"


def several(x: Any) -> str:
    """Return how many results a value stands for, as the beginning of a text; empty for one."""
    return f"{' x '.join(map(str, x.shape))} results: " if jnp.ndim(x) else ""


def ratio(above: Any, below: Any) -> Any:
    """Return a quotient, NaN where the divisor is not positive; the dividend if one is traced."""
    above, below = known(above), known(below)
    if above is None or below is None:
        return None
    with np.errstate(all="ignore"):
        return np.where(below > 0, above / np.where(below > 0, below, 1), np.nan)


def facts(**values: Any) -> list[str]:
    """Return `name number` for the numbers that are known and apply: no NaN, no count of -1."""
    return [f"{name.replace('_', ' ')} {number(x)}" for name, x in values.items() if applies(x)]


def applies(x: Any) -> bool:
    """Whether a number, or one of several, is known and neither NaN nor a count of -1."""
    values = known(x)
    if values is None:
        return False
    missing = values < 0 if values.dtype.kind == "i" else values != values
    return not values.size or not np.all(missing)


def called(function: Any) -> str:
    """Return what to call a function; `...` for a lambda."""
    name = getattr(function, "__name__", type(function).__name__)
    return "..." if name == "<lambda>" else name


def brief(value: Any) -> str:
    """Return a setting as text of one line: numbers, names of functions, kinds of large arrays."""
    if isinstance(value, FunctionType):
        return called(value)
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {brief(x)}' for name, x in value.items())}}}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named = zip(getattr(value, "_fields"), value, strict=True)  # noqa: B009, for pyright
        return f"{type(value).__name__}({', '.join(f'{name}={brief(x)}' for name, x in named)})"
    if isinstance(value, tuple | list):
        shown = [brief(x) for x in value]
        if len(shown) > ENTRIES:
            shown = [*shown[: ENTRIES - 2], "...", shown[-1]]
        return f"({', '.join(shown)})"
    if isinstance(value, jax.ShapeDtypeStruct | jax.Array | np.ndarray | np.generic):
        values = known(value)
        if values is None or values.ndim > 1 or values.size > ENTRIES:
            return kind(value)
        return brief(values.tolist() if values.ndim else values.item())
    if isinstance(value, float | complex):
        return repr(value) if len(repr(value)) <= 8 else f"{value:.6g}"
    text = repr(value)
    if "\n" in text or (len(text) > LONG and not hasattr(type(value), "__dataclass_fields__")):
        return called(value) if callable(value) else f"{type(value).__name__}(...)"
    return text


def settings(module: Any, first: bool = False) -> str:
    """Return `Name(field=...)` with the fields that are not as by default; the first, if asked for.

    For dataclasses that a user builds: metrics, inverses, solvers, rules.
    """
    parts = []
    # A class with an `__init__` of its own has its defaults there.
    arguments = inspect.signature(type(module)).parameters
    for place, field in enumerate(dataclasses.fields(module)):
        value = getattr(module, field.name, None)
        default = arguments[field.name].default if field.name in arguments else field.default
        usual = _same(value, default) and not (first and place == 0)
        if value is not None and field.repr and not usual:
            parts.append(f"{field.name}={brief(value)}")
    return f"{type(module).__name__}({', '.join(parts)})"


def _same(value: Any, default: Any) -> bool:
    """Whether a value is a default, also after its conversion to an array."""
    if value is default:
        return True
    values, usual = known(value), known(default)
    if values is None or usual is None:
        return type(value) is type(default) and isinstance(value, str | tuple) and value == default
    return values.shape == usual.shape and np.array_equal(values, usual.astype(values.dtype))


def table(rows: Iterable[tuple[str, Any]]) -> str:
    """Return an HTML table of two columns."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(str(name))}</th>"
        f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table>{cells}</table>"


def grid(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table with a head."""
    first = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{first}</tr>{body}</table>"


def paragraph(text: str) -> str:
    """Return a paragraph of HTML."""
    return f"<p>{html.escape(text)}</p>"


def columns(name: str, values: Any) -> dict[str, Any]:
    """Return what there is one of for each of several terms, by name; empty for `None`."""
    if values is None:
        return {}
    items = values.items() if isinstance(values, dict) else enumerate(values)
    return {f"{name}{label}": value for label, value in items}
