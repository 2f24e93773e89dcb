"""How far to go along a natural gradient, one rule per file."""

from ._base import AbstractStep as AbstractStep
from ._base import Move as Move
from ._base import move as move
from ._damping_search import DampingSearch as DampingSearch
from ._fixed import Fixed as Fixed
from ._geodesic import Geodesic as Geodesic
from ._levenberg_marquardt import LevenbergMarquardt as LevenbergMarquardt
from ._line_search import GridSearch as GridSearch
from ._line_search import LineSearch as LineSearch
from ._trust_region import TrustRegion as TrustRegion
