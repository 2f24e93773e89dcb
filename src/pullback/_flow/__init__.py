r"""Flows: \(\dot\theta = -v(\theta)\) for a natural, Euclidean or Newton field \(v\), integrated by diffrax."""

from ._clock import AbstractClock as AbstractClock
from ._clock import LogTime as LogTime
from ._clock import Time as Time
from ._control import MetricControl as MetricControl
from ._integrate import flow as flow
from ._kinds import AbstractFlow as AbstractFlow
from ._kinds import EuclideanFlow as EuclideanFlow
from ._kinds import NaturalFlow as NaturalFlow
from ._kinds import NewtonFlow as NewtonFlow
from ._trajectory import Trajectory as Trajectory
