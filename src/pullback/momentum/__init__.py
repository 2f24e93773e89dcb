"""What one step remembers of the last."""

from ._base import AbstractMomentum as AbstractMomentum
from ._heavy_ball import HeavyBall as HeavyBall
from ._spring import Spring as Spring
