"""The loss of an optimiser on any batch: L(θ) + R(θ), as its steps record it before they move."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from .._base.types import Params, Scalar
from .._problem.problem import AbstractProblem
from .._problem.validate import validate


class HasLoss(eqx.Module):
    """A descent on a problem, and on a `penalty` if it has one."""

    problem: eqx.AbstractVar[AbstractProblem]

    def loss(self, params: Params, batch: Any = None) -> Scalar:
        """Return the loss that `step` records, penalty included, on a batch, e.g. held-out data.

        **Arguments:**

        - `params`, `batch`: as of `step`.
        """
        params, data = validate(self.problem, params, batch)
        value = self.problem.at(data).value(params)
        penalty: Callable[[Params], Scalar] | None = getattr(self, "penalty", None)
        return value if penalty is None else value + penalty(params).astype(value.dtype)
