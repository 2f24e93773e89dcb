"""Exact natural gradients of any differentiable model, overparametrised or not."""

from . import metric as metric
from . import solver as solver
from ._composite import Composite as Composite
from ._diagnostics import Stats as Stats
from ._inverse import AbstractInverse as AbstractInverse
from ._inverse import MoorePenrose as MoorePenrose
from ._inverse import Tikhonov as Tikhonov
from ._inverse import TruncatedRank as TruncatedRank
from ._judge import PrecisionWarning as PrecisionWarning
from ._measure import AbstractMeasure as AbstractMeasure
from ._measure import Mean as Mean
from ._measure import Sum as Sum
from ._measure import Weights as Weights
from ._natural_gradient import NaturalGradient as NaturalGradient
from ._natural_gradient import natural_gradient as natural_gradient
from ._natural_gradient import pullback as pullback
from ._plan import Plan as Plan
from ._plan import Route as Route
from ._plan import plan as plan
from ._pullback import PullbackMetric as PullbackMetric
from ._results import RESULTS as RESULTS

__version__ = "0.1.0"
