"""Checks of contracts for pieces of your own, dense references, and problems of known rank."""

from ._filters import RandomFilter as RandomFilter
from ._filters import random_filter as random_filter
from ._invariance import assert_invariant as assert_invariant
from ._inverse import check_inverse as check_inverse
from ._metric import check_metric as check_metric
from ._momentum import check_momentum as check_momentum
from ._preconditioner import check_preconditioner as check_preconditioner
from ._problems import Example as Example
from ._problems import Model as Model
from ._problems import bottleneck as bottleneck
from ._problems import carried_leaves as carried_leaves
from ._problems import dead_unit as dead_unit
from ._problems import few_parameters as few_parameters
from ._problems import prescribed as prescribed
from ._problems import tanh_mlp as tanh_mlp
from ._problems import tied_weights as tied_weights
from ._reference import Reference as Reference
from ._reference import reference_natural_gradient as reference_natural_gradient
from ._solver import check_solver as check_solver
from ._step import check_step as check_step
