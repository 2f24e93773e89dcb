"""The names of the spaces.

A model is a map `Params -> Outputs`. At a point it has a tangent map (the Jacobian `J`), which
pushes a `Vector` on the parameters forward to an `OutputVector`, and whose transpose pulls an
`OutputCovector` back to a `Covector`. Vectors and covectors are pytrees of the structure of the
point they live at; leaves that are not floating arrays are `None` there.
"""
# pyright: reportUndefinedVariable=false

from typing import Any, TypeAlias

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
OutputCovector: TypeAlias = PyTree[Float[Array, "..."], "Z"]

Flat: TypeAlias = Float[Array, " P"]
"""A vector or covector on Θ in one array."""

Scalar: TypeAlias = Float[Array, ""]
Count: TypeAlias = Int[Array, ""]
