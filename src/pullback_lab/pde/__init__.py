"""Published boundary value problems and how they are solved: `pullback pde A B`."""

from .cases import NAMES as NAMES
from .cases import Case as Case
from .cases import case as case
from .problems import EQUATIONS as EQUATIONS
from .published import PUBLISHED as PUBLISHED
from .published import curves as curves
from .run import Measured as Measured
from .run import optimiser as optimiser
from .run import solve as solve
