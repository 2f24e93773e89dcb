"""How the terms of a problem are addressed: by name, in a dictionary, or by place, in a tuple.

Batches, outputs, weights and losses of the terms all have this form. Names are sorted, as JAX sorts
the keys of a dictionary, so that the terms have one order everywhere.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Form(NamedTuple):
    """The names of the terms, or their number if they have none."""

    names: tuple[str, ...] | None
    count: int

    @property
    def labels(self) -> tuple[str, ...]:
        """What to call each term in messages and columns."""
        return tuple(map(str, range(self.count))) if self.names is None else self.names

    def pack(self, values: Sequence[Any]) -> Any:
        """Return a dictionary, or a tuple, of one value for each term."""
        return tuple(values) if self.names is None else dict(zip(self.names, values, strict=True))

    def unpack(self, values: Any, what: str, example: str) -> tuple[Any, ...]:
        """Return one value for each term; raise a `ValueError` if one is missing or unknown."""
        if self.names is None:
            if isinstance(values, tuple | list) and len(values) == self.count:
                return tuple(values)
            length = f" of length {len(values)}" if isinstance(values, tuple | list) else ""
            raise ValueError(
                f"{what} must be a tuple with one entry for each of the {self.count} terms, got "
                f"{type(values).__name__}{length}. Write {self.example(example)}."
            )
        if not isinstance(values, dict):
            raise ValueError(
                f"{what} must be a dictionary with the names of the terms, got "
                f"{type(values).__name__}. Write {self.example(example)}."
            )
        missing = [name for name in self.names if name not in values]
        unknown = [name for name in values if name not in self.names]
        if missing or unknown:
            words = [f"lacks {', '.join(map(repr, missing))}"] if missing else []
            words += [f"has {', '.join(map(repr, unknown))}, no term"] if unknown else []
            raise ValueError(f"{what} {' and '.join(words)}. Write {self.example(example)}.")
        return tuple(values[name] for name in self.names)

    def example(self, entry: str) -> str:
        """Return what to write for all terms, with one entry for each."""
        if self.names is None:
            return f"({', '.join([entry] * self.count)}{',' * (self.count == 1)})"
        return "{" + ", ".join(f"{name!r}: {entry}" for name in self.names) + "}"


@contextlib.contextmanager
def about(label: str | None) -> Iterator[None]:
    """Name the term in a `ValueError` about it; `None` is the only one."""
    try:
        yield
    except ValueError as error:
        if label is None:
            raise
        raise ValueError(f"term {label!r}: {error}") from error
