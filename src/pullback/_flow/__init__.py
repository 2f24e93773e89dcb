r"""Flows: \(\dot\theta = -v(\theta)\) for a natural, Euclidean or Newton field \(v\), integrated by
diffrax.
"""

from .clock import AbstractClock as AbstractClock
from .clock import LogTime as LogTime
from .clock import Time as Time
from .fields import AbstractFlow as AbstractFlow
from .fields import EuclideanFlow as EuclideanFlow
from .fields import NaturalFlow as NaturalFlow
from .fields import NewtonFlow as NewtonFlow
from .integrate import flow as flow
from .metric_controller import MetricControl as MetricControl
from .trajectory import Trajectory as Trajectory
