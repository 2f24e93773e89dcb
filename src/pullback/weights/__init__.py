"""Weights of several terms that adapt from step to step, one rule per class."""

from ._rules import AbstractWeighting as AbstractWeighting
from ._rules import ByGradientNorm as ByGradientNorm
from ._rules import ByTrace as ByTrace
