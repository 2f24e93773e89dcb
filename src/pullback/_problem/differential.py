r"""The differential of a problem, \(dJ = J^\top c\), as the covector that it is."""

from typing import Any

from .._base.tangent import CotangentVector
from .._base.types import Params
from .problem import AbstractProblem
from .validate import check_batch, validate


def differential(problem: AbstractProblem, params: Params, batch: Any = None) -> CotangentVector:
    """Return the differential of the loss at a point: the gradient, as the covector that it is.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, as for `natural_gradient`.
    """
    params, data = validate(problem, params, batch)
    check_batch(problem, params, data)
    return CotangentVector(problem.at(data).differential(params)[1])
