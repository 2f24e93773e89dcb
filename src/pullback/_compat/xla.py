"""Compiles with the options under which XLA's numbers are right, or those with which it is quick.

On the CPU, jaxlib 0.10.2 to 0.12 fuses some chains of products and sums into one library call and
silently miscomputes them: a product with a matrix of equal entries before a sum reads out of
bounds, and the gradient of a bias may be lost (`tests/compat/test_xla.py` has the reproduction).
`jit` restricts that fusion to single products for the programs that this library compiles itself;
nothing is changed for other programs, and nothing is set when `pullback` is imported.

Our programs consist of many small loops, and the CPU compiler takes seconds to optimise what then
runs for milliseconds. `jit` takes an `effort`: 1 compiles in half of the time, and what it makes is
up to a third slower; 0 compiles in a quarter of the time, but a loop is up to two times and a
convolution in a loop three times slower. Up to jaxlib 0.11.0, both take the older of the two
generators of loops.

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

from .._base.reads import reads
from .mappings import forget_if_full

OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""What to pass as `jax.jit(..., compiler_options=...)` to protect a program of your own."""

FIRST, FIXED = (0, 10, 2), (0, 13)
"""The affected versions of jaxlib: from the first on, below the second."""

EFFORT = "xla_backend_optimization_level"

OLDER = {"xla_cpu_use_fusion_emitters": False}
"""The older generator of loops."""

REMOVED = (0, 11, 1)
"""The version of jaxlib that no longer knows it."""

Function = TypeVar("Function", bound=Callable[..., Any])


def options(jaxlib: str, effort: int | None = None) -> dict[str, Any]:
    """Return the options for a version of jaxlib, on the CPU."""
    parts = tuple(int(part) for part in jaxlib.split(".")[:3] if part.isdigit())
    right = OPTIONS if FIRST <= parts < FIXED else {}
    if effort is None:
        return right
    return right | {EFFORT: effort} | (OLDER if parts < REMOVED else {})


def jit(function: Function, effort: int | None = None) -> Function:
    """Return `eqx.filter_jit(function)`, compiled with `options` on the CPU.

    Before the programs of the process become too many, they are forgotten (`mappings.py`). Where
    a function of the arguments reads a value that was set since, another program is compiled.
    """
    traced = False

    def noticed(outside, *args, **kwargs):
        nonlocal traced
        traced = True
        return function(*args, **kwargs)

    # Its name is that of the program, in profiles and messages.
    noticed.__name__ = noticed.__qualname__ = function.__name__

    plain = eqx.filter_jit(noticed)

    @functools.cache
    def protected():
        # Decided at the first call: to ask for the platform at import would start JAX.
        given = options(version("jaxlib"), effort) if jax.default_backend() == "cpu" else {}
        return eqx.filter_jit(noticed, compiler_options=given) if given else plain

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal traced
        outside = reads((args, kwargs))
        if traced:
            # A program was compiled since the last call, this one or one of the caller's.
            traced = False
            forget_if_full()
        if not _outermost():
            return plain(outside, *args, **kwargs)
        return protected()(outside, *args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


def _outermost() -> bool:
    """Return whether nobody is tracing: no `jit`, `grad`, `vmap` or loop around."""
    # JAX has no public way to ask. Arguments do not tell: a model may close over a tracer.
    return core.trace_ctx.is_top_level()
