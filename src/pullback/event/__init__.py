"""Reasons for a flow to stop: events, and the guard against a change of rank."""

from ._events import AbstractEvent as AbstractEvent
from ._events import GradientBelow as GradientBelow
from ._events import LossBelow as LossBelow
from ._events import When as When
from ._rank_change import Inspection as Inspection
from ._rank_change import RankChange as RankChange
