"""Claims by name, each imported when it is requested.

The names are known before any claim is imported. A registry consists of strings only, so that it
can be sent to another process.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ._claim import Claim


class Entry(NamedTuple):
    """The module that defines a claim, and the source of the claim."""

    module: str
    source: str


class Registry(Mapping[str, Claim]):
    """A mapping from names to claims that imports the module of a claim when it is requested.

    **Arguments:**

    - `entries`: name -> where the claim of that name is defined. A module defines `CLAIM`, or
        several `CLAIMS`.
    """

    def __init__(self, entries: Mapping[str, Entry]):
        self.entries = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        # The method of `Mapping` would import the claim.
        return name in self.entries

    def __getitem__(self, name: str) -> Claim:
        entry = self.entries[name]
        module = importlib.import_module(entry.module)
        defined = {claim.name: claim for claim in claims_of(module)}
        listed = {other for other, where in self.entries.items() if where.module == entry.module}
        if set(defined) != listed:
            raise ValueError(
                f"{entry.module} defines the claims {sorted(defined)}, but the registry lists "
                f"{sorted(listed)}: change the one or the other."
            )
        if defined[name].source != entry.source:
            raise ValueError(
                f"{entry.module}: the claim {name!r} names the source {defined[name].source!r}, "
                f"but is registered under {entry.source!r}."
            )
        return defined[name]


def claims_of(module: object) -> tuple[Claim, ...]:
    """The claims that a module defines."""
    return tuple(getattr(module, "CLAIMS", None) or (getattr(module, "CLAIM"),))  # noqa: B009


def collect(modules: Mapping[str, Mapping[str, Sequence[str]]], package: str) -> Registry:
    """A registry from source -> module -> names of claims; raises if a name occurs twice."""
    entries: dict[str, Entry] = {}
    for source, files in modules.items():
        for file, names in files.items():
            for name in names:
                if name in entries:
                    raise ValueError(
                        f"two claims are called {name!r}: rename the one in {source}/{file}.py or "
                        f"the one in {entries[name].module}."
                    )
                entries[name] = Entry(f"{package}.{source}.{file}", source)
    return Registry(entries)
