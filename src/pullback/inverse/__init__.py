"""Which generalised inverse, one per file: a filter h(s) of singular values, and a gauge."""

from ._base import AbstractInverse as AbstractInverse
from ._dampable import Dampable as Dampable
from ._moore_penrose import MoorePenrose as MoorePenrose
from ._tikhonov import Tikhonov as Tikhonov
from ._truncated_rank import TruncatedRank as TruncatedRank
