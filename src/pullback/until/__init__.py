"""Reasons for `fit` to end before its last step: `fit(..., until=until.LossBelow(1e-6))`."""

from ._events import AbstractEvent as AbstractEvent
from ._events import Below as Below
from ._events import GradientBelow as GradientBelow
from ._events import LossBelow as LossBelow
from ._events import Plateau as Plateau
from ._events import Stuck as Stuck
from ._events import When as When
