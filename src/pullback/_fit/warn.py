"""Warnings of a run, attributed to the line outside this library that called `fit`."""

import os
import sys
import warnings
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1]) + os.sep


class FitWarning(UserWarning):
    """A problem with a run that continues, e.g. a loss that rises."""


def warn(message: str) -> None:
    """Warn with a `FitWarning` that points to the first caller outside this package."""
    # `skip_file_prefixes` does this from Python 3.12 on.
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, FitWarning, stacklevel=level)
