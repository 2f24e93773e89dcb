"""Exact natural gradients of any differentiable model, overparametrised or not."""

from . import constraint as constraint
from . import event as event
from . import metric as metric
from . import solver as solver
from ._composite import Composite as Composite
from ._diagnostics import Stats as Stats
from ._examine import Examination as Examination
from ._examine import Meeting as Meeting
from ._examine import examine as examine
from ._flow import AbstractClock as AbstractClock
from ._flow import AbstractFlow as AbstractFlow
from ._flow import EuclideanFlow as EuclideanFlow
from ._flow import LogTime as LogTime
from ._flow import MetricControl as MetricControl
from ._flow import NaturalFlow as NaturalFlow
from ._flow import NewtonFlow as NewtonFlow
from ._flow import Time as Time
from ._flow import Trajectory as Trajectory
from ._flow import flow as flow
from ._inverse import AbstractInverse as AbstractInverse
from ._inverse import MoorePenrose as MoorePenrose
from ._inverse import Tikhonov as Tikhonov
from ._inverse import TruncatedRank as TruncatedRank
from ._invariance import Invariance as Invariance
from ._invariance import check_invariance as check_invariance
from ._judge import PrecisionWarning as PrecisionWarning
from ._measure import AbstractMeasure as AbstractMeasure
from ._measure import Mean as Mean
from ._measure import Sum as Sum
from ._measure import Weights as Weights
from ._natural_gradient import NaturalGradient as NaturalGradient
from ._natural_gradient import natural_gradient as natural_gradient
from ._natural_gradient import pullback as pullback
from ._pullback import PullbackMetric as PullbackMetric
from ._reparametrisation import AbstractReparametrisation as AbstractReparametrisation
from ._reparametrisation import Affine as Affine
from ._reparametrisation import Cubic as Cubic
from ._reparametrisation import Exponential as Exponential
from ._reparametrisation import Reparametrisation as Reparametrisation
from ._reparametrisation import Units as Units
from ._reparametrisation import Warp as Warp
from ._reparametrisation import random_reparametrisation as random_reparametrisation
from ._reparametrisation import reparametrise as reparametrise
from ._results import RESULTS as RESULTS

__version__ = "0.1.0"
