"""The operations of a program: two for each multiplication in its products, the rest not counted."""

import math
from typing import Any

from .._compat.jaxpr import Program, called, loop


def flops(program: Program) -> int:
    """The operations in the matrix products and convolutions of a program, loops included."""
    total = 0
    for eqn in program.jaxpr.eqns:
        inner, turns = called(eqn), loop(eqn)
        if inner is not None:
            total += flops(inner)
        elif turns is not None:
            total += turns.length * flops(turns.body)
        else:
            total += _of_equation(eqn)
    return total


def _of_equation(eqn: Any) -> int:
    if eqn.primitive.name not in ("dot_general", "conv_general_dilated"):
        return 0
    out, weight = math.prod(eqn.outvars[0].aval.shape), eqn.invars[1].aval.shape
    if eqn.primitive.name == "dot_general":
        return (
            2
            * out
            * math.prod(eqn.invars[0].aval.shape[k] for k in eqn.params["dimension_numbers"][0][0])
        )
    return (
        2 * out * math.prod(weight) // max(1, weight[eqn.params["dimension_numbers"].rhs_spec[0]])
    )
