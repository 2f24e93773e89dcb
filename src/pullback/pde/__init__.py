"""Physics-informed networks: boundary value problems as sums of residual terms."""

from ._adaptive import ByResidual as ByResidual
from ._box import Box as Box
from ._condition import AbstractCondition as AbstractCondition
from ._condition import Condition as Condition
from ._condition import Domain as Domain
from ._conditions import Data as Data
from ._conditions import Dirichlet as Dirichlet
from ._conditions import Initial as Initial
from ._conditions import Neumann as Neumann
from ._conditions import Periodic as Periodic
from ._derivatives import Jet as Jet
from ._derivatives import divergence as divergence
from ._derivatives import gradient as gradient
from ._derivatives import hessian_vector as hessian_vector
from ._derivatives import jet as jet
from ._derivatives import laplacian as laplacian
from ._derivatives import partial as partial
from ._derivatives import second as second
from ._equation import Equation as Equation
from ._network import initialise as initialise
from ._network import network as network
from ._sampling import boundary as boundary
from ._sampling import collocation as collocation
from ._sampling import interior as interior
