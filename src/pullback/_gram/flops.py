"""The operations of a program, from its shapes.

`flops` counts two for each multiplication in matrix products and convolutions, nothing else: what
takes the time in a network. `operations` also counts one for every entry that another equation
computes, and returns the larger of the two, so that a model without products has a cost, too.
"""

import math

from .._base.pairs import is_complex
from .._compat.jaxpr import JaxEquation, Program, inner_programs, loop

PRODUCTS = ("dot_general", "conv_general_dilated")
MOVES = frozenset(
    """broadcast_in_dim concatenate convert_element_type copy device_put dynamic_slice
    dynamic_update_slice gather iota pad reshape rev slice split squeeze stop_gradient
    transpose""".split()
)
"""Equations that only move entries."""


def flops(program: Program) -> int:
    """The operations in the matrix products and convolutions of a program, loops included."""
    return _count(program)[0]


def operations(program: Program) -> int:
    """The operations of a program, within a factor of two of products plus all other entries."""
    return max(_count(program))


def _count(program: Program) -> tuple[int, int]:
    """The operations in products, and the entries that other equations compute."""
    products, entries = 0, 0
    for eqn in program.jaxpr.eqns:
        inner = [_count(other) for other in inner_programs(eqn)]
        if inner:
            turns = loop(eqn)
            times = 1 if turns is None else turns.length
            # The longest of several branches; of a `while` loop, one iteration.
            products += times * max(found[0] for found in inner)
            entries += times * max(found[1] for found in inner)
        elif eqn.primitive.name in PRODUCTS:
            products += _of_product(eqn)
        elif eqn.primitive.name not in MOVES:
            entries += _of_entries(eqn)
    return products, entries


def _of_entries(eqn: JaxEquation) -> int:
    """The entries of the results, or of the arguments where there are more (sums)."""
    sizes = [math.prod(v.aval.shape) for v in (*eqn.invars, *eqn.outvars)]
    return max(sizes, default=0)


def _of_product(eqn: JaxEquation) -> int:
    """The operations of a product or a convolution; a complex product is four real ones."""
    out = math.prod(eqn.outvars[0].aval.shape)
    out *= 4 if is_complex(eqn.outvars[0].aval.dtype) else 1
    numbers = eqn.params["dimension_numbers"]
    if eqn.primitive.name == "dot_general":
        left = eqn.invars[0].aval.shape
        return 2 * out * math.prod(left[k] for k in numbers[0][0])
    weight = eqn.invars[1].aval.shape
    return 2 * out * math.prod(weight) // max(1, weight[numbers.rhs_spec[0]])
