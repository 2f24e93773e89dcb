"""The operations of a program: two for each multiplication in its products, nothing else."""

import math

from .._compat.jaxpr import JaxEquation, Program, called, loop


def flops(program: Program) -> int:
    """The operations in the matrix products and convolutions of a program, loops included."""
    total = 0
    for eqn in program.jaxpr.eqns:
        inner = called(eqn)
        turns = loop(eqn)
        if inner is not None:
            total += flops(inner)
        elif turns is not None:
            total += turns.length * flops(turns.body)
        else:
            total += _of_equation(eqn)
    return total


def _of_equation(eqn: JaxEquation) -> int:
    """The operations of one equation."""
    if eqn.primitive.name not in ("dot_general", "conv_general_dilated"):
        return 0
    out = math.prod(eqn.outvars[0].aval.shape)
    numbers = eqn.params["dimension_numbers"]
    if eqn.primitive.name == "dot_general":
        left = eqn.invars[0].aval.shape
        return 2 * out * math.prod(left[k] for k in numbers[0][0])
    weight = eqn.invars[1].aval.shape
    return 2 * out * math.prod(weight) // max(1, weight[numbers.rhs_spec[0]])
