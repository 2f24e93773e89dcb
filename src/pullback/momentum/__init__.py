"""What one step remembers of the last."""

from ._base import AbstractMomentum as AbstractMomentum
from ._base import HeavyBall as HeavyBall
from ._base import Spring as Spring
