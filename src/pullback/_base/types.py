"""The names of the spaces.

A model is a map `Params -> Outputs`. At a point it has a tangent map (the Jacobian `J`), which
pushes a `Vector` on the parameters forward to an `OutputVector`, and whose transpose pulls an
`OutputCovector` back to a `Covector`. Vectors and covectors are pytrees of the structure of their
base point, with `None` for the leaves that are not floating arrays.
"""
# pyright: reportUndefinedVariable=false

from typing import Any, Protocol, TypeAlias, runtime_checkable

import lineax as lx
from jaxtyping import Array, Float, Int, PyTree

Params: TypeAlias = PyTree[Any, "Θ"]
"""A point of the parameter space Θ; only floating array leaves are differentiated."""

Vector: TypeAlias = PyTree[Float[Array, "..."], "Θ"]
"""A tangent vector on Θ: an update."""

Covector: TypeAlias = PyTree[Float[Array, "..."], "Θ"]
"""A cotangent vector on Θ: a gradient."""

Outputs: TypeAlias = PyTree[Any, "Z"]
"""A point of the output space Z."""

OutputVector: TypeAlias = PyTree[Float[Array, "..."], "Z"]
"""A tangent vector on Z."""

OutputCovector: TypeAlias = PyTree[Float[Array, "..."], "Z"]
"""A cotangent vector on Z, e.g. the differential of a loss."""

Flat: TypeAlias = Float[Array, " P"]
"""A vector or covector on Θ in one array."""

Scalar: TypeAlias = Float[Array, ""]
Count: TypeAlias = Int[Array, ""]


@runtime_checkable
class HasMatrix(Protocol):
    """An object with a dense matrix on the flat parameters, e.g. a `PullbackMetric`."""

    def matrix(self) -> Float[Array, "P P"]:
        """The matrix."""
        ...


Gauge: TypeAlias = (
    float | Scalar | Vector | Float[Array, "P P"] | lx.AbstractLinearOperator | HasMatrix | None
)
"""An inner product on Θ: a number, a diagonal like the parameters, a matrix, or an operator."""
