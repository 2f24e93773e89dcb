"""The check of arguments that are metrics; all others are in `_base/checks.py`."""

from collections.abc import Iterable
from typing import Any

from .._base import checks
from ._base import AbstractMetric


def require_metrics(
    owner: str, name: str, values: Iterable[Any], wanted: str, example: str
) -> None:
    """Raise a `ValueError` unless every value is a metric on the outputs of one sample."""
    for value in values:
        checks.instance(owner, name, value, AbstractMetric, wanted, example)
        if value.couples_samples:
            kind = type(value).__name__
            raise ValueError(
                f"{owner}({name}={checks.shown(value)}): {kind} is one form on the outputs of the "
                f"whole batch, and cannot be combined with metrics on the outputs of one sample. "
                f"Use {kind} alone or as Weighted({kind}(), 0.5); elsewhere e.g. {example}."
            )
