"""Failures that are known and not mended yet, and how to recognise them.

Each has a minimised problem of its name in `found/`, which `test_fuzz.py` expects to fail:
an entry has to be removed when its cause is mended.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from .problem import Problem


class Known(NamedTuple):
    """Why a failure is known, and whether a problem and its verdict are a case of it."""

    why: str
    matches: Callable[[Problem, Any], bool]


KNOWN: dict[str, Known] = {}


def known(problem: Problem, verdict: Any) -> str:
    """Return the name of a known failure; empty if it is not one."""
    for name, entry in KNOWN.items():
        if entry.matches(problem, verdict):
            return name
    return ""
