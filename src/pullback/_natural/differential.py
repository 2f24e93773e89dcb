r"""The differential of a problem, \(dJ = J^\top c\), as the covector that it is."""

from typing import Any

import equinox as eqx
import jax

from .._base.tangent import CotangentVector
from .._base.tree import split
from .._base.types import Params
from .._problem.composite import Composite, check_batch, presented
from .._rows.pullback import MEMORY
from .outcome import prepare


def differential(problem: Composite, params: Params, batch: Any = None) -> CotangentVector:
    """The differential of the loss at a point: what is usually called its gradient, and is a
    covector.

    **Arguments:**

    - `problem`, `params`, `batch`: the problem at a point, as for `natural_gradient`.
    """
    problem, params, data, *_ = prepare(problem, params, batch, None, None, None, MEMORY)
    check_batch(problem, params, data)
    data = presented(problem, data)
    moving, carried = split(params)
    return CotangentVector(
        jax.grad(
            lambda p: problem.value(problem.outputs(eqx.combine(p, carried), data.inputs), data)
        )(moving)
    )
