"""Short texts and HTML tables for what a user prints, whether concrete, batched or traced."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

import jax.core
import jax.numpy as jnp


def is_single(x: Any) -> bool:
    """Return whether a value is one number that is known now."""
    return not isinstance(x, jax.core.Tracer) and jnp.ndim(x) == 0


def number(x: Any, spec: str = ".3g") -> str:
    """Return a number as text; dtype and shape where it is an array or traced."""
    if is_single(x):
        return format(x.item() if hasattr(x, "item") else x, spec)
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"


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
