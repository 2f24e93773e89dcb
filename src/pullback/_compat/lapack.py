r"""Cholesky factorisation in place.

JAX's own factorisation replaces a factor that failed by NaN, which takes a second matrix and a pass
through it: at 4608 rows 85 MB and a tenth of the time. LAPACK, called through the foreign function
interface under the name that JAX registers, returns a status number instead. Where that name is not
registered (another platform, another version of jaxlib) JAX's own factorisation is used.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import cholesky_p
from jaxtyping import Array, Float


def cholesky(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Array]:
    """The factor L, undefined above its diagonal, and whether all pivots were positive."""
    target = _target(matrix.dtype)
    if target is None:
        return _checked(matrix)

    def in_place(matrix):
        out = jax.ShapeDtypeStruct(matrix.shape, matrix.dtype), jax.ShapeDtypeStruct((), jnp.int32)
        columns = (1, 0)
        call = jax.ffi.ffi_call(
            target,
            out,
            vmap_method="sequential",
            input_layouts=[columns],
            output_layouts=[columns, ()],
            input_output_aliases={0: 0},
        )
        factor, info = call(matrix, uplo=np.uint8(ord("L")))
        return factor, info == 0

    return jax.lax.platform_dependent(matrix, cpu=in_place, default=_checked)


def _checked(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Array]:
    """The factor by JAX's own factorisation, and whether it is finite."""
    # The primitive: `jnp.linalg.cholesky` would go through the matrix once more to clear the upper
    # triangle. A failure is a NaN everywhere.
    factor = cholesky_p.bind(matrix)
    return factor, jnp.all(jnp.isfinite(jnp.diagonal(factor)))


def _target(dtype: Any) -> str | None:
    """The name of LAPACK's routine; `None` if it is not registered."""
    try:
        from jaxlib import lapack

        name = lapack.prepare_lapack_call("potrf_ffi", np.dtype(dtype))
        return name if any(entry[0] == name for entry in lapack.registrations()["cpu"]) else None
    except (ImportError, AttributeError, LookupError, TypeError, NotImplementedError):
        return None
