"""Constraints on the parameters, and ways back: back-projection, clipping, penalty."""

from ._sets import AbstractConstraint as AbstractConstraint
from ._sets import At as At
from ._sets import Clipping as Clipping
from ._sets import Penalty as Penalty
from ._sets import PositiveDefinite as PositiveDefinite
from ._sets import Simplex as Simplex
