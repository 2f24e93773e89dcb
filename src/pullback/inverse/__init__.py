"""Which generalised inverse, one per file."""

from ._base import AbstractInverse as AbstractInverse
from ._base import MoorePenrose as MoorePenrose
from ._base import Tikhonov as Tikhonov
from ._base import TruncatedRank as TruncatedRank
