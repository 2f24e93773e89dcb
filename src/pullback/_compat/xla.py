"""Compiles with the options under which XLA's numbers are right.

On the CPU, jaxlib 0.10.2 to 0.12 fuses some chains of products and sums into one library call and
silently miscomputes them: a product with a matrix of equal entries before a sum reads out of
bounds, and the gradient of a bias may be lost (`tests/compat/test_xla.py` has the reproduction).
`jit` restricts that fusion to single products for the programs that this library compiles itself;
nothing is changed for other programs, and nothing is set when `pullback` is imported.

XLA accepts options at the outermost `jit` only. Inside a user's `jit` the caller's options apply;
there the library avoids the one pattern that it would otherwise contain (`solver/_krylov.py`).
"""

import functools
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax._src import core  # noqa: TID251  (see `_outermost`)

from .mappings import forget_if_full

OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""What to pass as `jax.jit(..., compiler_options=...)` to protect a program of your own."""

FIRST, FIXED = (0, 10, 2), (0, 13)
"""The affected versions of jaxlib: from the first on, below the second."""

Function = TypeVar("Function", bound=Callable[..., Any])


def affected(jaxlib: str) -> bool:
    """Return whether a version of jaxlib fuses wrongly."""
    parts = [int(part) for part in jaxlib.split(".")[:3] if part.isdigit()]
    return FIRST <= tuple(parts) < FIXED


def jit(function: Function) -> Function:
    """Return `eqx.filter_jit(function)`, compiled with `OPTIONS` where they are needed.

    Before the programs of the process become too many, they are forgotten (`mappings.py`).
    """
    traced = False

    @functools.wraps(function)
    def noticed(*args, **kwargs):
        nonlocal traced
        traced = True
        return function(*args, **kwargs)

    plain = eqx.filter_jit(noticed)

    @functools.cache
    def protected():
        # Decided at the first call: to ask for the platform at import would start JAX.
        needed = jax.default_backend() == "cpu" and affected(version("jaxlib"))
        return eqx.filter_jit(noticed, compiler_options=OPTIONS) if needed else plain

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal traced
        if not _outermost():
            return plain(*args, **kwargs)
        if traced:
            # A program was compiled since the last call.
            traced = False
            forget_if_full()
        return protected()(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


def _outermost() -> bool:
    """Return whether nobody is tracing: no `jit`, `grad`, `vmap` or loop around."""
    # JAX has no public way to ask. Arguments do not tell: a model may close over a tracer.
    return core.trace_ctx.is_top_level()
