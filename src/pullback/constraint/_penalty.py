r"""`Penalty`: \(p(\theta) = \tfrac s2\,\mathrm{violation}(\theta)^2\), added to the loss in place
of a projection.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._base.checks import error, instance, positive
from .._base.show import settings
from .._base.tree import split
from .._base.types import Covector, Params, Scalar
from ._base import AbstractConstraint


class Penalty(eqx.Module):
    """strength · violation²/2, a function of the parameters.

    Zero inside the set; outside, its differential is a covector that points back. Points may stay
    outside, the farther the smaller the strength.

        penalty = pullback.constraint.Penalty(pullback.constraint.Clipping(0.0, 1.0), 10.0)
        opt = pullback.NaturalGradientDescent(problem, penalty=penalty)

    **Arguments:**

    - `constraint`: the set.
    - `strength`: a positive number.
    """

    constraint: AbstractConstraint
    strength: float | Scalar

    def __repr__(self) -> str:
        return settings(self)

    def __check_init__(self):
        wanted, example = "a set of pullback.constraint", "Penalty(Simplex(), 10.0)"
        instance("Penalty", "constraint", self.constraint, AbstractConstraint, wanted, example)
        positive("Penalty", "strength", self.strength)

    def __call__(self, params: Params) -> Scalar:
        """Return the penalty at a point.

        **Arguments:**

        - `params`: a point.
        """
        violation = self.constraint.violation(params)
        return jnp.asarray(self.strength, violation.dtype) * violation**2 / 2

    def covector(self, params: Params) -> Covector:
        """Return the differential of the penalty at a point.

        **Arguments:**

        - `params`: a point.
        """
        moving, carried = split(params)
        return jax.grad(lambda p: self(eqx.combine(p, carried)))(moving)


def check_places(owner: str, constraint: Any, penalty: Any) -> None:
    """Raise a `ValueError` if a penalty is given as a constraint, or a set as a penalty.

    Both are functions of the parameters; for a single number they could not be told apart later.
    """
    if isinstance(constraint, Penalty):
        wanted = "a function from parameters to parameters, and a penalty is added to the loss"
        raise error(owner, "constraint", constraint, wanted, f"{owner}(penalty=...)")
    if isinstance(penalty, AbstractConstraint):
        wanted = "a function from parameters to a number, and a set projects them"
        raise error(owner, "penalty", penalty, wanted, f"{owner}(constraint=...)")
