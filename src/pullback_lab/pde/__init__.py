"""Published boundary value problems and how they are solved: `python -m pullback_lab.pde A B`."""

from .problems import EQUATIONS as EQUATIONS
from .problems import PUBLISHED as PUBLISHED
from .run import Measured as Measured
from .run import optimiser as optimiser
from .run import solve as solve
