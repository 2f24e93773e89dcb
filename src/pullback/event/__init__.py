"""Reasons for a flow to stop."""

from ._events import AbstractEvent as AbstractEvent
from ._events import GradientBelow as GradientBelow
from ._events import LossBelow as LossBelow
from ._events import RankChange as RankChange
from ._events import When as When
