"""Constraints on the parameters: sets with their projections, and penalties."""

from ._base import AbstractConstraint as AbstractConstraint
from ._penalty import Penalty as Penalty
from ._sets import At as At
from ._sets import Clipping as Clipping
from ._sets import PositiveDefinite as PositiveDefinite
from ._sets import Simplex as Simplex
