"""Exact natural gradients of any differentiable model, overparametrised or not."""

from . import metric as metric
from . import solver as solver
from . import step as step
from ._batches import minibatches as minibatches
from ._checkpoint import Checkpoints as Checkpoints
from ._checkpoint import FitWarning as FitWarning
from ._composite import Composite as Composite
from ._descent import DescentState as DescentState
from ._descent import NaturalGradientDescent as NaturalGradientDescent
from ._descent import Record as Record
from ._diagnostics import Stats as Stats
from ._fit import Fit as Fit
from ._fit import FitError as FitError
from ._fit import Report as Report
from ._fit import fit as fit
from ._history import History as History
from ._inverse import AbstractInverse as AbstractInverse
from ._inverse import MoorePenrose as MoorePenrose
from ._inverse import Tikhonov as Tikhonov
from ._inverse import TruncatedRank as TruncatedRank
from ._judge import PrecisionWarning as PrecisionWarning
from ._measure import AbstractMeasure as AbstractMeasure
from ._measure import Mean as Mean
from ._measure import Sum as Sum
from ._measure import Weights as Weights
from ._momentum import AbstractMomentum as AbstractMomentum
from ._momentum import HeavyBall as HeavyBall
from ._momentum import Spring as Spring
from ._natural_gradient import NaturalGradient as NaturalGradient
from ._natural_gradient import natural_gradient as natural_gradient
from ._natural_gradient import pullback as pullback
from ._optax import OptaxState as OptaxState
from ._optax import as_optax as as_optax
from ._pullback import PullbackMetric as PullbackMetric
from ._results import RESULTS as RESULTS

__version__ = "0.1.0"
